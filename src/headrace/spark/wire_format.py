"""The messages between the driver, slots and levels, and how they travel through Spark.

    message     | kind u8 | MessagePack |
    Spark row   | slot int | message binary |        the slot that receives the message

Kinds: "O" orders, "R" rows, "C" receipt, "T" tally, "B" batch, "Q" commit request, "S" share order, "L" share done,
"K" sink order, "D" sink done, "F" failure. A message is encoded as an array of its fields, in their order. All
processes of a run have the same version, so the format may change between versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from headrace.errors import StreamsError
from headrace.extras import lazy_extra
from headrace.model.record import Sample

SCHEMA = "slot int, message binary"
RecordBatch = Any  # of pyarrow, which has no types


class Range(NamedTuple):
    """A range of one partition of the log; `more` says that the log has further records.

    `lost` is the number of offsets before the range that retention removed before a task could read them.
    """

    topic: str
    partition: int
    start: int
    end: int
    more: bool
    lost: int = 0


class Order(NamedTuple):
    """What a task does in a batch."""

    stage: int
    partition: int
    base: tuple[int, str] | None
    ranges: list[Range]
    carried: bool  # the checkpoint has carried rows for it
    due: bool  # it must run even if it has no input
    whole: bool  # it must return its whole state instead of a delta


class Orders(NamedTuple):
    """The orders for one level and slot."""

    level: int
    number: int
    clock: int
    orders: list[Order]
    globals: tuple[int, str] | None  # the version of the global stores that all tasks see
    stream_time: int  # the stream time that all tasks see; -1 if each task has its own


class Rows(NamedTuple):
    """Rows from an attempt at one task to another task."""

    level: int
    stage: int
    partition: int
    attempt: str
    packed: bytes


class Tally(NamedTuple):
    """The statistics of an attempt at a task. Results do not depend on it."""

    stage: int
    partition: int
    attempt: str
    read: Mapping[str, int]  # records by topic
    written: Mapping[str, int]
    ages: list[int]  # of a sample of the records read: ms from their timestamp to the clock of the batch
    aged: int  # how many records the sample stands for
    restored: tuple[str, int, float] | None  # if state was not ready: how it was restored, its entries, and ms
    samples_in: list[Sample]  # of what the task read and wrote, for the dashboard
    samples_out: list[Sample]
    sizes: Mapping[str, int] = {}  # average bytes of a record, by topic


class Batch(NamedTuple):
    """The number and the clock of the batch, for the driver, which commits it."""

    number: int
    clock: int


class CommitRequest(NamedTuple):
    """A processor of the task called `context.commit()`."""

    stage: int
    partition: int


class ShareOrder(NamedTuple):
    """A share of a batch to deliver. `owner` is what `begin_shares` returned; "" if delivery is at least once."""

    number: int
    share: int
    shares: int
    owner: str
    producer: str  # the producer that delivered this share of the previous batch


class ShareDone(NamedTuple):
    """A share was delivered. `topics` are in no share: the driver delivers them."""

    share: int
    producer: str
    topics: list[str]


class SinkOrder(NamedTuple):
    """Parts of a batch that a process writes to a sink. `share` is the number of the process.

    `given` is what the sink's writer in the driver has returned for all processes.
    """

    sink: str
    number: int
    share: int
    parts: list[str]
    given: Any


class SinkDone(NamedTuple):
    """Parts were written: what the sink's writer returned, and how many records it took and rejected."""

    share: int
    result: Any
    records: int
    rejected: int


class Failed(NamedTuple):
    """A task failed with an error that a retry does not cure. `error` is the pickled exception, b"" if it cannot be.

    `summary` is the text without data of records; None: the text has none.
    """

    text: str
    trace: str
    error: bytes
    summary: str | None = None


_encode = msgspec.msgpack.Encoder().encode
_KINDS = {
    Orders: b"O", Rows: b"R", Tally: b"T", Batch: b"B", CommitRequest: b"Q", ShareOrder: b"S", ShareDone: b"L",
    Failed: b"F", SinkOrder: b"K", SinkDone: b"D",
}  # fmt: skip
_orders, _rows = msgspec.msgpack.Decoder(Orders), msgspec.msgpack.Decoder(Rows)
_DECODERS = {kind: msgspec.msgpack.Decoder(message).decode for message, kind in _KINDS.items()}
RECEIPT = b"C"

Message = Orders | Rows | Tally | Batch | CommitRequest | ShareOrder | ShareDone | SinkOrder | SinkDone | Failed


def encode(message: Message) -> bytes:
    return _KINDS[type(message)] + _encode(message)


def decode(raw: bytes) -> Message | bytes:
    """Decodes a message. A receipt stays bytes, without its kind.

    >>> decode(encode(Batch(7, 0)))
    Batch(number=7, clock=0)
    """
    decode_kind, rest = _DECODERS.get(raw[:1]), memoryview(raw)[1:]
    try:
        return bytes(rest) if decode_kind is None else decode_kind(rest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StreamsError(f"a message of {len(raw)} bytes cannot be read: {error}") from error


def decode_orders(raw: bytes) -> Orders:
    return _orders.decode(memoryview(raw)[1:])


def decode_rows(raw: bytes) -> Rows:
    return _rows.decode(memoryview(raw)[1:])


def is_orders(raw: bytes) -> bool:
    return raw[:1] == b"O"


def level_of(raw: bytes) -> int | None:
    """Returns the level of orders or rows: the byte after the kind and the array's header. None for other messages.

    >>> level_of(encode(Rows(2, 0, 0, "a", b"")))
    2
    """
    return raw[2] if raw[:1] in (b"O", b"R") else None


def split_results(
    messages: Iterable[tuple[int, bytes]], slots: Iterable[int]
) -> tuple[dict[int, list[tuple[int, bytes]]], list[bytes]]:
    """Splits the messages of a level: rows for the tasks of each slot, with their levels, and all other messages.

    >>> rows = encode(Rows(1, 0, 0, "a", b""))
    >>> split_results([(0, b"C"), (1, rows)], [0, 1]) == ({0: [], 1: [(1, rows)]}, [b"C"])
    True
    """
    by_slot: dict[int, list[tuple[int, bytes]]] = {slot: [] for slot in slots}
    others: list[bytes] = []
    for slot, raw in messages:
        level = level_of(raw)
        if level is None:
            others.append(raw)
        else:
            by_slot[slot].append((level, raw))
    return by_slot, others


_arrow = lazy_extra("pyarrow", "spark")


@cache
def arrow_schema() -> Any:
    """Returns the schema of the Arrow batches that carry messages."""
    return _arrow.schema([("slot", _arrow.int32()), ("message", _arrow.binary())])


def make_record_batch(rows: Sequence[tuple[int, bytes]]) -> RecordBatch:
    """Makes the Arrow batch in which Spark takes messages."""
    slots, messages = [slot for slot, _ in rows], [message for _, message in rows]
    return _arrow.RecordBatch.from_arrays(
        [_arrow.array(slots, _arrow.int32()), _arrow.array(messages, _arrow.binary())], schema=arrow_schema()
    )


def read_messages(batches: Iterator[RecordBatch]) -> Iterator[tuple[int, bytes]]:
    """Yields the slots and messages of Arrow batches."""
    for batch in batches:
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
