"""One database per directory and process, so that all clients in a process commit together."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from headrace.log.commits import GroupCommit
from headrace.log.database import Database, unavailable
from headrace.log.errors import LogUnavailableError


@dataclass
class Shared:
    """A database, how its writes are put together, and how many use it."""

    database: Database
    commits: GroupCommit
    users: int = 0


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
            database = Database(directory)
            _open[key] = Shared(database, GroupCommit(database))
        _open[key].users += 1
        return _open[key]


def release(shared: Shared) -> None:
    """Closes the database after its last user."""
    with _guard():
        shared.users -= 1
        if shared.users == 0:
            for key in [key for key, other in _open.items() if other is shared]:
                del _open[key]
            shared.database.close()


def _guard() -> threading.Lock:
    return _guards.setdefault(os.getpid(), threading.Lock())
