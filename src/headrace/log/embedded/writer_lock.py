"""The writer lock: one writer at a time, among threads and processes.

SQLite has a lock of its own, but it polls in steps of up to 100 ms. Before version 3.51.3 SQLite also loses data when a
checkpoint and a commit that restarts the write-ahead file run at the same time (sqlite.org/wal.html#walresetbug). Both
run only under this lock.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import LogBusyError

_FIRST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.002  # seconds


class WriterLock:
    """A lock on a file. The kernel releases it when the process dies.

    A process must have one object for each file (`file_log` ensures it), because closing any descriptor of the file
    releases the lock.
    """

    def __init__(self, path: Path, timeout: float = 60.0, pause: Callable[[float], None] = time.sleep) -> None:
        self._path, self._timeout, self._pause = path, timeout, pause
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._thread_lock = threading.Lock()

    @contextmanager
    def hold(self) -> Generator[None]:
        """Waits for the lock and holds it; raises `LogBusyError` after the timeout."""
        with self._thread_lock:
            self._acquire()
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    def try_acquire(self) -> bool:
        """Takes the lock, until `close`, if no other process holds it."""
        try:
            # Not flock: a forked child would still hold it after its parent was killed.
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def close(self) -> None:
        os.close(self._file)

    def _acquire(self) -> None:
        pause, waited = _FIRST_PAUSE, 0.0
        while not self.try_acquire():
            if waited > self._timeout:
                raise self._timeout_error()
            self._pause(pause)
            waited += pause
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        os.pwrite(self._file, b"%-10d" % os.getpid(), 0)

    def _timeout_error(self) -> LogBusyError:
        holder = os.pread(self._file, 10, 0).decode(errors="replace").strip() or "unknown"
        return LogBusyError(
            f"waited {self._timeout:g} s for the log in {self._path.parent}: process {holder} is writing to it, or "
            "hangs. Try again, or look what that process does"
        )
