"""Records on their way to the log, and rows on their way to the next batch, as bytes.

outbox   | "HRO1" | MessagePack: [[topic, partition or nil, [packed records, …], orders], …] |
rows     | "HRB1" | MessagePack: [[topic, partition, offset, key, value, timestamp, headers, order], …] |

Packed records are `log.packing`'s, so that they go into the log as they are. The partition is nil where the number of
partitions was not known. Orders are the MessagePack of a list, compressed by zstd: they are read only if several tasks
wrote to one partition.
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
Partitions = Callable[[str], int | None]  # how many a topic has, None if that is not known
Place = tuple[str, int | None]
Order = (
    tuple[Any, ...] | int | str | None
)  # what stands in for `Any` in rows; in a tuple, only what is not a tuple itself
_Record = tuple[bytes | None, bytes | None, int, Headers]


class Section(NamedTuple):
    """What a task wrote to one partition, or to a topic whose partitions it did not know."""

    topic: str
    partition: int | None
    packed: list[bytes]
    orders: tuple[int, bytes]  # their length, and they themselves, compressed


_encode = msgspec.msgpack.Encoder().encode
_decode_sections = msgspec.msgpack.Decoder(list[Section]).decode
_decode_orders = msgspec.msgpack.Decoder(list[Order]).decode
_decode_rows = msgspec.msgpack.Decoder(
    list[tuple[str, int, int, bytes | None, bytes | None, int, Headers, Order]]
).decode


def encode_outbox(outputs: Sequence[Output], partitions: Partitions, home: int = 0) -> bytes:
    """Outputs of a task in their order; those whose partition is open go where the hash of their key says.

    Those without a key go to the partition that the task has itself, `home`, or would have if there were as many.
    """
    sections = [_section(place, rows) for place, rows in _by_place(outputs, partitions, home).items()]
    return OUTBOX + _encode(sections)


def _by_place(outputs: Sequence[Output], partitions: Partitions, home: int) -> dict[Place, list[Output]]:
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
                partition = home % count
            elif count is not None:
                partition = known_partition(key, count)
        found[topic, partition].append(row)
    return found


def _section(place: Place, rows: Sequence[Output]) -> Section:
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
        raise CheckpointCorruptedError(f"{name} is none, or a newer Headrace's: it begins with {raw[:4]!r}", file=name)
    return _decode_sections(memoryview(raw)[len(OUTBOX) :])


# ------------------------------------------------------------------------------------------------------- delivery
def items_of(outboxes: Iterable[tuple[int, Sequence[Section]]], count: Callable[[str], int]) -> list[Item]:
    """What tasks wrote, for the log: where several wrote to a partition, in the order of what caused it.

    Each outbox comes with the partition of its task; `count` says how many partitions a topic has.
    """
    places: defaultdict[TopicPartition, list[Section]] = defaultdict(list)
    for home, sections in outboxes:
        for section in sections:
            for placed in _placed(section, count, home):
                places[TopicPartition(placed.topic, placed.partition or 0)].append(placed)
    items: list[Item] = []
    for place, sections in places.items():
        if len(sections) == 1:
            items += [(place, packed) for packed in sections[0].packed]
        else:
            items.append((place, Records.from_rows(list(_merged(sections)))))
    return items


def _placed(section: Section, count: Callable[[str], int], home: int) -> list[Section]:
    """A section as it is, or, if it has no partition, in parts for each."""
    if section.partition is not None:
        return [section]
    partitions = count(section.topic)
    rows = defaultdict[int, list[Output]](list)
    for record, order in zip(_records(section), _orders(section), strict=True):
        chosen = known_partition(record[0], partitions)
        partition = home % partitions if chosen is None else chosen
        rows[partition].append((section.topic, partition, *record, order))
    return [_section((section.topic, partition), some) for partition, some in rows.items()]


def _merged(sections: Sequence[Section]) -> Iterator[_Record]:
    """The records of several tasks by order; those of one task stay in their sequence."""
    rows = [
        (order, origin, sequence, record)
        for origin, section in enumerate(sections)
        for sequence, (order, record) in enumerate(
            # What a task wrote late for an early cause stays behind what it wrote before.
            zip(accumulate(map(_rank, _orders(section)), max), _records(section), strict=True)
        )
    ]
    rows.sort(key=lambda row: row[:3])
    return (record for _, _, _, record in rows)


def _rank(order: Order) -> tuple[Any, ...]:
    """What was caused by no record comes first."""
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


# --------------------------------------------------------------------------------------------------------- next batch
def encode_rows(rows: Sequence[Row]) -> bytes:
    return ROWS + _encode(rows)


def decode_rows(raw: bytes, name: str = "rows") -> list[Row]:
    """
    >>> decode_rows(encode_rows([("t", 0, 7, b"k", None, 5, (("h", b"1"),), (5, 0, 7))]))
    [('t', 0, 7, b'k', None, 5, (('h', b'1'),), (5, 0, 7))]
    """
    if not raw.startswith(ROWS):
        raise CheckpointCorruptedError(
            f"{name} are none, or a newer Headrace's: they begin with {raw[:4]!r}", file=name
        )
    return _decode_rows(memoryview(raw)[len(ROWS) :])
