"""The SQLite database of an embedded log: the writer lock, connections, transactions, and SQLite's errors.

Reads are snapshots and never wait. Writes hold the writer lock. The file `acknowledged` has the number of the last
durable commit that was reported to a caller:

| number u64 | CRC-32 of it u32 |

SQLite silently drops the end of a damaged write-ahead file, just as it drops an end that a crash has cut off. An
acknowledged commit was never cut off by a crash: a database that ends before this number has lost data, and is not
opened.

All files are created for their owner alone; a file that other users could have written is rejected: see `directories`.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from zlib import crc32

from headrace.directories import (
    check_file,
    check_folder,
    create_directory,
    open_file,
    read_file,
    sync_directory,
    write_file,
)
from headrace.errors import LogBusyError, LogCorruptedError, LogUnavailableError, StreamsError
from headrace.log.embedded.schema import check_tables, create_tables, is_empty, put_meta, read_meta, read_meta_version
from headrace.log.embedded.topics import EMPTY, Catalog, load_catalog

TIMEOUT = 60.0  # seconds
CHECKPOINT = 16 << 20  # bytes of the write-ahead file at which a commit checkpoints it
PAGE = 4096
_IDLE_CONNECTIONS = 8
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.002  # seconds between two attempts to lock
_NUMBER, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")
_log = logging.getLogger(__name__)


class WriterLock:
    """One writer at a time, among threads and processes: a lock on a file, which the kernel releases at a crash.

    SQLite has a lock of its own, but it polls in steps of up to 100 ms. Before version 3.51.3 SQLite also loses data
    when a checkpoint and a commit that restarts the write-ahead file run at the same time
    (sqlite.org/wal.html#walresetbug). Both run only under this lock.

    A process must have one object for each file (`file_log` ensures it), because closing any descriptor of the file
    releases the lock.
    """

    def __init__(self, path: Path, timeout: float = 60.0, pause: Callable[[float], None] = time.sleep) -> None:
        self._path, self._timeout, self._pause = path, timeout, pause
        self._file = open_file(path, os.O_RDWR | os.O_CREAT)
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


class AckFile:
    """The file `acknowledged`. It is not forced to disk: after a power failure it may be behind, never ahead."""

    def __init__(self, path: Path) -> None:
        self._file = open_file(path, os.O_RDWR | os.O_CREAT)

    def write(self, number: int) -> None:
        raw = _NUMBER.pack(number)
        os.pwrite(self._file, raw + _CHECKSUM.pack(crc32(raw)), 0)

    def close(self) -> None:
        os.close(self._file)

    @staticmethod
    def read(path: Path) -> int | None:
        """Returns the number, or None if the file is missing or damaged. That loses the check, but no data."""
        try:
            raw = read_file(path)
        except FileNotFoundError:
            return None
        number = raw[: _NUMBER.size]
        if len(raw) != _NUMBER.size + _CHECKSUM.size or raw[_NUMBER.size :] != _CHECKSUM.pack(crc32(number)):
            if raw:
                _log.warning("%s is damaged and will be rewritten: a lost commit would not be noticed this time", path)
            return None
        return _NUMBER.unpack(number)[0]


class Database:
    """The database of a directory, opened by this process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "log.db"
        self.changed = threading.Condition()  # notified after every commit of this process
        self._idle: list[sqlite3.Connection] = []
        self._is_durable: bool | None = None
        self._catalog = EMPTY
        with self.translate_errors():
            create_directory(directory / "chunks", durable=True)
            check_folder(directory / "chunks")
            self._lock = WriterLock(directory / "lock", TIMEOUT)
            try:
                with self._lock.hold():
                    self._writer = self._open_writer(AckFile.read(directory / "acknowledged"))
                    self._acknowledged = AckFile(directory / "acknowledged")
            except BaseException:
                self._lock.close()
                raise

    def close(self) -> None:
        # Closing the last connection checkpoints, which must not run at the same time as a commit.
        with self.translate_errors():
            with self._lock.hold():
                for connection in (*self._idle, self._writer):
                    connection.close()
            self._idle.clear()
            try:
                self._acknowledged.close()
            finally:
                self._lock.close()

    def catalog(self, connection: sqlite3.Connection) -> Catalog:
        """Returns the topics as the transaction of a connection sees them; decodes them only if they have changed."""
        known = self._catalog
        if read_meta_version(connection, "catalog") != known.version:
            known = self._catalog = load_catalog(connection)
        return known

    # ---------------------------------------------------------------------------------------------- transactions
    @contextmanager
    def reading(self) -> Generator[sqlite3.Connection]:
        """Opens a snapshot. It should be short: until it ends, the write-ahead file cannot restart."""
        with self.translate_errors():
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect()
            try:
                connection.execute("BEGIN")
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                connection.close()
                raise
            if len(self._idle) < _IDLE_CONNECTIONS:
                self._idle.append(connection)
            else:
                connection.close()

    @contextmanager
    def writing(self, *, durable: bool) -> Generator[sqlite3.Connection]:
        """Opens a write transaction. One that is not durable survives a crash, but not a power failure."""
        number = 0
        with self.translate_errors(), self._lock.hold():
            connection = self._writer
            if durable != self._is_durable:
                connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._is_durable = durable
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                if durable:
                    number = read_meta(connection, "commits")[0] + 1
                    put_meta(connection, "commits", number, b"")
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            if durable:
                self._acknowledged.write(number)
        with self.changed:
            self.changed.notify_all()

    def wait_for_commit(self, seconds: float) -> None:
        """Waits until this process commits something, but no longer than `seconds`."""
        with self.changed:
            self.changed.wait(seconds)

    # -------------------------------------------------------------------------------------------------- opening
    def _open_writer(self, acknowledged: int | None) -> sqlite3.Connection:
        if acknowledged is not None and (not self.path.exists() or self.path.stat().st_size == 0):
            raise self._damaged("it is missing, or empty")
        self._prepare_files()
        connection = self._connect()
        try:
            if is_empty(connection):
                connection.execute(f"PRAGMA page_size = {PAGE}")
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                connection.execute("PRAGMA journal_mode = WAL").fetchone()
                create_tables(connection)
                sync_directory(self.directory)
            self._check(connection, acknowledged or 0)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare_files(self) -> None:
        """Creates the database file, because SQLite would let all users read it, and checks the files that exist.

        SQLite gives its other files the mode of the first one. A file that exists is not opened here: closing it would
        release SQLite's locks.
        """
        with suppress(FileExistsError):
            write_file(self.path, b"")
        for name in ("log.db", "log.db-wal", "log.db-shm"):
            check_file(self.directory / name)

    def _check(self, connection: sqlite3.Connection, acknowledged: int) -> None:
        if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            raise self._damaged("it is not in the mode that it was made in")
        check_tables(connection, str(self.directory))
        found, _ = read_meta(connection, "commits")
        if found < acknowledged:
            raise self._damaged(
                f"it ends with commit {found}, and commit {acknowledged} was acknowledged: log.db-wal is damaged or "
                f"gone, or log.db is an older copy. To accept the loss, delete {self.directory / 'acknowledged'}"
            )

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=TIMEOUT, isolation_level=None, check_same_thread=False)
        for pragma in (f"wal_autocheckpoint = {CHECKPOINT // PAGE}", "cell_size_check = ON", "cache_size = -8000"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        return connection

    # --------------------------------------------------------------------------------------------------- errors
    @contextmanager
    def translate_errors(self) -> Generator[None]:
        """Raises errors of SQLite and of the file system as errors of a log."""
        try:
            yield
        except sqlite3.ProgrammingError as error:  # a value that is not a text, number or bytes
            raise TypeError(str(error)) from error
        except sqlite3.Error as error:
            raise self._translate(error) from error
        except UnicodeDecodeError as error:  # a damaged name in SQLite's own message
            raise self._damaged(str(error)) from error
        except OSError as error:
            raise unavailable(self.directory, error) from error

    def _translate(self, error: sqlite3.Error) -> StreamsError:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")):
            return LogBusyError(f"waited {TIMEOUT:g} s for the log in {self.directory}: {error}. Try again")
        if name == "SQLITE_FULL":
            return LogUnavailableError(f"no room left for the log in {self.directory}: free some, nothing was lost")
        if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
            return LogUnavailableError(f"cannot write to the log in {self.directory} ({error}): check its permissions")
        if name.startswith("SQLITE_IOERR") and name != "SQLITE_IOERR_SHORT_READ":
            return LogUnavailableError(f"the disk refuses to work for the log in {self.directory}: {error}")
        return self._damaged(str(error))

    def _damaged(self, how: str) -> LogCorruptedError:
        return LogCorruptedError(
            f"{self.path} is damaged: {how}. Restore the directory from a copy", file=str(self.path)
        )


def unavailable(directory: Path, error: OSError) -> LogUnavailableError:
    """Returns the error for a directory that the operating system does not let us use."""
    reason = error.strerror or str(error)
    hint = "free some room" if error.errno == 28 else "check its path and permissions"  # ENOSPC
    return LogUnavailableError(f"cannot use {directory} for a log: {reason} ({error.filename or directory}); {hint}")
