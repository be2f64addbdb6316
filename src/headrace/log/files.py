"""Chunks that are too large for the database, each in a file of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4


class ChunkFiles:
    """The directory `chunks`. A file is on disk, whole, before a row names it, and it goes after the row."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, packed: bytes) -> str:
        """Gives the name of a new file."""
        name = f"{uuid4().hex}.chunk"
        with (self.directory / name).open("xb") as file:
            file.write(packed)
            file.flush()
            os.fsync(file.fileno())
        self._sync()
        return name

    def read(self, name: str) -> bytes:
        return (self.directory / name).read_bytes()

    def has(self, name: str) -> bool:
        return (self.directory / name).exists()

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            (self.directory / name).unlink(missing_ok=True)

    def written_before(self, moment: float) -> set[str]:
        """The names of files that were last written before a moment, in seconds since the epoch."""
        return {entry.name for entry in os.scandir(self.directory) if entry.stat().st_mtime < moment}

    def _sync(self) -> None:
        """Forces the names of the files to disk."""
        descriptor = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
