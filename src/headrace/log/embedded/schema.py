"""The files and tables of an embedded log, and the checksums of rows.

    DIR/log.db            the database, in WAL mode (log.db-wal, log.db-shm while it is open)
    DIR/chunks/*.chunk    packed chunks that are too large for the database, one in each file
    DIR/acknowledged      the number of the last commit that was acknowledged (database.AckFile)
    DIR/lock              held by the writer (database.WriterLock)
    DIR/cleaning          held by the cleaner (cleaner.LogCleaner)

| table      | a row for each | content |
|------------|----------------|---------|
| meta       | fact           | commits: their number; catalog: topics as JSON; producers: last id; cleaned: last time |
| partitions | partition      | earliest and end offset (`upto`), and the offset up to which it is `cleaned` |
| chunks     | chunk          | the offsets `base` to `upto`, and where its bytes are: a row of `bodies`, or a file |
| bodies     | chunk          | its bytes, packed by log/chunk_format.py |
| producers  | producer       | its last sequence number, the offsets that this append got, and when it was used |
| markers    | application    | the number of the last batch that was delivered |
| groups     | consumer group | members and committed offsets as JSON |

Chunks of a partition follow each other without gaps; compaction removes records from chunks, not offsets.

SQLite notices damage to its own structure, but not to the contents of rows. Therefore every row has a checksum in its
column `seal`. A lost row is noticed, too: `meta` has the topics and the number of producers and commits, and the
checkpoint knows which marker an application must have.
"""

from __future__ import annotations

import sqlite3
from zlib import crc32

from headrace.errors import LogCorruptedError, LogUnavailableError

APPLICATION_ID = 0x48524C47  # "HRLG", in the header of the database file
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
_SMALL_TABLES = ("meta", "partitions", "producers", "markers", "groups")


def row_checksum(*fields: object) -> int:
    """Returns the checksum of the fields of a row: numbers, texts, bytes and None.

    >>> row_checksum("orders", 1) == row_checksum("orders", 1), row_checksum("orders", 1) == row_checksum("orders", 2)
    (True, False)
    """
    return crc32(repr(fields).encode())


def damaged_row(what: str) -> LogCorruptedError:
    return LogCorruptedError(
        f"{what} in log.db is not what was written: the file is damaged. Restore the log's directory from a copy"
    )


def create_tables(connection: sqlite3.Connection) -> None:
    """Creates all tables in one transaction, so that a crash leaves the database empty."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in TABLES.values():
        connection.execute(statement)
    for name in ("commits", "catalog", "producers", "cleaned"):
        put_meta(connection, name, 0, b"")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def is_empty(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0


def check_tables(connection: sqlite3.Connection, directory: str) -> None:
    """Raises for a database that is not a log, a log of another version, and a damaged log."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise LogUnavailableError(
            f"{directory}/log.db is not a log of Headrace (application id {application:#x}): choose another directory"
        )
    if version != VERSION:
        raise LogUnavailableError(
            f"the log in {directory} has format version {version}, and this Headrace reads version {VERSION}: use the "
            "Headrace that wrote it, or a new directory"
        )
    if dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")) != TABLES:
        raise damaged_row("the schema")
    for table in _SMALL_TABLES:
        problems = [text for (text,) in connection.execute(f"PRAGMA integrity_check({table})")]
        if problems != ["ok"]:
            raise LogCorruptedError(
                f"the table {table} in {directory}/log.db is damaged ({problems[0]}): restore it from a copy",
                file=f"{directory}/log.db",
            )


# ------------------------------------------------------------------------------------------------------------- meta
def read_meta(connection: sqlite3.Connection, name: str) -> tuple[int, bytes]:
    """Returns the version and the value of a row of `meta`."""
    row = connection.execute("SELECT version, value, seal FROM meta WHERE name = ?", (name,)).fetchone()
    if row is None or row[2] != row_checksum(name, row[0], row[1]):
        raise damaged_row(f"the row {name!r} of the table meta")
    return row[0], row[1]


def read_meta_version(connection: sqlite3.Connection, name: str) -> int:
    """Returns only the version, which is faster where the value is large. The checksum is not checked."""
    row = connection.execute("SELECT version FROM meta WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise damaged_row(f"the row {name!r} of the table meta")
    return row[0]


def put_meta(connection: sqlite3.Connection, name: str, version: int, value: bytes) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO meta VALUES (?, ?, ?, ?)", (name, version, value, row_checksum(name, version, value))
    )
