"""Chunks on disk: the rows of partitions and chunks, and the files of large chunks.

A chunk is stored as a row of the table `chunks`. Its bytes (log/chunk_format.py) are in the table `bodies`, or in a
file of their own if they are large. Every row is checked against its checksum when it is read.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from headrace.directories import open_file, read_file, sync_directory
from headrace.log.chunk_format import ChunkHeader, read_checksum, read_header
from headrace.log.embedded.database import unavailable
from headrace.log.embedded.schema import damaged_row, row_checksum
from headrace.log.embedded.topics import Catalog, TopicEntry
from headrace.log.protocol import Extent

LARGE = 4 << 20  # bytes: larger chunks are files, because SQLite would write them twice


class ChunkFiles:
    """The directory `chunks`. A file is on disk before a row names it, and is deleted after the row."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, packed: bytes) -> str:
        """Writes a new file and returns its name."""
        name = f"{uuid4().hex}.chunk"
        try:
            with os.fdopen(open_file(self.directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
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
        """Reads a file; raises `FileNotFoundError` if it does not exist."""
        try:
            return read_file(self.directory / name)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise unavailable(self.directory, error) from error

    def has(self, name: str) -> bool:
        return (self.directory / name).exists()

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            (self.directory / name).unlink(missing_ok=True)

    def written_before(self, time: float) -> set[str]:
        """Returns the names of files that were last written before a time, in seconds since the epoch."""
        return {entry.name for entry in os.scandir(self.directory) if entry.stat().st_mtime < time}


@dataclass(frozen=True, slots=True)
class PackedChunk:
    """A packed chunk that has no row yet. A large one is already in a file, and `packed` is None."""

    packed: bytes | None
    file: str | None
    header: ChunkHeader
    checksum: int
    size: int

    @classmethod
    def create(cls, packed: bytes, files: ChunkFiles) -> PackedChunk:
        header = read_header(packed)
        file = files.write(packed) if len(packed) > LARGE else None
        return cls(None if file else packed, file, header, read_checksum(packed), len(packed))

    def read(self, files: ChunkFiles) -> bytes:
        return self.packed or files.read(self.file or "")


class PartitionRow(NamedTuple):
    """A partition: its earliest offset, its end, and up to where it is compacted or merged."""

    topic: int
    partition: int
    earliest: int
    end: int
    cleaned: int

    @property
    def extent(self) -> Extent:
        return Extent(self.earliest, self.end)


class ChunkRow(NamedTuple):
    """A chunk: the offsets that it covers, and where its bytes are.

    `append_time` is the timestamp of all its records if the topic uses the append time. From the time `horizon` on its
    tombstones may be removed.
    """

    topic: int
    partition: int
    base: int
    end: int
    last_time: int
    append_time: int | None
    horizon: int | None
    size: int
    checksum: int
    body: int | None
    file: str | None


_COLUMNS = "topic, partition, base, upto, last_time, stamped, horizon, size, digest, c.body, file, seal"
_AT = "topic = ? AND partition = ?"
_FROM = f"base >= (SELECT coalesce(max(base), 0) FROM chunks WHERE {_AT} AND base <= ?)"  # noqa: S608 - no data


# ------------------------------------------------------------------------------------------------------- partitions
def put_partition(connection: sqlite3.Connection, row: PartitionRow) -> None:
    connection.execute("INSERT OR REPLACE INTO partitions VALUES (?, ?, ?, ?, ?, ?)", (*row, row_checksum(*row)))


def read_partition(connection: sqlite3.Connection, topic: int, partition: int) -> PartitionRow:
    query = f"SELECT * FROM partitions WHERE {_AT}"  # noqa: S608 - no data in it, as below
    return _check_partition(connection.execute(query, (topic, partition)).fetchone(), topic, partition)


def read_partitions(connection: sqlite3.Connection, entry: TopicEntry) -> list[PartitionRow]:
    """Returns all partitions of a topic."""
    query = "SELECT * FROM partitions WHERE topic = ? ORDER BY partition"
    rows = {row[1]: row for row in connection.execute(query, (entry.number,))}
    return [_check_partition(rows.get(number), entry.number, number) for number in range(entry.partitions)]


def create_partitions(connection: sqlite3.Connection, before: TopicEntry | None, after: TopicEntry) -> None:
    """Inserts the rows of new partitions. If the topic becomes compacted, marks all of its records as not compacted."""
    for number in range(before.partitions if before else 0, after.partitions):
        put_partition(connection, PartitionRow(after.number, number, 0, 0, 0))
    if before is not None and after.parsed_config.compacts and not before.parsed_config.compacts:
        for row in read_partitions(connection, after):
            put_partition(connection, row._replace(cleaned=row.earliest))


def truncate_partition(connection: sqlite3.Connection, row: PartitionRow, before: int) -> int:
    """Moves the earliest offset of a partition forward. Returns the earliest offset."""
    earliest = max(row.earliest, before)
    put_partition(connection, row._replace(earliest=earliest, cleaned=max(row.cleaned, earliest)))
    return earliest


def delete_partitions(connection: sqlite3.Connection, entry: TopicEntry) -> None:
    """Deletes the rows of all partitions of a topic. The cleaner deletes their chunks."""
    connection.execute("DELETE FROM partitions WHERE topic = ?", (entry.number,))


def _check_partition(row: tuple[int, ...] | None, topic: int, number: int) -> PartitionRow:
    if row is None or row[5] != row_checksum(*row[:5]):
        raise damaged_row(f"the row of partition {number} of topic number {topic}")
    return PartitionRow(*row[:5])


# ----------------------------------------------------------------------------------------------------------- chunks
def put_chunk(
    connection: sqlite3.Connection,
    chunk: PackedChunk,
    topic: int,
    partition: int,
    base: int,
    end: int,
    *,
    append_time: int | None = None,
    horizon: int | None = None,
) -> None:
    """Stores a chunk that covers the offsets from `base` to `end`."""
    body = None
    if chunk.packed is not None:
        body = connection.execute("INSERT INTO bodies (body) VALUES (?)", (chunk.packed,)).lastrowid
    last_time = chunk.header.last_time if append_time is None else append_time
    row = ChunkRow(
        topic, partition, base, end, last_time, append_time, horizon, chunk.size, chunk.checksum, body, chunk.file
    )
    connection.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, row_checksum(*row)))


