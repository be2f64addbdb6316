"""Appends: records become chunks at the ends of their partitions, and an append that is repeated is stored once.

`prepare` packs items and writes large chunks to files before the transaction. `store_appends` runs inside it. Small
appends that share a transaction also share a chunk.

A row for each producer has its last append, so that a repeated append is recognised. A row for each application has the
last batch that was delivered, its delivery marker; `FileLog.deliver` writes it in the transaction of the outputs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec

from headrace.errors import LogCorruptedError, ProducerFencedError, StateCorruptedError
from headrace.log.chunk_format import NULL_KEYS, OFFSETS, longest_record, pack_parts, read_header, unpack
from headrace.log.embedded import chunks
from headrace.log.embedded.chunks import ChunkFiles, PackedChunk
from headrace.log.embedded.schema import damaged_row, put_meta, read_meta, row_checksum
from headrace.log.embedded.topics import Catalog, TopicEntry
from headrace.log.protocol import Item, ProducerSequence, Records
from headrace.log.validation import check_record_length, damaged_item, is_next_append, item_with_offsets, missing_key
from headrace.model.ids import TopicPartition
from headrace.model.record import Headers

_SMALL_RECORDS, _SMALL_BYTES = 100, 64 << 10  # an item up to this size shares a chunk with others
PreparedItem = tuple[TopicPartition, list[PackedChunk] | Records]  # records of a small item are packed later


@dataclass(frozen=True, slots=True)
class Append:
    """One append, prepared; `now` is the time of the log's clock."""

    items: list[PreparedItem]
    now: int
    sequence: ProducerSequence | None = None


def prepare(items: Sequence[Item], files: ChunkFiles) -> list[PreparedItem]:
    """Does all that can be done before the transaction: packs items, and writes large chunks to files."""
    return [(TopicPartition(*at), _prepare_item(TopicPartition(*at), records, files)) for at, records in items]


def _prepare_item(at: TopicPartition, records: Records | bytes, files: ChunkFiles) -> list[PackedChunk] | Records:
    if isinstance(records, Records):
        if len(records) <= _SMALL_RECORDS and sum(map(len, filter(None, records.values))) <= _SMALL_BYTES:
            return records
        return _pack_chunks(records, files)
    try:
        header = read_header(records)
    except StateCorruptedError as error:
        raise damaged_item(at, error) from None
    if header.flags & OFFSETS:
        raise item_with_offsets(at)
    return [PackedChunk.create(records, files)] if header.records else []


def _pack_chunks(records: Records, files: ChunkFiles) -> list[PackedChunk]:
    return [PackedChunk.create(packed, files) for packed in pack_parts(records)]


def store_appends(
    connection: sqlite3.Connection, catalog: Catalog, files: ChunkFiles, appends: list[Append]
) -> list[list[int]]:
    """Stores appends in a transaction. Returns the first offset of each item of each append."""
    producers = [append.sequence.producer_id for append in appends if append.sequence is not None]
    if len(set(producers)) < len(producers):
        raise ValueError("two appends of one producer in one call: group commit retries them one by one")
    writers: dict[TopicPartition, PartitionWriter] = {}
    now = max(append.now for append in appends)

    def store(append: Append) -> list[int]:
        sequence, offsets = append.sequence, list[int]()
        if sequence is not None and (before := find_stored_append(connection, sequence)) is not None:
            return before
        for at, records in append.items:
            if at not in writers:
                writers[at] = PartitionWriter(connection, catalog.topic_of(at), at, files)
            offsets.append(writers[at].append(records, now))
        if sequence is not None:
            put_producer(connection, sequence, offsets, append.now)
        return offsets

    answers = [store(append) for append in appends]
    for writer in writers.values():
        writer.finish(now)
    return answers


class PartitionWriter:
    """Appends to the end of a partition within a transaction."""

    def __init__(
        self, connection: sqlite3.Connection, entry: TopicEntry, at: TopicPartition, files: ChunkFiles
    ) -> None:
        self._connection, self._entry, self._at, self._files = connection, entry, at, files
        self._row = chunks.read_partition(connection, entry.number, at.partition)
        self._small: list[Records] = []  # not packed yet
        self._end = self._row.end  # includes `_small`

    def append(self, records: list[PackedChunk] | Records, now: int) -> int:
        """Returns the offset of the first record."""
        base = self._end
        if isinstance(records, Records):
            self._small.append(records)
            self._end += len(records)
        else:
            self._pack_small(now)
            for chunk in records:
                self._put(chunk, now)
        return base

    def finish(self, now: int) -> None:
        self._pack_small(now)
        chunks.put_partition(self._connection, self._row)

    def _pack_small(self, now: int) -> None:
        if self._small:
            for chunk in _pack_chunks(concatenate(self._small), self._files):
                self._put(chunk, now)
            self._small.clear()

    def _put(self, chunk: PackedChunk, now: int) -> None:
        _check_chunk(self._entry, self._at, chunk, self._files)
        base, self._end = self._row.end, self._row.end + chunk.header.records
        append_time = now if self._entry.parsed_config.uses_append_time else None
        number, partition = self._entry.number, self._at.partition
        chunks.put_chunk(self._connection, chunk, number, partition, base, self._end, append_time=append_time)
        self._row = self._row._replace(end=self._end)


