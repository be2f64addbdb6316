"""The SQLite database of a log: who may read and write it when, and what its errors mean."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import StreamsError
from headrace.log import schema
from headrace.log.errors import LogBusyError, LogCorruptedError, LogUnavailableError
from headrace.log.mark import Mark, acknowledged
from headrace.log.turns import Turns

PATIENCE = 60.0  # seconds
CHECKPOINT = 16 << 20  # bytes of the write-ahead file that are written by then; a commit does it, in its turn
PAGE = 4096
_IDLE_READERS = 8


class Database:
    """One directory's database in this process. Reads are snapshots and never wait; writes take turns."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.process = directory, os.getpid()
        self.path = directory / "log.db"
        self.changed = threading.Condition()  # after every commit of this process
        self._readers: list[sqlite3.Connection] = []
        self._durable: bool | None = None
        with self.translated():
            (directory / "chunks").mkdir(exist_ok=True)
            self._turns = Turns(directory / "lock", PATIENCE)
            try:
                with self._turns.turn():
                    self._writer = self._opened(acknowledged(directory / "acknowledged"))
                    self._mark = Mark(directory / "acknowledged")
            except BaseException:
                self._turns.close()
                raise

    def close(self) -> None:
        """The last one to close checkpoints, which must not meet a commit."""
        with self.translated(), self._turns.turn():
            for connection in (*self._readers, self._writer):
                connection.close()
        self._readers.clear()
        self._mark.close()
        self._turns.close()

    # ---------------------------------------------------------------------------------------------- transactions
    @contextmanager
    def reading(self) -> Generator[sqlite3.Connection]:
        """One moment of the log. Short: while it lasts, the write-ahead file cannot start over."""
        with self.translated():
            connection = self._idle_reader() or self._connect()
            try:
                connection.execute("BEGIN")
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                connection.close()
                raise
            if len(self._readers) < _IDLE_READERS:
                self._readers.append(connection)
            else:
                connection.close()

    def pause(self, seconds: float) -> None:
        """Until this process commits something, but no longer than some seconds."""
        with self.changed:
            self.changed.wait(seconds)

    def _idle_reader(self) -> sqlite3.Connection | None:
        try:
            return self._readers.pop()
        except IndexError:
            return None

    @contextmanager
    def writing(self, *, durable: bool) -> Generator[sqlite3.Connection]:
        """A transaction that waits for its turn; what is not durable survives a crash, but not a loss of power."""
        number = 0
        with self.translated(), self._turns.turn():
            connection = self._writer
            if durable != self._durable:
                connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._durable = durable
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                if durable:
                    number = schema.meta(connection, "commits")[0] + 1
                    schema.put_meta(connection, "commits", number, b"")
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            if durable:
                self._mark.write(number)
        with self.changed:
            self.changed.notify_all()

    # -------------------------------------------------------------------------------------------------- opening
    def _opened(self, number: int | None) -> sqlite3.Connection:
        if number is not None and (not self.path.exists() or self.path.stat().st_size == 0):
            raise self._damaged("it is missing, or empty")
        connection = self._connect()
        try:
            if schema.is_empty(connection):
                connection.execute(f"PRAGMA page_size = {PAGE}")
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                connection.execute("PRAGMA journal_mode = WAL").fetchone()
                schema.create(connection)
                sync_directory(self.directory)
            self._check(connection, number or 0)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self, connection: sqlite3.Connection, number: int) -> None:
        if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            raise self._damaged("it is not in the mode that it was made in")
        schema.check(connection, str(self.directory))
        found, _ = schema.meta(connection, "commits")
        if found < number:
            raise self._damaged(
                f"it ends with commit {found}, and commit {number} was acknowledged: log.db-wal is damaged or gone, or "
                f"log.db is an older copy. To accept the loss, delete {self.directory / 'acknowledged'}"
            )

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        for pragma in (f"wal_autocheckpoint = {CHECKPOINT // PAGE}", "cell_size_check = ON", "cache_size = -8000"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        return connection

    # --------------------------------------------------------------------------------------------------- errors
    @contextmanager
    def translated(self) -> Generator[None]:
        """Errors of SQLite and of the disk in words of a log."""
        try:
            yield
        except sqlite3.ProgrammingError as error:  # a value that is no text, number or bytes
            raise TypeError(str(error)) from error
        except sqlite3.Error as error:
            raise self._meaning(error) from error
        except UnicodeDecodeError as error:  # a damaged name in SQLite's own message
            raise self._damaged(str(error)) from error
        except OSError as error:
            raise unavailable(self.directory, error) from error

    def _meaning(self, error: sqlite3.Error) -> StreamsError:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")):
            return LogBusyError(f"waited {PATIENCE:g} s for the log in {self.directory}: {error}. Try again")
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


def sync_directory(directory: Path) -> None:
    """Forces the names of a directory's files to disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unavailable(directory: Path, error: OSError) -> LogUnavailableError:
    """The error for a directory that the system refuses."""
    reason = error.strerror or str(error)
    hint = "free some room" if error.errno == 28 else "check its path and permissions"  # ENOSPC
    return LogUnavailableError(f"cannot use {directory} for a log: {reason} ({error.filename or directory}); {hint}")
