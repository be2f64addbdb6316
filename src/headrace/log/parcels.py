"""Records on their way into the log: packed before it is one's turn, if they are many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import StateCorruptedError
from headrace.log.catalog import Entry
from headrace.log.errors import LogCorruptedError, RecordTooLargeError
from headrace.log.files import ChunkFiles
from headrace.log.packing import NULL_KEYS, OFFSETS, Label, digest_of, label_of, longest_of, pack_parts
from headrace.log.protocol import Item, Records
from headrace.model.ids import TopicPartition

LARGE = 4 << 20  # bytes of a packed chunk: larger ones are files, which SQLite need not write twice
_FEW_RECORDS, _FEW_BYTES = 100, 64 << 10  # of an item that is packed together with others


@dataclass(frozen=True, slots=True)
class Parcel:
    """A packed chunk; a large one is in a file already."""

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


Shipment = list[tuple[TopicPartition, list[Parcel] | Records]]  # one entry per item


def prepared(items: Sequence[Item], files: ChunkFiles) -> Shipment:
    """All that can be done before it is one's turn: packs items and writes the large ones to disk."""
    return [(TopicPartition(*at), _prepared(TopicPartition(*at), records, files)) for at, records in items]


def _prepared(at: TopicPartition, records: Records | bytes, files: ChunkFiles) -> list[Parcel] | Records:
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
    return [Parcel.of(records, files)] if label.records else []


def parcels_of(records: Records, files: ChunkFiles) -> list[Parcel]:
    return [Parcel.of(packed, files) for packed in pack_parts(records)]


def check(entry: Entry, at: TopicPartition, parcel: Parcel, files: ChunkFiles) -> None:
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
