"""A replica: a follower's copy of the state of all tasks, in memory or on disk.

Both kinds advance from batch to batch by reading the deltas that the checkpoint gained. What `advance` returned earlier
stays readable and never changes.

A replica on disk is for state that is larger than memory. It has one LMDB environment per task, and continues where it
was when it is opened again. It is trusted as far as a task's local state is: a copy of another checkpoint, of an
attempt that was not committed, or from before a crash of the machine is deleted and restored from the checkpoint.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Protocol

from headrace.checkpoint.files import read_delta
from headrace.checkpoint.ledger import Ledger, TaskHead
from headrace.checkpoint.restore import LmdbEngineProvider, restore
from headrace.checkpoint.storage import Storage
from headrace.directories import check_directory, create_directory, open_file
from headrace.errors import ConfigError, InvalidStateStoreError
from headrace.model.ids import TaskId
from headrace.query.persistent_map import PersistentMap, ReadOnlyEngine
from headrace.state.engine import Changes, Engine, Version
from headrace.state.keys import successor
from headrace.state.lmdb import LmdbEngine
from headrace.state.task_state import PREFIX

FOLDER = "copies"
MAP_SIZE = 1 << 36  # bytes of address space, not of disk: a map cannot grow while it is read
READERS = 1000  # versions of a task that can be read at the same time
FIRST_READ, NEXT_READ = 64, 1024  # entries that a scan reads while it holds the lock
_TASK = re.compile(r"\d+_\d+")


class TaskReplica(Engine, Protocol):
    """The state of one task at one version: an engine that any number of threads may read, and none may write."""

    def count(self, low: bytes, high: bytes | None) -> int:
        """Count the entries from `low` (inclusive) to `high` (exclusive)."""
        ...


TaskReplicas = Mapping[TaskId, TaskReplica]


class Replica(Protocol):
    """A copy of the state of all tasks that follows the checkpoint."""

    def advance(self, storage: Storage, ledger: Ledger, before: TaskReplicas) -> TaskReplicas:
        """Return the state of all tasks after the ledger's last batch. `before` is an earlier state, left unchanged."""
        ...

    def close(self) -> None: ...


class MemoryReplica:
    """A replica in memory: each state is a set of persistent maps, which share what did not change."""

    def advance(self, storage: Storage, ledger: Ledger, before: TaskReplicas) -> TaskReplicas:
        return {task: load_task(storage, task, head, before.get(task)) for task, head in ledger.tasks.items()}

    def close(self) -> None:
        pass


def load_task(storage: Storage, task: TaskId, head: TaskHead, before: TaskReplica | None = None) -> PersistentMap:
    """Read the state of a task into memory, starting from an earlier state if the chain of deltas contains it."""
    state = before if isinstance(before, PersistentMap) else PersistentMap()
    if state.version == head.version:
        return state
    start = next((at + 1 for at, ref in enumerate(head.chain) if ref.version == state.version), None)
    if start is None:
        state, start = PersistentMap(), 0
    for ref in head.chain[start:]:
        delta = read_delta(storage, task, ref)
        state = state.after(delta.changes, delta.version)
    return state


