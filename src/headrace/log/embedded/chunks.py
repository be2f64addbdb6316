"""Chunks that are too large for the database, each in a file of its own.

Rows of partitions and of chunks: where records lie. Every row is checked against its seal when it is read.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from headrace.log.embedded.database import broken, seal, sync_directory, unavailable
from headrace.log.embedded.topics import Entry


class ChunkFiles:
    """The directory `chunks`. A file is on disk, whole, before a row names it, and it goes after the row."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, packed: bytes) -> str:
        """Gives the name of a new file."""
        name = f"{uuid4().hex}.chunk"
        try:
            with (self.directory / name).open("xb") as file:
                file.write(packed)
                file.flush()
                os.fsync(file.fileno())
            sync_directory(self.directory)
        except OSError as error:
            with suppress(OSError):
                self.remove([name])
            raise unavailable(self.directory, error) from error
        return name

    def read(self, name: str) -> bytes:
        """The bytes of a file; one that is not there is a `FileNotFoundError`."""
        try:
            return (self.directory / name).read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise unavailable(self.directory, error) from error

    def has(self, name: str) -> bool:
        return (self.directory / name).exists()

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            (self.directory / name).unlink(missing_ok=True)

    def written_before(self, moment: float) -> set[str]:
        """The names of files that were last written before a moment, in seconds since the epoch."""
        return {entry.name for entry in os.scandir(self.directory) if entry.stat().st_mtime < moment}


class PartitionRow(NamedTuple):
    """A partition: its earliest offset, its end, and up to where it was cleaned."""

    topic: int
    partition: int
    earliest: int
    upto: int
    cleaned: int


class ChunkRow(NamedTuple):
    """A chunk: the offsets that it covers, and where its records are.

    `stamped` is the time of all its records if the log gave it; `horizon` the time from which its tombstones may go.
    """

    topic: int
    partition: int
    base: int
    upto: int
    last_time: int
    stamped: int | None
    horizon: int | None
    size: int
    digest: int
    body: int | None
    file: str | None


_CHUNK = "topic, partition, base, upto, last_time, stamped, horizon, size, digest, c.body, file, seal"
_AT = "topic = ? AND partition = ?"
_FROM = f"base >= (SELECT coalesce(max(base), 0) FROM chunks WHERE {_AT} AND base <= ?)"  # noqa: S608 - no data


# ------------------------------------------------------------------------------------------------------- partitions
def put_partition(connection: sqlite3.Connection, row: PartitionRow) -> None:
    connection.execute("INSERT OR REPLACE INTO partitions VALUES (?, ?, ?, ?, ?, ?)", (*row, seal(*row)))


def partition(connection: sqlite3.Connection, topic: int, number: int) -> PartitionRow:
    query = f"SELECT * FROM partitions WHERE {_AT}"  # noqa: S608 - no data in it, as below
    return _checked_partition(connection.execute(query, (topic, number)).fetchone(), topic, number)


def partitions(connection: sqlite3.Connection, entry: Entry) -> list[PartitionRow]:
    """All partitions of a topic."""
    query = "SELECT * FROM partitions WHERE topic = ? ORDER BY partition"
    rows = {row[1]: row for row in connection.execute(query, (entry.number,))}
    return [_checked_partition(rows.get(number), entry.number, number) for number in range(entry.partitions)]


def set_up(connection: sqlite3.Connection, before: Entry | None, after: Entry) -> None:
    """The rows of new partitions; where compaction is new, everything is to be compacted."""
    for number in range(before.partitions if before else 0, after.partitions):
        put_partition(connection, PartitionRow(after.number, number, 0, 0, 0))
    if before is not None and after.rules.compacts and not before.rules.compacts:
        for row in partitions(connection, after):
            put_partition(connection, row._replace(cleaned=row.earliest))


def tear_down(connection: sqlite3.Connection, entry: Entry) -> None:
    """Deletes the rows of all partitions; their chunks are then nobody's."""
    connection.execute("DELETE FROM partitions WHERE topic = ?", (entry.number,))


