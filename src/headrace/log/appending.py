"""Appends and deliveries: what they store, all of it or nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace.errors import StateCorruptedError
from headrace.log import places, schema
from headrace.log.catalog import Catalog, Entry
from headrace.log.errors import FencedError, LogCorruptedError, RecordTooLargeError
from headrace.log.files import ChunkFiles
from headrace.log.packing import NULL_KEYS, Label, digest_of, label_of, longest_of, pack_parts
from headrace.log.places import ChunkRow
from headrace.log.protocol import Item, Records, Stamp
from headrace.log.seals import broken, seal
from headrace.model.ids import TopicPartition

LARGE = 4 << 20  # bytes of a packed chunk: larger ones are files, which SQLite need not write twice


@dataclass(frozen=True, slots=True)
class Parcel:
    """A packed chunk on its way into the log; a large one is in a file already."""

    packed: bytes | None
    file: str | None
    label: Label
    digest: int
    size: int

    @classmethod
    def of(cls, packed: bytes, files: ChunkFiles) -> Parcel:
        label = label_of(packed)
        file = files.write(packed) if len(packed) > LARGE else None
        return cls(None if file else packed, file, label, digest_of(packed), len(packed))


Shipment = list[tuple[TopicPartition, list[Parcel]]]  # one entry per item


def prepared(items: Sequence[Item], files: ChunkFiles) -> Shipment:
    """Packs items and writes the large ones to disk: all that can be done before it is one's turn."""
    return [
        (TopicPartition(*at), [Parcel.of(packed, files) for packed in _packed(at, records)]) for at, records in items
    ]


def _packed(at: TopicPartition, records: Records | bytes) -> list[bytes]:
    if isinstance(records, Records):
        return list(pack_parts(records))
    try:
        return [records] if label_of(records).records else []
    except StateCorruptedError as error:
        raise LogCorruptedError(f"records for {at} arrived damaged: {error}", at=at) from None


def store(
    connection: sqlite3.Connection, catalog: Catalog, shipment: Shipment, now: int, files: ChunkFiles
) -> list[int]:
    """Puts parcels at the ends of their partitions; gives the first offset of each item."""
    ends: dict[TopicPartition, places.PartitionRow] = {}
    bases: list[int] = []
    for at, parcels in shipment:
        entry = catalog.place(at)
        row = ends.get(at) or places.partition(connection, entry.number, at.partition)
        bases.append(row.upto)
        for parcel in parcels:
            _check(entry, at, parcel, files)
            chunk = _chunk(entry, row, parcel, now)
            places.put_chunk(connection, chunk, parcel.packed)
            row = row._replace(upto=chunk.upto)
        ends[at] = row
    for row in ends.values():
        places.put_partition(connection, row)
    return bases


def _chunk(entry: Entry, row: places.PartitionRow, parcel: Parcel, now: int) -> ChunkRow:
    stamped = now if entry.rules.append_time else None
    last_time = parcel.label.last_time if stamped is None else stamped
    end = row.upto + parcel.label.records
    return ChunkRow(
        entry.number,
        row.partition,
        row.upto,
        end,
        last_time,
        stamped,
        None,
        parcel.size,
        parcel.digest,
        None,
        parcel.file,
    )


def _check(entry: Entry, at: TopicPartition, parcel: Parcel, files: ChunkFiles) -> None:
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


# -------------------------------------------------------------------------------------------------------- producers
def new_producer(connection: sqlite3.Connection, now: int) -> int:
    number = schema.meta(connection, "producers")[0] + 1
    schema.put_meta(connection, "producers", number, b"")
    _put_producer(connection, Stamp(number, -1), [], now)
    return number


def stored_before(connection: sqlite3.Connection, stamp: Stamp) -> list[int] | None:
    """The offsets that an append got when it came for the first time; None if this is it."""
    query = "SELECT id, sequence, offsets, used, seal FROM producers WHERE id = ?"
    row = connection.execute(query, (stamp.producer,)).fetchone()
    if row is None:
        raise FencedError(f"the producer {stamp.producer} is unknown, or was idle for more than a day: make a new one")
    if row[4] != seal(*row[:4]):
        raise broken(f"the row of producer {stamp.producer}")
    if row[1] == stamp.sequence:
        return msgspec.json.decode(row[2], type=list[int])
    if row[1] + 1 != stamp.sequence:
        raise FencedError(
            f"producer {stamp.producer} appends number {stamp.sequence} after number {row[1]}: two clients use one "
            "id, or an append was lost. Make a new producer"
        )
    return None


def stamp_producer(connection: sqlite3.Connection, stamp: Stamp, offsets: list[int], now: int) -> None:
    _put_producer(connection, stamp, offsets, now)


def forget_producers(connection: sqlite3.Connection, before: int) -> None:
    """Those that did nothing since a time."""
    connection.execute("DELETE FROM producers WHERE used < ?", (before,))


def _put_producer(connection: sqlite3.Connection, stamp: Stamp, offsets: list[int], now: int) -> None:
    row = (*stamp, msgspec.json.encode(offsets), now)
    connection.execute("INSERT OR REPLACE INTO producers VALUES (?, ?, ?, ?, ?)", (*row, seal(*row)))


# ---------------------------------------------------------------------------------------------------------- markers
def marker(connection: sqlite3.Connection, application: str) -> int:
    row = connection.execute("SELECT number, seal FROM markers WHERE application = ?", (application,)).fetchone()
    if row is None:
        return -1
    if row[1] != seal(application, row[0]):
        raise broken(f"the row of the last delivery of {application!r}")
    return row[0]


def put_marker(connection: sqlite3.Connection, application: str, number: int | None) -> None:
    connection.execute("DELETE FROM markers WHERE application = ?", (application,))
    if number is not None:
        connection.execute("INSERT INTO markers VALUES (?, ?, ?)", (application, number, seal(application, number)))


def due(connection: sqlite3.Connection, application: str, number: int) -> bool:
    """Whether a batch is the next one to be delivered; False if it is the last one that was."""
    last = marker(connection, application)
    if last not in {number - 1, number}:
        said = f"batch {last} was" if last >= 0 else "no batch was"
        raise FencedError(
            f"batch {number} of {application!r} cannot be delivered: {said} the last one delivered to this log. "
            "The log or the checkpoint is not the one that belongs to the other, or is an older copy"
        )
    return last == number - 1
