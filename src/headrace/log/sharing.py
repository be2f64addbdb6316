"""One database per directory and process, so that all clients in a process commit together."""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path

from headrace.log.appending import Append, store
from headrace.log.catalog import Topics
from headrace.log.commits import GroupCommit
from headrace.log.database import Database, unavailable
from headrace.log.errors import LogUnavailableError
from headrace.log.files import ChunkFiles
from headrace.log.reading import Reader
from headrace.log.upkeep import Upkeep


class Shared:
    """All that the users of one directory have in common, and how many they are."""

    def __init__(self, directory: Path) -> None:
        self.database = Database(directory)
        self.commits = GroupCommit(self.database)
        self.files = ChunkFiles(directory / "chunks")
        self.topics = Topics()
        self.reader = Reader(self.database, self.files, self.topics.seen_by)
        self.upkeep = Upkeep(self.reader, self.commits)
        self.users = 0

    def store(self, connection: sqlite3.Connection, appends: list[Append]) -> list[list[int]]:
        return store(connection, self.topics.seen_by(connection), appends, self.files)


_guards: dict[int, threading.Lock] = {}  # by process: one that was forked while the lock was held needs another
_open: dict[tuple[int, int, int], Shared] = {}  # by process, and by device and inode of the directory


def acquire(directory: Path) -> Shared:
    """The database of a directory, which is made if it is not there."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        place = directory.stat()
    except FileExistsError:
        raise LogUnavailableError(f"{directory} is a file: a log needs a directory of its own") from None
    except OSError as error:
        raise unavailable(directory, error) from error
    key = (os.getpid(), place.st_dev, place.st_ino)
    with _guard():
        if key not in _open:
            _open[key] = Shared(directory)
        _open[key].users += 1
        return _open[key]


def release(shared: Shared) -> None:
    """Closes the database after its last user."""
    with _guard():
        shared.users -= 1
        if shared.users == 0:
            for key in [key for key, other in _open.items() if other is shared]:
                del _open[key]
            shared.upkeep.stop()
            shared.database.close()


def _guard() -> threading.Lock:
    return _guards.setdefault(os.getpid(), threading.Lock())
