"""The copies of tasks' state in a directory of this host, and which process holds which copy.

    state.dir/APPLICATION/
      0_3/        a copy of the state of task 0_3
      0_3.lock    locked by the process that holds the copy, until it releases it or ends
      0_3.1/      a second copy: the standby of another slot on this host
      lock        locked for a moment by a process that claims, lists or removes copies

All files are created for their owner alone; a file that other users could have written is rejected: see `directories`.

A process writes only to copies that it holds, so no two processes ever write to one. A process that needs a task's
state takes the latest copy that is free; if there is none, it begins a new one, which `restore` fills.

Copies that no process holds are removed some time after their last use: see `remove_unused`.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.checkpoint.restore import LmdbEngineProvider
from headrace.directories import check_directory, check_folder, create_directory, open_file
from headrace.errors import InvalidStateStoreError, StreamsError, UnsafePathError
from headrace.model.ids import TaskId

_POLL = 0.02  # seconds between two attempts to claim a copy that another process is about to release
_NAME = re.compile(r"(\d+)_(\d+)(?:\.\d+)?")


class LocalCopies:
    """The copies in one directory that this process holds. Its methods may be called from any thread.

    Without `locks` every process uses the same copy of a task: only one of them runs the task at a time.
    """

    def __init__(self, directory: Path | str, checkpoint: str, *, locks: bool = True) -> None:
        self.directory, self._checkpoint, self._locks = Path(directory), checkpoint, locks
        self._held: dict[TaskId, tuple[LmdbEngineProvider, int | None]] = {}  # with the descriptor of the lock file

    def open(self, task: TaskId, *, others: int | None = None, patience: float = 0.0) -> LmdbEngineProvider:
        """Returns the copy that this process holds. If it holds none, claims the latest free copy, or begins a new one.

        `others` is how many other processes of this host should hold copies of the task. While more processes do, one
        of them is about to release its copy: this call waits for that, `patience` seconds at most.
        """
        if task not in self._held and not self._locks:
            self._prepare_directory()
            self._hold(task, str(task), None)
        elif task not in self._held:
            end = time.monotonic() + patience
            while not self._claim(task, others if time.monotonic() < end else None):
                time.sleep(_POLL)
        return self._held[task][0]

    def release(self, task: TaskId) -> None:
        """Closes a copy. Another process may take it, and it is removed if none does."""
        provider, descriptor = self._held.pop(task, (None, None))
        if provider is not None:
            provider.close()
        if provider is not None and descriptor is not None:
            if provider.directory.exists():
                os.utime(provider.directory)  # it was used until now
            os.close(descriptor)

    def close(self) -> None:
        for task in list(self._held):
            self.release(task)

    @property
    def held(self) -> frozenset[TaskId]:
        return frozenset(self._held)

    def list_free(self) -> dict[TaskId, int]:
        """Returns the tasks with a copy on this host that no other process holds, and the last batch in the copy."""
        found: dict[TaskId, int] = {}
        with self._alone():
            for name in self._names():
                task = task_of(name)
                descriptor = None if task is None else self._lock(name)
                if task is not None and descriptor is not None:
                    found[task] = max(self._number(name, task), found.get(task, -1))
                    os.close(descriptor)
        return {task: number for task, number in found.items() if number >= 0}

    def remove_unused(self, delay: float, now: float, keep: Collection[TaskId] = ()) -> list[str]:
        """Removes the copies that no process holds, `delay` seconds after their last use; returns their names.

        The copies of the tasks in `keep` stay. `now` is the time of day in seconds, as file times are. No state is
        lost: the checkpoint has it.
        """
        removed: list[str] = []
        if not self.directory.exists():
            return removed
        with self._alone():
            for name in self._names():
                folder = self.directory / name
                task = task_of(name)
                if task is None or task in keep or now - last_use(folder) < delay:
                    continue
                descriptor = self._lock(name)
                if descriptor is not None:
                    shutil.rmtree(folder, ignore_errors=True)
                    (self.directory / f"{name}.lock").unlink(missing_ok=True)
                    os.close(descriptor)
                    removed.append(name)
        return removed

    # ----------------------------------------------------------------------------------------------------------- claims
    def _claim(self, task: TaskId, others: int | None) -> bool:
        with self._alone():
            names = [name for name in self._names() if task_of(name) == task]
            locks = {name: self._lock(name) for name in names}
            free = {name: descriptor for name, descriptor in locks.items() if descriptor is not None}
            if not free and others is not None and len(locks) > others:
                return False
            if not free:
                return self._begin(task)
            name = next(iter(free)) if len(free) == 1 else max(free, key=lambda name: self._number(name, task))
            for other, descriptor in free.items():
                if other != name:
                    os.close(descriptor)
            self._hold(task, name, free[name])
        return True

    def _begin(self, task: TaskId) -> bool:
        number = 0
        while True:
            name = f"{task}.{number}" if number else str(task)
            descriptor = self._lock(name)
            if descriptor is not None:
                self._hold(task, name, descriptor)
                return True
            number += 1

    def _hold(self, task: TaskId, name: str, descriptor: int | None) -> None:
        self._held[task] = LmdbEngineProvider(self.directory / name, self._checkpoint, task), descriptor

    def _number(self, name: str, task: TaskId) -> int:
        """The last batch of a copy; -1 if it has none, or is of another checkpoint, or cannot be read."""
        provider = LmdbEngineProvider(self.directory / name, self._checkpoint, task)
        try:
            version = provider.peek()
        except UnsafePathError:
            raise
        except StreamsError:
            return -1
        return -1 if version is None else version.number

    def _names(self) -> list[str]:
        names: list[str] = []
        for folder in sorted(self.directory.iterdir()):
            with suppress(FileNotFoundError):  # its holder has just removed it
                if task_of(folder.name) is not None and folder.is_dir():
                    check_folder(folder)
                    names.append(folder.name)
        return names

    def _lock(self, name: str) -> int | None:
        """Locks a copy; returns the descriptor that holds the lock, or None if another process, or this one, has it."""
        descriptor = open_file(self.directory / f"{name}.lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Keeps other processes, and other threads, from claiming and removing copies meanwhile."""
        self._prepare_directory()
        try:
            descriptor = open_file(self.directory / "lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _prepare_directory(self) -> None:
        try:
            create_directory(self.directory)
            check_directory(self.directory.parent)
            check_folder(self.directory)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> InvalidStateStoreError:
        return InvalidStateStoreError(
            f"the local state in {self.directory} cannot be used: {error}. Set state.dir to a directory that this user "
            "can write to, on every host that runs tasks"
        )


def task_of(name: str) -> TaskId | None:
    """The task whose copy a directory is, by its name.

    >>> task_of("1_12"), task_of("1_12.1"), task_of("queries")
    (TaskId(subtopology=1, partition=12), TaskId(subtopology=1, partition=12), None)
    """
    match = _NAME.fullmatch(name)
    return None if match is None else TaskId(int(match[1]), int(match[2]))


def last_use(folder: Path) -> float:
    """When something in a copy was last written."""
    times: list[float] = []
    for file in (folder, *folder.glob("*")):
        try:
            times.append(file.stat().st_mtime)
        except FileNotFoundError:
            continue
    return max(times, default=0.0)
