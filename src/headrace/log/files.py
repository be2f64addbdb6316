"""Chunks that are too large for the database, each in a file of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from headrace.log.database import sync_directory, unavailable


class ChunkFiles:
    """The directory `chunks`. A file is on disk, whole, before a row names it, and it goes after the row."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, packed: bytes) -> str:
        """Gives the name of a new file."""
        name = f"{uuid4().hex}.chunk"
        try:
            with (self.directory / name).open("xb") as file:
                file.write(packed)
                file.flush()
                os.fsync(file.fileno())
            sync_directory(self.directory)
        except OSError as error:
            with suppress(OSError):
                self.remove([name])
            raise unavailable(self.directory, error) from error
        return name

    def read(self, name: str) -> bytes:
        """The bytes of a file; one that is not there is a `FileNotFoundError`."""
        try:
            return (self.directory / name).read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise unavailable(self.directory, error) from error

    def has(self, name: str) -> bool:
        return (self.directory / name).exists()

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            (self.directory / name).unlink(missing_ok=True)

    def written_before(self, moment: float) -> set[str]:
        """The names of files that were last written before a moment, in seconds since the epoch."""
        return {entry.name for entry in os.scandir(self.directory) if entry.stat().st_mtime < moment}
