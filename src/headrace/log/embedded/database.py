"""Checksums of rows: SQLite notices damage to its own structure, but not to what it holds.

The tables of the embedded log, and whether a database has them.

    DIR/log.db            the database, in WAL mode (log.db-wal, log.db-shm while it is open)
    DIR/chunks/*.chunk    packed records that are too large for it, one chunk each
    DIR/acknowledged      the number of the last commit that somebody was told of (see mark.py)
    DIR/lock, cleaning    held by whoever writes, and by whoever cleans

A row of `chunks` covers the offsets from `base` up to `upto`, without holes between rows, though compaction may have
taken records out. Its records are in `bodies`, or in a file. What must not vanish unnoticed is one row of `meta` or
`groups`, or known from there. Every row has a seal (see seals.py).

The SQLite database of a log: who may read and write it when, and what its errors mean.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

from headrace.errors import LogBusyError, LogCorruptedError, LogUnavailableError, StreamsError
from headrace.log.embedded.writer_lock import AckFile, WriterLock, acknowledged


def seal(*fields: object) -> int:
    """What is written beside the fields of a row; they are numbers, texts, bytes and None.

    >>> seal("orders", 1) == seal("orders", 1), seal("orders", 1) == seal("orders", 2)
    (True, False)
    """
    return crc32(repr(fields).encode())


def broken(what: str) -> LogCorruptedError:
    """The error for a row that does not match its seal."""
    return LogCorruptedError(
        f"{what} in log.db is not what was written: the file is damaged. Restore the log's directory from a copy"
    )


APPLICATION = 0x48524C47  # "HRLG", in the header of the database file
VERSION = 1
TABLES = {
    "meta": """CREATE TABLE meta (name TEXT PRIMARY KEY, version INTEGER NOT NULL, value BLOB NOT NULL,
        seal INTEGER NOT NULL) WITHOUT ROWID""",
    "partitions": """CREATE TABLE partitions (topic INTEGER NOT NULL, partition INTEGER NOT NULL,
        earliest INTEGER NOT NULL, upto INTEGER NOT NULL, cleaned INTEGER NOT NULL, seal INTEGER NOT NULL,
        PRIMARY KEY (topic, partition)) WITHOUT ROWID""",
    "chunks": """CREATE TABLE chunks (topic INTEGER NOT NULL, partition INTEGER NOT NULL, base INTEGER NOT NULL,
        upto INTEGER NOT NULL, last_time INTEGER NOT NULL, stamped INTEGER, horizon INTEGER, size INTEGER NOT NULL,
        digest INTEGER NOT NULL, body INTEGER, file TEXT, seal INTEGER NOT NULL,
        PRIMARY KEY (topic, partition, base)) WITHOUT ROWID""",
    "bodies": "CREATE TABLE bodies (id INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "producers": """CREATE TABLE producers (id INTEGER PRIMARY KEY, sequence INTEGER NOT NULL, offsets BLOB NOT NULL,
        used INTEGER NOT NULL, seal INTEGER NOT NULL)""",
    "markers": """CREATE TABLE markers (application TEXT PRIMARY KEY, number INTEGER NOT NULL,
        seal INTEGER NOT NULL) WITHOUT ROWID""",
    "groups": "CREATE TABLE groups (name TEXT PRIMARY KEY, state BLOB NOT NULL, seal INTEGER NOT NULL) WITHOUT ROWID",
}
_SMALL = ("meta", "partitions", "producers", "markers", "groups")


def create(connection: sqlite3.Connection) -> None:
    """All tables in an empty database, in one transaction: a crash leaves it empty."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in TABLES.values():
        connection.execute(statement)
    for name in ("commits", "catalog", "producers", "cleaned"):
        put_meta(connection, name, 0, b"")
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def is_empty(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0


def check(connection: sqlite3.Connection, directory: str) -> None:
    """Refuses a database that is no log, a log of another version, and a damaged one."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        raise LogUnavailableError(
            f"{directory}/log.db is not a log of Headrace (application id {application:#x}): choose another directory"
        )
    if version != VERSION:
        raise LogUnavailableError(
            f"the log in {directory} has format version {version}, and this Headrace reads version {VERSION}: use the "
            "Headrace that wrote it, or a new directory"
        )
    if dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")) != TABLES:
        raise broken("the schema")
    for table in _SMALL:
        problems = [text for (text,) in connection.execute(f"PRAGMA integrity_check({table})")]
        if problems != ["ok"]:
            raise LogCorruptedError(
                f"the table {table} in {directory}/log.db is damaged ({problems[0]}): restore it from a copy",
                file=f"{directory}/log.db",
            )


# ------------------------------------------------------------------------------------------------------------- meta
def meta(connection: sqlite3.Connection, name: str) -> tuple[int, bytes]:
    """A fact about the whole log, and its version."""
    row = connection.execute("SELECT version, value, seal FROM meta WHERE name = ?", (name,)).fetchone()
    if row is None or row[2] != seal(name, row[0], row[1]):
        raise broken(f"the row {name!r} of the table meta")
    return row[0], row[1]


def meta_version(connection: sqlite3.Connection, name: str) -> int:
    row = connection.execute("SELECT version FROM meta WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise broken(f"the row {name!r} of the table meta")
    return row[0]


def put_meta(connection: sqlite3.Connection, name: str, version: int, value: bytes) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO meta VALUES (?, ?, ?, ?)", (name, version, value, seal(name, version, value))
    )


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
            self._turns = WriterLock(directory / "lock", PATIENCE)
            try:
                with self._turns.turn():
                    self._writer = self._opened(acknowledged(directory / "acknowledged"))
                    self._mark = AckFile(directory / "acknowledged")
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
                    number = meta(connection, "commits")[0] + 1
                    put_meta(connection, "commits", number, b"")
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
            if is_empty(connection):
                connection.execute(f"PRAGMA page_size = {PAGE}")
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                connection.execute("PRAGMA journal_mode = WAL").fetchone()
                create(connection)
                sync_directory(self.directory)
            self._check(connection, number or 0)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self, connection: sqlite3.Connection, number: int) -> None:
        if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            raise self._damaged("it is not in the mode that it was made in")
        check(connection, str(self.directory))
        found, _ = meta(connection, "commits")
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
