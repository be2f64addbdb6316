"""The formats of an outbox (records for the log) and of rows (input of another task, in this batch or the next).

    outbox   | "HRO1" | MessagePack: [section, …] |   section: [topic, partition or nil, [packed records, …], orders]
    rows     | "HRB1" | MessagePack: [[topic, partition, offset, key, value, timestamp, headers, order], …] |

Packed records are in the format of `log.records`, so the log appends them without decoding. The partition is nil if the
worker did not know how many partitions the topic has. Orders are a MessagePack list, compressed with zstd: only
`merge_outboxes` reads them, and only if several tasks wrote to one partition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]

from headrace.errors import CheckpointCorruptedError
from headrace.log.chunk_format import pack_parts, unpack
from headrace.log.protocol import Item, Records
from headrace.model.ids import TopicPartition
from headrace.model.partitioner import known_partition
from headrace.model.record import Headers
from headrace.runtime.environment import Output, Row

_arrow: Any = pa  # it has no types

OUTBOX, ROWS = b"HRO1", b"HRB1"
Partitions = Callable[[str], int | None]  # the partition count of a topic; None if it is not known
Place = tuple[str, int | None]
Order = tuple[Any, ...] | int | str | None  # a tuple has no tuples in it
_Record = tuple[bytes | None, bytes | None, int, Headers]


class Section(NamedTuple):
    """The records of one task for one partition, or for a topic whose partition count it did not know."""

    topic: str
    partition: int | None
    packed: list[bytes]
    orders: tuple[int, bytes]  # size before compression, compressed bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_sections = msgspec.msgpack.Decoder(list[Section]).decode
_decode_orders = msgspec.msgpack.Decoder(list[Order]).decode
_decode_rows = msgspec.msgpack.Decoder(
    list[tuple[str, int, int, bytes | None, bytes | None, int, Headers, Order]]
).decode


def encode_outbox(outputs: Sequence[Output], partitions: Partitions, own_partition: int = 0) -> bytes:
    """Encodes the outputs of a task. An output without a partition goes where the hash of its key says.

    One without a key goes to `own_partition`, the task's own, modulo the partition count of the topic.
    """
    sections = [
        _encode_section(place, rows) for place, rows in _group_by_partition(outputs, partitions, own_partition).items()
    ]
    return OUTBOX + _encode(sections)


def _group_by_partition(
    outputs: Sequence[Output], partitions: Partitions, own_partition: int
) -> dict[Place, list[Output]]:
    found: defaultdict[Place, list[Output]] = defaultdict(list)
    counts: dict[str, int | None] = {}
    for row in outputs:
        topic, partition, key, *_ = row
        if partition is None:
            if topic not in counts:
                counts[topic] = partitions(topic)
            count = counts[topic]
            if count == 1:
                partition = 0
            elif count is not None and key is None:
                partition = own_partition % count
            elif count is not None:
                partition = known_partition(key, count)
        found[topic, partition].append(row)
    return found


def _encode_section(place: Place, rows: Sequence[Output]) -> Section:
    _, _, keys, values, timestamps, headers, orders = zip(*rows, strict=True)
    records = Records(keys, values, timestamps, headers if any(headers) else None)
    raw = _encode(orders)
    return Section(*place, list(pack_parts(records)), (len(raw), _arrow.compress(raw, "zstd", asbytes=True)))


def decode_outbox(raw: bytes, name: str = "an outbox") -> list[Section]:
    """
    >>> outbox = encode_outbox([("t", 0, b"k", b"v", 5, (), None)], lambda topic: 1)
    >>> [(section.topic, unpack(section.packed[0])[0].keys) for section in decode_outbox(outbox)]
    [('t', [b'k'])]
    """
    if not raw.startswith(OUTBOX):
        raise CheckpointCorruptedError(
            f"{name} is not an outbox, or a newer Headrace's: it begins with {raw[:4]!r}", file=name
        )
    return _decode_sections(memoryview(raw)[len(OUTBOX) :])


# ----------------------------------------------------------------------------------------------------------- delivery
def merge_outboxes(outboxes: Iterable[tuple[int, Sequence[Section]]], count: Callable[[str], int]) -> list[Item]:
    """Returns what to append to the log. Records of several tasks for one partition are merged by their order.

    Each outbox comes with the partition of its task. `count` returns the partition count of a topic.
    """
    places: defaultdict[TopicPartition, list[Section]] = defaultdict(list)
    for own_partition, sections in outboxes:
        for section in sections:
            for part in _split(section, count, own_partition):
                places[TopicPartition(part.topic, part.partition or 0)].append(part)
    items: list[Item] = []
    for place, sections in places.items():
        if len(sections) == 1:
            items += [(place, packed) for packed in sections[0].packed]
        else:
            items.append((place, Records.from_rows(list(_merge_sections(sections)))))
    return items


def _split(section: Section, count: Callable[[str], int], own_partition: int) -> list[Section]:
    """Splits a section without a partition into one section per partition."""
    if section.partition is not None:
        return [section]
    partitions = count(section.topic)
    rows = defaultdict[int, list[Output]](list)
    for record, order in zip(_records(section), _orders(section), strict=True):
        chosen = known_partition(record[0], partitions)
        partition = own_partition % partitions if chosen is None else chosen
        rows[partition].append((section.topic, partition, *record, order))
    return [_encode_section((section.topic, partition), some) for partition, some in rows.items()]


def _merge_sections(sections: Sequence[Section]) -> Iterator[_Record]:
    """Merges the records of several tasks by order. Records of one task keep their sequence."""
    rows = [
        (order, origin, sequence, record)
        for origin, section in enumerate(sections)
        for sequence, (order, record) in enumerate(
            # The running maximum keeps a record behind those that its task wrote before it.
            zip(accumulate(map(_rank, _orders(section)), max), _records(section), strict=True)
        )
    ]
    rows.sort(key=lambda row: row[:3])
    return (record for _, _, _, record in rows)


def _rank(order: Order) -> tuple[Any, ...]:
    """Returns a sort key. Outputs that no record caused (punctuation) come first."""
    if order is None:
        return ()
    return order if isinstance(order, tuple) else (order,)


def _records(section: Section) -> Iterator[_Record]:
    for packed in section.packed:
        records, _ = unpack(packed)
        headers = records.headers or [()] * len(records)
        yield from zip(records.keys, records.values, records.timestamps, headers, strict=True)


def _orders(section: Section) -> list[Order]:
    length, raw = section.orders
    return _decode_orders(_arrow.decompress(raw, length, "zstd", asbytes=True))


# --------------------------------------------------------------------------------------------------------------- rows
def encode_rows(rows: Sequence[Row]) -> bytes:
    return ROWS + _encode(rows)


def decode_rows(raw: bytes, name: str = "rows") -> list[Row]:
    """
    >>> decode_rows(encode_rows([("t", 0, 7, b"k", None, 5, (("h", b"1"),), (5, 0, 7))]))
    [('t', 0, 7, b'k', None, 5, (('h', b'1'),), (5, 0, 7))]
    """
    if not raw.startswith(ROWS):
        raise CheckpointCorruptedError(
            f"{name} are not rows, or a newer Headrace's: they begin with {raw[:4]!r}", file=name
        )
    return _decode_rows(memoryview(raw)[len(ROWS) :])