def _check_chunk(entry: TopicEntry, at: TopicPartition, chunk: PackedChunk, files: ChunkFiles) -> None:
    """Raises if the topic does not accept the records of a chunk."""
    config = entry.parsed_config
    if config.compacts and chunk.header.flags & NULL_KEYS:
        raise missing_key(at.topic)
    if chunk.header.longest > config.max_message_bytes:  # an upper bound: the records have to be measured
        check_record_length(at.topic, longest_record(unpack(chunk.read(files))[0]), config.max_message_bytes)
    if chunk.file is not None and not files.has(chunk.file):
        raise LogCorruptedError(f"the file {chunk.file} for {at} vanished before its commit: append again", at=at)


def concatenate(parts: list[Records]) -> Records:
    """
    >>> concatenate([Records([b"a"], [b"1"], [1]), Records([b"b"], [b"2"], [2])]).keys
    [b'a', b'b']
    """
    if len(parts) == 1:
        return parts[0]
    headers: list[Headers] | None = None
    if any(part.headers is not None for part in parts):
        headers = [pairs for part in parts for pairs in part.headers or [()] * len(part)]
    keys, values = chain(*(part.keys for part in parts)), chain(*(part.values for part in parts))
    return Records([*keys], [*values], [*chain(*(part.timestamps for part in parts))], headers)


# -------------------------------------------------------------------------------------------------------- producers
def new_producer(connection: sqlite3.Connection, now: int) -> int:
    producer_id = read_meta(connection, "producers")[0] + 1
    put_meta(connection, "producers", producer_id, b"")
    put_producer(connection, ProducerSequence(producer_id, -1), [], now)
    return producer_id


def put_producer(connection: sqlite3.Connection, sequence: ProducerSequence, offsets: list[int], now: int) -> None:
    row = (*sequence, msgspec.json.encode(offsets), now)
    connection.execute("INSERT OR REPLACE INTO producers VALUES (?, ?, ?, ?, ?)", (*row, row_checksum(*row)))


def find_stored_append(connection: sqlite3.Connection, sequence: ProducerSequence) -> list[int] | None:
    """Returns the offsets of an append that is stored already; None if it is the next one of its producer."""
    query = "SELECT id, sequence, offsets, used, seal FROM producers WHERE id = ?"
    row = connection.execute(query, (sequence.producer_id,)).fetchone()
    if row is None:
        raise ProducerFencedError(
            f"the producer {sequence.producer_id} is unknown, or was idle for more than a day: make a new one"
        )
    if row[4] != row_checksum(*row[:4]):
        raise damaged_row(f"the row of producer {sequence.producer_id}")
    return None if is_next_append(sequence, row[1]) else msgspec.json.decode(row[2], type=list[int])


def delete_idle_producers(connection: sqlite3.Connection, before: int) -> None:
    """Deletes producers that appended nothing since a time."""
    connection.execute("DELETE FROM producers WHERE used < ?", (before,))


# --------------------------------------------------------------------------------------------------------- markers
def read_marker(connection: sqlite3.Connection, application: str) -> int:
    """Returns the number of the last batch that was delivered for an application, or -1."""
    row = connection.execute("SELECT number, seal FROM markers WHERE application = ?", (application,)).fetchone()
    if row is None:
        return -1
    if row[1] != row_checksum(application, row[0]):
        raise damaged_row(f"the row of the last delivery of {application!r}")
    return row[0]


def put_marker(connection: sqlite3.Connection, application: str, number: int | None) -> None:
    """Sets the marker; None removes it."""
    connection.execute("DELETE FROM markers WHERE application = ?", (application,))
    if number is not None:
        row = (application, number)
        connection.execute("INSERT INTO markers VALUES (?, ?, ?)", (*row, row_checksum(*row)))