def _checked_partition(row: tuple[int, ...] | None, topic: int, number: int) -> PartitionRow:
    if row is None or row[5] != seal(*row[:5]):
        raise broken(f"the row of partition {number} of topic number {topic}")
    return PartitionRow(*row[:5])


# ----------------------------------------------------------------------------------------------------------- chunks
def put_chunk(connection: sqlite3.Connection, row: ChunkRow, packed: bytes | None) -> None:
    """Stores a chunk; without bytes, they are in the row's file."""
    if packed is not None:
        row = row._replace(body=connection.execute("INSERT INTO bodies (body) VALUES (?)", (packed,)).lastrowid)
    connection.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, seal(*row)))


def delete_chunks(connection: sqlite3.Connection, rows: list[ChunkRow]) -> list[str]:
    """Deletes chunks; gives the names of their files, which may go after the commit."""
    connection.executemany(
        "DELETE FROM chunks WHERE topic = ? AND partition = ? AND base = ?", [row[:3] for row in rows]
    )
    connection.executemany("DELETE FROM bodies WHERE id = ?", [(row.body,) for row in rows if row.body is not None])
    return [row.file for row in rows if row.file is not None]


def chunks(connection: sqlite3.Connection, topic: int, number: int, start: int = 0) -> Iterator[ChunkRow]:
    """The chunks of a partition from the one on that holds an offset, by offset."""
    query = f"SELECT {_CHUNK} FROM chunks c WHERE {_AT} AND {_FROM} ORDER BY base"  # noqa: S608
    for row in connection.execute(query, (topic, number, topic, number, start)):
        yield _checked_chunk(row)


def packed_chunks(
    connection: sqlite3.Connection, topic: int, number: int, start: int, end: int
) -> Iterator[tuple[ChunkRow, bytes | None]]:
    """The same up to an offset, with their bytes where these are in the database."""
    query = (
        f"SELECT {_CHUNK}, b.body FROM chunks c LEFT JOIN bodies b ON b.id = c.body "  # noqa: S608
        f"WHERE {_AT} AND {_FROM} AND base < ? ORDER BY base"
    )
    for *row, packed in connection.execute(query, (topic, number, topic, number, start, end)):
        yield _checked_chunk(tuple(row)), packed


def dead_chunks(connection: sqlite3.Connection, living: Mapping[int, Entry], limit: int) -> list[ChunkRow]:
    """Some chunks of deleted topics, and some that are before the earliest offset of their partition."""
    rows: list[ChunkRow] = []
    for topic in _topics(connection):
        if topic not in living:
            query = f"SELECT {_CHUNK} FROM chunks c WHERE topic = ? LIMIT ?"  # noqa: S608
            rows += map(_checked_chunk, connection.execute(query, (topic, limit - len(rows))))
            continue
        for row in partitions(connection, living[topic]):
            query = f"SELECT {_CHUNK} FROM chunks c WHERE {_AT} AND base < ? AND upto <= ? LIMIT ?"  # noqa: S608
            bounds = (topic, row.partition, row.earliest, row.earliest, limit - len(rows))
            rows += map(_checked_chunk, connection.execute(query, bounds))
    return rows


def _topics(connection: sqlite3.Connection) -> Iterator[int]:
    """The numbers of topics that have chunks, without reading all of these."""
    topic = -1
    while topic is not None:
        (topic,) = connection.execute("SELECT min(topic) FROM chunks WHERE topic > ?", (topic,)).fetchone()
        if topic is not None:
            yield topic


def files(connection: sqlite3.Connection) -> set[str]:
    """The names of all files that hold chunks."""
    return {name for (name,) in connection.execute("SELECT file FROM chunks WHERE file IS NOT NULL")}


def _checked_chunk(row: tuple[object, ...]) -> ChunkRow:
    if row[11] != seal(*row[:11]):
        raise broken(f"the row of the chunk at offset {row[2]} in partition {row[1]} of topic number {row[0]}")
    return ChunkRow(*row[:11])  # pyright: ignore[reportArgumentType]