def delete_chunks(connection: sqlite3.Connection, rows: list[ChunkRow]) -> list[str]:
    """Deletes chunks. Returns the names of their files, to be removed after the commit."""
    connection.executemany(
        "DELETE FROM chunks WHERE topic = ? AND partition = ? AND base = ?", [row[:3] for row in rows]
    )
    connection.executemany("DELETE FROM bodies WHERE id = ?", [(row.body,) for row in rows if row.body is not None])
    return [row.file for row in rows if row.file is not None]


def read_chunks(connection: sqlite3.Connection, topic: int, partition: int, start: int = 0) -> Iterator[ChunkRow]:
    """Returns the chunks of a partition by offset, from the chunk that contains `start`."""
    query = f"SELECT {_COLUMNS} FROM chunks c WHERE {_AT} AND {_FROM} ORDER BY base"  # noqa: S608
    for row in connection.execute(query, (topic, partition, topic, partition, start)):
        yield _check_chunk(row)


def read_packed_chunks(
    connection: sqlite3.Connection, topic: int, partition: int, start: int, end: int
) -> Iterator[tuple[ChunkRow, bytes | None]]:
    """Does what `read_chunks` does up to offset `end`, with the bytes of chunks that are in the database."""
    query = (
        f"SELECT {_COLUMNS}, b.body FROM chunks c LEFT JOIN bodies b ON b.id = c.body "  # noqa: S608
        f"WHERE {_AT} AND {_FROM} AND base < ? ORDER BY base"
    )
    for *row, packed in connection.execute(query, (topic, partition, topic, partition, start, end)):
        yield _check_chunk(tuple(row)), packed


def find_unreadable_chunks(connection: sqlite3.Connection, catalog: Catalog, limit: int) -> list[ChunkRow]:
    """Returns up to `limit` chunks of deleted topics, or before the earliest offset of their partition."""
    entries = {entry.number: entry for entry in catalog.topics.values()}
    rows: list[ChunkRow] = []
    for topic in _topic_numbers(connection):
        if topic not in entries:
            query = f"SELECT {_COLUMNS} FROM chunks c WHERE topic = ? LIMIT ?"  # noqa: S608
            rows += map(_check_chunk, connection.execute(query, (topic, limit - len(rows))))
            continue
        for row in read_partitions(connection, entries[topic]):
            query = f"SELECT {_COLUMNS} FROM chunks c WHERE {_AT} AND base < ? AND upto <= ? LIMIT ?"  # noqa: S608
            bounds = (topic, row.partition, row.earliest, row.earliest, limit - len(rows))
            rows += map(_check_chunk, connection.execute(query, bounds))
    return rows


def _topic_numbers(connection: sqlite3.Connection) -> Iterator[int]:
    """Returns the numbers of topics that have chunks, without a scan of all chunks."""
    topic = -1
    while topic is not None:
        (topic,) = connection.execute("SELECT min(topic) FROM chunks WHERE topic > ?", (topic,)).fetchone()
        if topic is not None:
            yield topic


def chunk_file_names(connection: sqlite3.Connection) -> set[str]:
    """Returns the names of all files that rows refer to."""
    return {name for (name,) in connection.execute("SELECT file FROM chunks WHERE file IS NOT NULL")}


def _check_chunk(row: tuple[object, ...]) -> ChunkRow:
    if row[11] != row_checksum(*row[:11]):
        raise damaged_row(f"the row of the chunk at offset {row[2]} in partition {row[1]} of topic number {row[0]}")
    return ChunkRow(*row[:11])  # pyright: ignore[reportArgumentType]
