"""One writer at a time, among threads and processes.

The number of the last commit that somebody was told of, beside the database.

SQLite drops the end of a damaged write-ahead file without a word, as it does with one that a crash cut off. What was
acknowledged was never cut off by a crash: a database that is behind this number has lost data.

| number u64 | CRC-32 of it u32 |
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

from headrace.errors import LogBusyError

_FIRST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.002  # seconds


class WriterLock:
    """A lock file; the kernel frees it when its holder dies. One object per file and process: `sharing` sees to it.

    SQLite has a lock of its own, but waits in steps of up to 100 ms. It also loses data, before version 3.51.3, when a
    checkpoint meets a commit that starts the write-ahead file over (sqlite.org/wal.html#walresetbug): both happen only
    under this lock.
    """

    def __init__(self, path: Path, patience: float = 60.0, pause: Callable[[float], None] = time.sleep) -> None:
        self._path, self._patience, self._pause = path, patience, pause
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._thread = threading.Lock()

    @contextmanager
    def turn(self) -> Generator[None]:
        """Waits for its turn; raises if that takes longer than somebody's patience."""
        with self._thread:
            self._acquire()
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    def attempt(self) -> bool:
        """Takes the turn if it is free, until `close`."""
        try:
            # Not flock: a forked child would go on holding it after its parent was killed.
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def close(self) -> None:
        os.close(self._file)

    def _acquire(self) -> None:
        pause, waited = _FIRST_PAUSE, 0.0
        while not self.attempt():
            if waited > self._patience:
                raise self._refusal()
            self._pause(pause)
            waited += pause
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        os.pwrite(self._file, b"%-10d" % os.getpid(), 0)

    def _refusal(self) -> LogBusyError:
        holder = os.pread(self._file, 10, 0).decode(errors="replace").strip() or "unknown"
        return LogBusyError(
            f"waited {self._patience:g} s for the log in {self._path.parent}: process {holder} is writing to it, or "
            "hangs. Try again, or look what that process does"
        )


_NUMBER, _SUM = struct.Struct("<Q"), struct.Struct("<I")
_log = logging.getLogger(__name__)


class AckFile:
    """The file `acknowledged`; it is not forced to disk, so after a loss of power it may be behind, never ahead."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def write(self, number: int) -> None:
        raw = _NUMBER.pack(number)
        os.pwrite(self._file, raw + _SUM.pack(crc32(raw)), 0)

    def close(self) -> None:
        os.close(self._file)


def acknowledged(path: Path) -> int | None:
    """What the file says; None if there is none, or none that can be read, which loses a check and no data."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(raw) != _NUMBER.size + _SUM.size or _SUM.unpack_from(raw, _NUMBER.size)[0] != crc32(raw[: _NUMBER.size]):
        if raw:
            _log.warning("%s is damaged: it is written anew, and this one time nobody notices a lost commit", path)
        return None
    return _NUMBER.unpack_from(raw)[0]
