"""Reads chunks, and checks them: a record that does not match its checksum, or a missing chunk, is an error.

`find_damage` reads the whole log and returns everything that differs from what was written.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.errors import LogCorruptedError, StateCorruptedError, StreamsError
from headrace.log.chunk_format import read_checksum, unpack
from headrace.log.embedded import chunks, consumer_groups
from headrace.log.embedded.append import read_marker
from headrace.log.embedded.chunks import ChunkFiles, ChunkRow, PartitionRow
from headrace.log.embedded.database import Database
from headrace.log.protocol import Chunk, Extent, Records
from headrace.log.validation import check_range, check_topic_id
from headrace.model.ids import TopicPartition

_MAX_ROWS, _MAX_BYTES = 256, 4 << 20  # of one snapshot


@dataclass(frozen=True, slots=True)
class ChunkReader:
    """Reads the records of a log."""

    database: Database
    files: ChunkFiles

    def extent(self, at: TopicPartition, topic_id: str | None = None) -> Extent:
        with self.database.reading() as connection:
            return self._partition(connection, at, topic_id).extent

    def read(self, at: TopicPartition, start: int, end: int, topic_id: str | None = None) -> Iterator[Chunk]:
        """Reads the records between two offsets that exist, chunk by chunk."""
        position = start
        missing_file: str | None = None
        while position < end:
            for row, packed in self._read_rows(at, position, end, topic_id):
                try:
                    chunk = self.unpack(row, packed, at)
                except FileNotFoundError:
                    # The cleaner may have removed the file since the row was read: then the next snapshot differs.
                    if row.file == missing_file:
                        path = str(self.files.directory / str(row.file))
                        raise damaged(at, row.base, row.end, f"the file {path} is missing", path) from None
                    missing_file = row.file
                    break
                part = cut_chunk(chunk, position, end)
                position = row.end
                if len(part):
                    yield part

    def _read_rows(
        self, at: TopicPartition, position: int, end: int, topic_id: str | None
    ) -> list[tuple[ChunkRow, bytes | None]]:
        """Returns the chunks from `position` on, as many as the limits of one snapshot allow."""
        found: list[tuple[ChunkRow, bytes | None]] = []
        size, reached = 0, position
        with self.database.reading() as connection:
            partition = self._partition(connection, at, topic_id)
            check_range(at, partition.extent, position, end)
            for row, packed in chunks.read_packed_chunks(connection, *partition[:2], position, end):
                if (found and row.base != reached) or not row.base <= reached < row.end:
                    break
                found.append((row, packed))
                size, reached = size + row.size, row.end
                if size > _MAX_BYTES or len(found) == _MAX_ROWS:
                    break
        if not found or (reached < end and size <= _MAX_BYTES and len(found) < _MAX_ROWS):
            path = str(self.database.path)
            raise damaged(at, reached, end, f"{path} has no chunk that begins there", path)
        return found

    def unpack(self, row: ChunkRow, packed: object, at: TopicPartition) -> Chunk:
        """Checks and unpacks a chunk. `packed` is the value in the database, which may be anything if it is damaged."""
        if row.file is not None:
            packed = self.files.read(row.file)
        try:
            if not isinstance(packed, bytes) or len(packed) != row.size or read_checksum(packed) != row.checksum:
                found = f"{len(packed)} other bytes" if isinstance(packed, bytes) else "no bytes"
                raise StateCorruptedError(f"{found} instead of the {row.size} that were written")  # noqa: TRY301
            records, offsets = unpack(packed)
        except StateCorruptedError as error:
            where = f"the file chunks/{row.file}" if row.file else "log.db"
            raise damaged(at, row.base, row.end, f"{where} is damaged ({error})", row.file or "log.db") from None
        if row.append_time is not None:
            records = Records(records.keys, records.values, [row.append_time] * len(records), records.headers)
        return Chunk(range(row.base, row.end) if offsets is None else offsets, records)

    def offset_for_time(self, at: TopicPartition, time: int) -> int | None:
        """Returns the offset of the first record at or after a time."""
        with self.database.reading() as connection:
            partition = self._partition(connection, at, None)
            rows = chunks.read_chunks(connection, *partition[:2], partition.earliest)
            first = next((row for row in rows if row.last_time >= time), None)
        if first is not None:
            for chunk in self.read(at, max(first.base, partition.earliest), partition.end):
                for offset, timestamp in zip(chunk.offsets, chunk.records.timestamps, strict=True):
                    if timestamp >= time:
                        return offset
        return None

    def _partition(self, connection: sqlite3.Connection, at: TopicPartition, topic_id: str | None) -> PartitionRow:
        entry = self.database.catalog(connection).topic_of(at)
        check_topic_id(at.topic, entry.id, topic_id)
        return chunks.read_partition(connection, entry.number, at.partition)


def cut_chunk(chunk: Chunk, start: int, end: int) -> Chunk:
    """Returns the part of a chunk between two offsets.

    >>> cut_chunk(Chunk([3, 7, 9], Records([b"a", b"b", b"c"], [b""] * 3, [0, 0, 0])), 4, 9).offsets
    [7]
    """
    low, high = bisect_left(chunk.offsets, start), bisect_left(chunk.offsets, end)
    if low == 0 and high == len(chunk.offsets):
        return chunk
    return Chunk(chunk.offsets[low:high], chunk.records.slice(low, high))


def damaged(at: TopicPartition, start: int, end: int, how: str, file: str) -> LogCorruptedError:
    return LogCorruptedError(
        f"topic {at.topic!r}, partition {at.partition}, offsets {start} to {end - 1}: {how}. Restore the log's "
        f"directory from a copy, or give up all records of the partition up to it: delete_records({{{at!r}: {end}}})",
        at=at, offsets=range(start, end), file=file,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- verify
def find_damage(reader: ChunkReader) -> list[str]:
    """Returns a sentence for each damaged part of a log."""
    try:
        with reader.database.reading() as connection:
            problems = [f"log.db: {text}" for (text,) in connection.execute("PRAGMA integrity_check") if text != "ok"]
            topics = reader.database.catalog(connection).topics
            problems += _verify_rows(connection)
    except StreamsError as error:
        return [str(error)]
    for name, entry in topics.items():
        for number in range(entry.partitions):
            problems += _verify_partition(reader, TopicPartition(name, number))
    return problems


def _verify_rows(connection: sqlite3.Connection) -> Iterator[str]:
    try:
        consumer_groups.load_all(connection)
        for (application,) in connection.execute("SELECT application FROM markers").fetchall():
            read_marker(connection, application)
    except LogCorruptedError as error:
        yield str(error)


def _verify_partition(reader: ChunkReader, at: TopicPartition) -> Iterator[str]:
    """Reads every chunk of a partition by itself, so that each damaged one is reported."""
    try:
        extent = reader.extent(at)
        with reader.database.reading() as connection:
            entry = reader.database.catalog(connection).topic_of(at)
            rows = list(chunks.read_chunks(connection, entry.number, at.partition, extent.earliest))
    except StreamsError as error:
        yield str(error)
        return
    position = extent.earliest
    for row in rows:
        if row.base > position:
            yield from _verify_range(reader, at, position, row.base)
        yield from _verify_range(reader, at, max(row.base, extent.earliest), min(row.end, extent.end))
        position = row.end
    if position < extent.end:
        yield from _verify_range(reader, at, position, extent.end)


def _verify_range(reader: ChunkReader, at: TopicPartition, start: int, end: int) -> Iterator[str]:
    try:
        for _ in reader.read(at, start, end):
            pass
    except LogCorruptedError as error:
        yield str(error)