class DiskReplica:
    """A replica in a directory, which it locks against other processes."""

    def __init__(self, directory: Path | str, *, boot: str | None = None, map_size: int = MAP_SIZE) -> None:
        # A subdirectory, because the state directory of a running application has task folders of the same names.
        self._directory, self._boot, self._map_size = Path(directory).absolute() / FOLDER, boot, map_size
        self._checkpoint, self._engines = "", dict[TaskId, CountingEngines]()
        self._lock = _lock_directory(self._directory)

    def advance(self, storage: Storage, ledger: Ledger, before: TaskReplicas) -> TaskReplicas:
        if ledger.checkpoint != self._checkpoint:
            self._checkpoint, self._engines = ledger.checkpoint, {}
        self._delete_unknown_tasks(ledger)
        found = dict[TaskId, DiskTaskReplica]()
        for task, head in ledger.tasks.items():
            known = before.get(task)
            if isinstance(known, DiskTaskReplica) and known.version == head.version:
                found[task] = known
                continue
            engines = self._open_task(task)
            restore(engines, head.version, lambda chain=head.chain: chain, partial(read_delta, storage, task))
            found[task] = engines.open_reader()
        return found

    def _open_task(self, task: TaskId) -> CountingEngines:
        if task not in self._engines:
            folder = self._directory / str(task)
            data = folder / "data.mdb"
            size = max(self._map_size, 4 * data.stat().st_size if data.exists() else 0)
            inner = LmdbEngineProvider(folder, self._checkpoint, task, boot=self._boot, map_size=size, readers=READERS)
            self._engines[task] = CountingEngines(inner)
        return self._engines[task]

    def _delete_unknown_tasks(self, ledger: Ledger) -> None:
        """Delete the folders of tasks that the checkpoint does not have, such as those of an earlier topology."""
        names = {str(task) for task in ledger.tasks}
        for folder in self._directory.iterdir():
            if _TASK.fullmatch(folder.name) and folder.name not in names:
                shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        for engines in self._engines.values():
            engines.close()
        self._engines = {}
        self._lock.close()


def _lock_directory(directory: Path) -> BinaryIO:
    """Return a file that holds the lock of a directory until it is closed."""
    try:
        create_directory(directory)
        check_directory(directory)
        lock = os.fdopen(open_file(directory / "lock", os.O_WRONLY | os.O_CREAT), "wb")
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


class CountingEngines:
    """The engines of one task, which count their entries, so that the size of a store is known without a scan."""

    def __init__(self, inner: LmdbEngineProvider) -> None:
        self._inner, self._lock = inner, threading.Lock()
        self._engine: CountingEngine | None = None

    def open(self) -> Engine:
        return self._count(self._inner.open())

    def clear(self) -> Engine:
        """Return an empty engine. Readers of the old one continue, because its deleted files last until they close."""
        self._engine = None
        self._inner.detach()
        return self._count(self._inner.clear())

    def _count(self, engine: LmdbEngine) -> CountingEngine:
        if self._engine is None or self._engine.inner is not engine:
            self._engine = CountingEngine(engine)
        return self._engine

    def open_reader(self) -> DiskTaskReplica:
        """Return the state as it is now, for reading."""
        engine = self._engine
        if engine is None:
            raise InvalidStateStoreError("the local state of this task is not open")
        return DiskTaskReplica(engine.inner.reader(), dict(engine.counts), self._lock)

    def close(self) -> None:
        with self._lock:
            self._inner.close()


class CountingEngine:
    """An engine that counts the entries of each table."""

    def __init__(self, inner: LmdbEngine) -> None:
        self.inner = inner
        self.counts = self._count_entries()

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
        self.counts = self._count_entries()

    def close(self) -> None:
        self.inner.close()

    def _count_entries(self) -> Counter[bytes]:
        return Counter(key[:PREFIX] for key, _ in self.inner.scan(b"", None))


class DiskTaskReplica(ReadOnlyEngine):
    """The state of one task at one version. A lock lets one thread at a time read a few entries."""

    def __init__(self, reader: LmdbEngine, counts: Mapping[bytes, int], lock: threading.Lock) -> None:
        self._reader, self._counts, self._lock = reader, counts, lock
        self.version = reader.version

    def get(self, key: bytes) -> bytes | None:
        with self._lock:
            return self._reader.get(key)

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        size = FIRST_READ
        while True:
            with self._lock:
                some = list(islice(self._reader.scan(low, high, reverse=reverse), size))
            yield from some
            if len(some) < size:
                return
            size = NEXT_READ
            low, high = (low, some[-1][0]) if reverse else (some[-1][0] + b"\0", high)

    def count(self, low: bytes, high: bytes | None) -> int:
        """Return the known count of a whole table, or scan any other range."""
        if len(low) == PREFIX and high == successor(low):
            return self._counts.get(low, 0)
        return sum(1 for _ in self.scan(low, high))
