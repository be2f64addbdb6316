"""The tables of the embedded log, and whether a database has them.

    DIR/log.db            the database, in WAL mode (log.db-wal, log.db-shm while it is open)
    DIR/chunks/*.chunk    packed records that are too large for it, one chunk each
    DIR/acknowledged      the number of the last commit that somebody was told of (see mark.py)
    DIR/lock, cleaning    held by whoever writes, and by whoever cleans

A row of `chunks` covers the offsets from `base` up to `upto`, without holes between rows, though compaction may have
taken records out. Its records are in `bodies`, or in a file. What must not vanish unnoticed is one row of `meta` or
`groups`, or known from there. Every row has a seal (see seals.py).
"""

from __future__ import annotations

import sqlite3

from headrace.log.errors import LogCorruptedError, LogUnavailableError
from headrace.log.seals import broken, seal

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
