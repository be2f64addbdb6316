"""The formats of an outbox (records for the log) and of rows (input of another task, in this batch or the next).

    outbox   | "HRO2" | MessagePack: [section, …] |
    section  [topic, partition or nil, [packed records, …], orders, columns or nil]
    rows     | "HRB2" | MessagePack: [batch, …] |
    batch    [topic, partition, offsets, keys, values, timestamps, headers or nil, orders, counts or nil]

Packed records are in the format of `log.chunk_format`, so the embedded log appends them without decoding. Records for
Kafka are columns: [keys, values, timestamps, headers or nil]. The partition is nil if the worker did not know how many
partitions the topic has. Only `merge_outboxes` reads the orders, and only if several tasks wrote to one partition.
Orders and columns are MessagePack, as [size, zstd] or, if they are small, as [0, bytes]. "HRO1", of earlier versions,
has no columns.

Rows are columns; a row with a count has no value. Carried rows are in checkpoints, so those of earlier versions are
still read: "HRB1" has a list of [topic, partition, offset, key, value, timestamp, headers, order], and a topic with the
suffix "#counted" has counts (int64, big-endian) as values.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from headrace.errors import CheckpointCorruptedError, MissingExtraError
from headrace.extras import lazy_extra
from headrace.log.chunk_format import pack_parts, unpack
from headrace.log.protocol import Item, Records
from headrace.model.ids import TopicPartition
from headrace.model.partitioner import partitions_of
from headrace.model.record import Headers
from headrace.runtime.rows import CountOutput, Order, Output, PartitionBatch, Row, batch_rows

_arrow = lazy_extra("pyarrow", "spark")

OUTBOX, OUTBOX_1, ROWS, ROWS_1 = b"HRO2", b"HRO1", b"HRB2", b"HRB1"
_MIN_COMPRESSED_SIZE = 512
_COUNTED, _COUNT = "#counted", struct.Struct(">q")  # of "HRB1"
Partitions = Callable[[str], int | None]  # the partition count of a topic; None if it is not known
Place = tuple[str, int | None]
Compressed = tuple[int, bytes]  # size before compression, or 0 if the bytes are not compressed
_Record = tuple[bytes | None, bytes | None, int, Headers]
_topic = itemgetter(0)


class Section(NamedTuple):
    """The records of one task for one partition, or for a topic whose partition count it did not know."""

    topic: str
    partition: int | None
    packed: list[bytes]  # none if there are columns
    orders: Compressed
    columns: Compressed | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode_sections = msgspec.msgpack.Decoder(list[Section]).decode
_decode_orders = msgspec.msgpack.Decoder(list[Order | None]).decode
_decode_columns = msgspec.msgpack.Decoder(
    tuple[list[bytes | None], list[bytes | None], list[int], list[Headers] | None]
).decode
_Batch = tuple[
    str, int, list[int], list[bytes | None], list[bytes | None], list[int], list[Headers] | None, list[Order],
    list[int] | None,
]  # fmt: skip
_decode_batches = msgspec.msgpack.Decoder(list[_Batch]).decode
_decode_rows_1 = msgspec.msgpack.Decoder(list[Row]).decode


def encode_outbox(
    outputs: Sequence[Output], partitions: Partitions, own_partition: int = 0, *, packed: bool = True
) -> bytes:
    """Encodes the outputs of a task. The key's hash chooses the partition of an output that has none.

    An output without a key goes to `own_partition`, the task's own, modulo the partition count of the topic. With
    `packed`, the outbox holds chunks for a log that stores them as they are.
    """
    groups = group_by_partition(outputs, partitions, own_partition)
    sections: list[Section] = []
    for (topic, partition), places in groups.items():
        chosen = outputs if len(groups) == 1 else [outputs[place] for place in places]
        _, _, keys, values, timestamps, headers, orders = zip(*chosen, strict=True)
        records = Records(keys, values, timestamps, headers if any(headers) else None)
        sections.append(_encode_section(topic, partition, records, orders, packed=packed))
    return OUTBOX + _encode(sections)


def group_by_partition(
    outputs: Sequence[Output] | Sequence[CountOutput], partitions: Partitions, own_partition: int
) -> dict[Place, list[int]]:
    """Returns the places of the outputs for each partition; the partition is None if the count is not known."""
    open_places: defaultdict[str, list[int]] = defaultdict(list)  # by topic: outputs whose partition the key decides
    chosen: list[int | None] = []
    for place, (topic, partition, *_) in enumerate(outputs):
        chosen.append(partition)
        if partition is None:
            open_places[topic].append(place)
    for topic, places in open_places.items():
        count = partitions(topic)
        if count is not None:
            own = own_partition % count
            keys = [outputs[place][2] for place in places]
            for place, partition in zip(places, partitions_of(keys, count), strict=True):
                chosen[place] = own if partition is None else partition
    found: defaultdict[Place, list[int]] = defaultdict(list)
    for place, target in enumerate(zip(map(_topic, outputs), chosen, strict=True)):
        found[target].append(place)
    return found


def _encode_section(
    topic: str, partition: int | None, records: Records, orders: Sequence[Order], *, packed: bool
) -> Section:
    if packed:
        return Section(topic, partition, list(pack_parts(records)), _compress(_encode(orders)))
    columns = _encode((records.keys, records.values, records.timestamps, records.headers))
    return Section(topic, partition, [], _compress(_encode(orders)), _compress(columns))


def _compress(raw: bytes) -> Compressed:
    return (len(raw), _arrow.compress(raw, "zstd", asbytes=True)) if len(raw) >= _MIN_COMPRESSED_SIZE else (0, raw)


def _decompress(compressed: Compressed) -> bytes:
    size, raw = compressed
    return _arrow.decompress(raw, size, "zstd", asbytes=True) if size else raw


def decode_outbox(raw: bytes, name: str = "an outbox") -> list[Section]:
    """
    >>> for packed in (True, False):
    ...     outbox = encode_outbox([("t", 0, b"k", b"v", 5, (), ())], lambda topic: 1, packed=packed)
    ...     [(section.topic, [records.keys for records in read_records(section)]) for section in decode_outbox(outbox)]
    [('t', [[b'k']])]
    [('t', [[b'k']])]
    """
    if not raw.startswith((OUTBOX, OUTBOX_1)):
        raise CheckpointCorruptedError(
            f"{name} is not an outbox, or a newer Headrace's: it begins with {raw[:4]!r}", file=name
        )
    with _translate_errors(name):
        return _decode_sections(memoryview(raw)[len(OUTBOX) :])


@contextmanager
def _translate_errors(name: str) -> Generator[None]:
    """Raises decoding errors as CheckpointCorruptedError. The checksum was right, so another program wrote the blob."""
    try:
        yield
    except MissingExtraError:
        raise
    except Exception as error:  # Arrow and MessagePack raise errors of many kinds
        raise CheckpointCorruptedError(f"{name} cannot be read: {error}", file=name) from error


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
            items += [(place, packed) for packed in sections[0].packed or read_records(sections[0])]
        else:
            items.append((place, Records.from_rows(list(_merge_sections(sections)))))
    return items


def _split(section: Section, count: Callable[[str], int], own_partition: int) -> list[Section]:
    """Splits a section without a partition into one section per partition."""
    if section.partition is not None:
        return [section]
    partitions = count(section.topic)
    rows = defaultdict[int, list[tuple[_Record, Order]]](list)
    records = list(_rows(section))
    chosen = partitions_of([record[0] for record in records], partitions)
    for record, partition, order in zip(records, chosen, read_orders(section), strict=True):
        rows[own_partition % partitions if partition is None else partition].append((record, order))
    found: list[Section] = []
    for partition, some in rows.items():
        own, orders = zip(*some, strict=True)
        found.append(_encode_section(section.topic, partition, Records.from_rows(own), orders, packed=False))
    return found


def _merge_sections(sections: Sequence[Section]) -> Iterator[_Record]:
    """Merges the records of several tasks by order. Records of one task keep their sequence."""
    rows = [
        (order, origin, sequence, record)
        for origin, section in enumerate(sections)
        for sequence, (order, record) in enumerate(
            # The running maximum keeps a record behind those that its task wrote before it.
            zip(accumulate(read_orders(section), max), _rows(section), strict=True)
        )
    ]
    rows.sort(key=lambda row: row[:3])
    return (record for _, _, _, record in rows)


def read_records(section: Section) -> list[Records]:
    """Returns the records of a section."""
    if section.columns is not None:
        with _translate_errors(f"records for {section.topic}"):
            return [Records(*_decode_columns(_decompress(section.columns)))]
    return [unpack(packed)[0] for packed in section.packed]


def _rows(section: Section) -> Iterator[_Record]:
    for records in read_records(section):
        headers = records.headers or [()] * len(records)
        yield from zip(records.keys, records.values, records.timestamps, headers, strict=True)


def read_orders(section: Section) -> list[Order]:
    """Returns the orders of the records of a section."""
    # Earlier versions wrote nil for outputs that no record caused.
    with _translate_errors(f"the order of records for {section.topic}"):
        return [order or () for order in _decode_orders(_decompress(section.orders))]


# --------------------------------------------------------------------------------------------------------------- rows
def encode_rows(batches: Iterable[PartitionBatch]) -> bytes:
    """
    >>> records = Records([b"k"], [None], [5], [(("h", b"1"),)])
    >>> (batch,) = decode_rows(encode_rows([PartitionBatch(TopicPartition("t", 0), [7], records, [(5, 0, 7)])]))
    >>> batch.row(0)
    ('t', 0, 7, b'k', None, 5, (('h', b'1'),), (5, 0, 7))
    """
    return ROWS + _encode([_encode_batch(batch) for batch in batches])


def _encode_batch(batch: PartitionBatch) -> tuple[Any, ...]:
    (topic, partition), records, counts = batch.at, batch.records, batch.counts
    values = records.values if counts is None else ()
    orders = list(batch.orders)
    return topic, partition, batch.offsets, records.keys, values, records.timestamps, records.headers, orders, counts


def decode_rows(raw: bytes, name: str = "rows") -> list[PartitionBatch]:
    if not raw.startswith((ROWS, ROWS_1)):
        raise CheckpointCorruptedError(
            f"{name} are not rows, or a newer Headrace's: they begin with {raw[:4]!r}", file=name
        )
    body = memoryview(raw)[len(ROWS) :]
    with _translate_errors(name):
        if raw.startswith(ROWS_1):
            return [_without_suffix(batch) for batch in batch_rows(_decode_rows_1(body))]
        return [_decode_batch(*fields) for fields in _decode_batches(body)]


def _decode_batch(
    topic: str,
    partition: int,
    offsets: list[int],
    keys: list[bytes | None],
    values: list[bytes | None],
    timestamps: list[int],
    headers: list[Headers] | None,
    orders: list[Order],
    counts: list[int] | None,
) -> PartitionBatch:
    records = Records(keys, values if counts is None else [None] * len(keys), timestamps, headers)
    return PartitionBatch(TopicPartition(topic, partition), offsets, records, orders, counts)


def _without_suffix(batch: PartitionBatch) -> PartitionBatch:
    """Returns a batch of "HRB1" with its counts in a column."""
    (topic, partition), records = batch.at, batch.records
    if not topic.endswith(_COUNTED):
        return batch
    counts = [_COUNT.unpack(raw or b"")[0] for raw in records.values]
    records = Records(records.keys, [None] * len(records), records.timestamps, records.headers)
    at = TopicPartition(topic.removesuffix(_COUNTED), partition)
    return PartitionBatch(at, batch.offsets, records, list(batch.orders), counts)
