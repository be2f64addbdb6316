"""A follower's copy on a disk, for state that is larger than memory: an LMDB environment for each task.

It goes on from where it was when it is opened again. It is trusted as far as a task's own state is: not if it is of
another checkpoint, or of an attempt that did not win, nor after a crash of the machine; then it is made anew.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NoReturn

from headrace.checkpoint.delta_files import read_delta
from headrace.checkpoint.ledger import Ledger
from headrace.checkpoint.restore import LmdbEngines, restore
from headrace.checkpoint.storage import Storage
from headrace.errors import ConfigError, InvalidStateStoreError
from headrace.model.ids import TaskId
from headrace.query.memory_copy import TaskCopies
from headrace.state.engine import Changes, Engine, Version
from headrace.state.keys import successor
from headrace.state.lmdb import LmdbEngine
from headrace.state.task_state import PREFIX

FOLDER = "copies"
ROOM = 1 << 36  # bytes of address space, not of disk, at least: a map cannot grow while it is read
READERS = 1000  # versions of a task that can be read at the same time
FEW, MANY = 64, 1024  # entries that are read at once, at first and later
_TASK = re.compile(r"\d+_\d+")


class DiskCopies:
    """In a folder of its own below a directory, which nobody else uses meanwhile."""

    def __init__(self, directory: Path | str, *, boot: str | None = None, room: int = ROOM) -> None:
        # Not in the directory itself: that of a running application has folders of the same names.
        self._directory, self._boot, self._room = Path(directory).absolute() / FOLDER, boot, room
        self._checkpoint, self._homes = "", dict[TaskId, CountedHome]()
        self._lock = _locked(self._directory)

    def take(self, storage: Storage, ledger: Ledger, before: TaskCopies) -> TaskCopies:
        if ledger.checkpoint != self._checkpoint:
            self._checkpoint, self._homes = ledger.checkpoint, {}
        self._forget_others(ledger)
        found = dict[TaskId, DiskTaskCopy]()
        for task, standing in ledger.tasks.items():
            known = before.get(task)
            if isinstance(known, DiskTaskCopy) and known.version == standing.version:
                found[task] = known
                continue
            home = self._home(task)
            restore(home, standing.version, lambda chain=standing.chain: chain, partial(read_delta, storage, task))
            found[task] = home.part()
        return found

    def _home(self, task: TaskId) -> CountedHome:
        if task not in self._homes:
            folder = self._directory / str(task)
            data = folder / "data.mdb"
            room = max(self._room, 4 * data.stat().st_size if data.exists() else 0)
            inner = LmdbEngines(folder, self._checkpoint, task, boot=self._boot, map_size=room, readers=READERS)
            self._homes[task] = CountedHome(inner)
        return self._homes[task]

    def _forget_others(self, ledger: Ledger) -> None:
        """Of tasks that are no more, as those of a topology before, nothing is kept."""
        names = {str(task) for task in ledger.tasks}
        for folder in self._directory.iterdir():
            if _TASK.fullmatch(folder.name) and folder.name not in names:
                shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        for home in self._homes.values():
            home.close()
        self._homes = {}
        self._lock.close()


def _locked(directory: Path) -> BinaryIO:
    """The lock of a directory, for as long as it is open."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / "lock").open("wb")
    except OSError as error:
        raise ConfigError(f"no copy of the state can be kept in {directory}: {error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise ConfigError(
            f"another process keeps its copy in {directory}: give every replica a directory of its own"
        ) from error
    return lock


class CountedHome:
    """A home whose engine counts what is in it, so that nobody has to go through all of it."""

    def __init__(self, inner: LmdbEngines) -> None:
        self._inner, self._turn = inner, threading.Lock()
        self._engine: CountedEngine | None = None

    def open(self) -> Engine:
        return self._counted(self._inner.open())

    def clear(self) -> Engine:
        """An empty one; whoever reads the one before goes on, since deleted files are there until they are closed."""
        self._engine = None
        self._inner.leave()
        return self._counted(self._inner.clear())

    def _counted(self, engine: LmdbEngine) -> CountedEngine:
        if self._engine is None or self._engine.inner is not engine:
            self._engine = CountedEngine(engine)
        return self._engine

    def part(self) -> DiskTaskCopy:
        """What is there now, for reading."""
        engine = self._engine
        if engine is None:
            raise InvalidStateStoreError("nothing has been opened here")
        return DiskTaskCopy(engine.inner.reader(), dict(engine.counts), self._turn)

    def close(self) -> None:
        with self._turn:
            self._inner.close()


class CountedEngine:
    """An engine, and how many entries of every table it has."""

    def __init__(self, inner: LmdbEngine) -> None:
        self.inner = inner
        self.counts = self._counted()

    @property
    def version(self) -> Version | None:
        return self.inner.version

    def get(self, key: bytes) -> bytes | None:
        return self.inner.get(key)

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self.inner.scan(low, high, reverse=reverse)

    def commit(self, changes: Changes, version: Version) -> None:
        more = Counter[bytes]()
        for key, value in changes:
            more[key[:PREFIX]] += (value is not None) - (self.inner.get(key) is not None)
        self.inner.commit(changes, version)
        self.counts.update(more)

    def undo(self) -> None:
        self.inner.undo()
        self.counts = self._counted()

    def close(self) -> None:
        self.inner.close()

    def _counted(self) -> Counter[bytes]:
        return Counter(key[:PREFIX] for key, _ in self.inner.scan(b"", None))


class DiskTaskCopy:
    """What one task holds, as of one version. Threads take turns, as long as it takes to read some entries."""

    def __init__(self, reader: LmdbEngine, counts: Mapping[bytes, int], turn: threading.Lock) -> None:
        self._reader, self._counts, self._turn = reader, counts, turn
        self.version = reader.version

    def get(self, key: bytes) -> bytes | None:
        with self._turn:
            return self._reader.get(key)

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        size = FEW
        while True:
            with self._turn:
                some = list(islice(self._reader.scan(low, high, reverse=reverse), size))
            yield from some
            if len(some) < size:
                return
            low, high, size = (low, some[-1][0], MANY) if reverse else (some[-1][0] + b"\0", high, MANY)

    def count(self, low: bytes, high: bytes | None) -> int:
        """Of a whole table it is known; of anything else, it is counted."""
        if len(low) == PREFIX and high == successor(low):
            return self._counts.get(low, 0)
        return sum(1 for _ in self.scan(low, high))

    def commit(self, changes: Changes, version: Version) -> NoReturn:
        raise InvalidStateStoreError("this is a copy for reading: only the tasks of the application write")

    def undo(self) -> NoReturn:
        raise InvalidStateStoreError("this is a copy for reading: only the tasks of the application write")

    def close(self) -> None:
        pass
