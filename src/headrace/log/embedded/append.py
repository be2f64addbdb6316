"""Records on their way into the log: packed before it is one's turn, if they are many.

Appends: what they store, all of it or nothing. Small ones that come together become one chunk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from headrace.errors import LogCorruptedError, RecordTooLargeError, StateCorruptedError
from headrace.log.embedded import chunks, deduplication
from headrace.log.embedded.chunks import ChunkFiles, ChunkRow
from headrace.log.embedded.topics import Catalog, Entry
from headrace.log.protocol import Item, Records, Stamp
from headrace.log.records import NULL_KEYS, OFFSETS, Label, digest_of, label_of, longest_of, pack_parts
from headrace.model.ids import TopicPartition
from headrace.model.record import Headers

LARGE = 4 << 20  # bytes of a packed chunk: larger ones are files, which SQLite need not write twice
_FEW_RECORDS, _FEW_BYTES = 100, 64 << 10  # of an item that is packed together with others


@dataclass(frozen=True, slots=True)
class PackedChunk:
    """A packed chunk; a large one is in a file already."""

    packed: bytes | None
    file: str | None
    label: Label
    digest: int
    size: int

    @classmethod
    def of(cls, packed: bytes, files: ChunkFiles) -> PackedChunk:
        label = label_of(packed)
        file = files.write(packed) if len(packed) > LARGE else None
        return cls(None if file else packed, file, label, digest_of(packed), len(packed))


Shipment = list[tuple[TopicPartition, list[PackedChunk] | Records]]  # one entry per item


def prepared(items: Sequence[Item], files: ChunkFiles) -> Shipment:
    """All that can be done before it is one's turn: packs items and writes the large ones to disk."""
    return [(TopicPartition(*at), _prepared(TopicPartition(*at), records, files)) for at, records in items]


def _prepared(at: TopicPartition, records: Records | bytes, files: ChunkFiles) -> list[PackedChunk] | Records:
    if isinstance(records, Records):
        if len(records) <= _FEW_RECORDS and sum(map(len, filter(None, records.values))) <= _FEW_BYTES:
            return records
        return parcels_of(records, files)
    try:
        label = label_of(records)
    except StateCorruptedError as error:
        raise LogCorruptedError(f"records for {at} arrived damaged: {error}", at=at) from None
    if label.flags & OFFSETS:
        raise ValueError(f"records for {at} were packed with offsets: the log gives them, when they are appended")
    return [PackedChunk.of(records, files)] if label.records else []


def parcels_of(records: Records, files: ChunkFiles) -> list[PackedChunk]:
    return [PackedChunk.of(packed, files) for packed in pack_parts(records)]


def check(entry: Entry, at: TopicPartition, parcel: PackedChunk, files: ChunkFiles) -> None:
    """Refuses what a topic does not take."""
    rules = entry.rules
    if rules.compacts and parcel.label.flags & NULL_KEYS:
        raise ValueError(f"the topic {at.topic!r} is compacted: every record needs a key, and one of these has none")
    if parcel.label.longest > rules.longest_record:
        packed = files.read(parcel.file) if parcel.packed is None and parcel.file else parcel.packed or b""
        check_length(at.topic, longest_of(packed), rules.longest_record)
    if parcel.file is not None and not files.has(parcel.file):
        raise LogCorruptedError(f"the file {parcel.file} for {at} vanished before its commit: append again", at=at)


def check_length(topic: str, length: int, limit: int) -> None:
    if length > limit:
        raise RecordTooLargeError(
            f"a record of {length} bytes is too large for the topic {topic!r}, whose max.message.bytes is {limit}: "
            "make it smaller, or the limit larger (alter_config)"
        )


@dataclass(frozen=True, slots=True)
class Append:
    """What somebody wants to append; the stamp tells whether it was stored before."""

    shipment: Shipment
    now: int
    stamp: Stamp | None = None


class Tail:
    """The end of a partition, while a transaction adds to it."""

    def __init__(self, connection: sqlite3.Connection, entry: Entry, at: TopicPartition, files: ChunkFiles) -> None:
        self._connection, self._entry, self._at, self._files = connection, entry, at, files
        self._row = chunks.partition(connection, entry.number, at.partition)
        self._loose: list[Records] = []  # not packed yet
        self.end = self._row.upto

    def add(self, records: list[PackedChunk] | Records, now: int) -> int:
        """Gives the offset of the first record."""
        base = self.end
        if isinstance(records, Records):
            self._loose.append(records)
            self.end += len(records)
        else:
            self._pack(now)
            for parcel in records:
                self._put(parcel, now)
        return base

    def close(self, now: int) -> None:
        self._pack(now)
        chunks.put_partition(self._connection, self._row)

    def _pack(self, now: int) -> None:
        if self._loose:
            for parcel in parcels_of(joined(self._loose), self._files):
                self._put(parcel, now)
            self._loose.clear()

    def _put(self, parcel: PackedChunk, now: int) -> None:
        entry, base = self._entry, self._row.upto
        check(entry, self._at, parcel, self._files)
        stamped = now if entry.rules.append_time else None
        last_time = parcel.label.last_time if stamped is None else stamped
        self.end = base + parcel.label.records
        number, partition = entry.number, self._at.partition
        chunk = ChunkRow(
            number, partition, base, self.end, last_time, stamped, None, parcel.size, parcel.digest, None, parcel.file
        )
        chunks.put_chunk(self._connection, chunk, parcel.packed)
        self._row = self._row._replace(upto=self.end)


def joined(parts: list[Records]) -> Records:
    """Records one after the other.

    >>> joined([Records([b"a"], [b"1"], [1]), Records([b"b"], [b"2"], [2])]).keys
    [b'a', b'b']
    """
    if len(parts) == 1:
        return parts[0]
    headers: list[Headers] | None = None
    if any(part.headers is not None for part in parts):
        headers = [pairs for part in parts for pairs in part.headers or [()] * len(part)]
    keys, values = chain(*(part.keys for part in parts)), chain(*(part.values for part in parts))
    return Records([*keys], [*values], [*chain(*(part.timestamps for part in parts))], headers)


def store(
    connection: sqlite3.Connection, catalog: Catalog, appends: list[Append], files: ChunkFiles
) -> list[list[int]]:
    """Puts records at the ends of their partitions; gives the first offset of each item of each append."""
    producers = [append.stamp.producer for append in appends if append.stamp is not None]
    if len(set(producers)) < len(producers):
        raise ValueError("one producer, two appends at a time: each is stored by itself")
    tails: dict[TopicPartition, Tail] = {}
    now = max(append.now for append in appends)

    def stored(append: Append) -> list[int]:
        stamp, offsets = append.stamp, list[int]()
        if stamp is not None and (before := deduplication.stored_before(connection, stamp)) is not None:
            return before
        for at, records in append.shipment:
            if at not in tails:
                tails[at] = Tail(connection, catalog.place(at), at, files)
            offsets.append(tails[at].add(records, now))
        if stamp is not None:
            deduplication.put_producer(connection, stamp, offsets, append.now)
        return offsets

    answers = [stored(append) for append in appends]
    for tail in tails.values():
        tail.close(now)
    return answers
