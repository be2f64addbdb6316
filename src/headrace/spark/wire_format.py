"""What travels between levels: a Spark row is the slot that it goes to and one message.

| kind u8 | MessagePack |

Kinds: "O" orders, "R" rows, "C" receipt, "T" tally, "B" batch, "Q" commit request, "S" shared, "L" left, "F" failure.

Messages as Arrow, which is how Spark takes and gives them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa

from headrace.model.record import Sample

SCHEMA = "slot int, message binary"


class Range(NamedTuple):
    """What to read of one partition of the log; `more`: the log holds more than that.

    `lost` offsets before it were never read: retention was quicker.
    """

    topic: str
    partition: int
    start: int
    end: int
    more: bool
    lost: int = 0


class Order(NamedTuple):
    """What a task is to do in a batch."""

    stage: int
    partition: int
    base: tuple[int, str] | None
    ranges: list[Range]
    carried: bool  # rows from the batch before wait for it in the checkpoint
    due: bool  # it must run, though there may be nothing to read
    whole: bool  # it is to hand back all of its state


class Orders(NamedTuple):
    """For one level and slot."""

    level: int
    number: int
    clock: int
    orders: list[Order]
    globals: tuple[int, str] | None  # the version of the global stores that all tasks see
    stream_time: int  # that all tasks see, -1 where each has its own


class Rows(NamedTuple):
    """Rows from an attempt at one task to another task."""

    level: int
    stage: int
    partition: int
    attempt: str
    packed: bytes


class Tally(NamedTuple):
    """What was counted of an attempt at a task: it is shown, and nothing depends on it."""

    stage: int
    partition: int
    attempt: str
    read: Mapping[str, int]  # records by topic
    written: Mapping[str, int]
    ages: list[int]  # of some of the records of the log: ms from their timestamp to the clock of the batch
    aged: int  # the records of the log that these stand for
    restored: tuple[str, int, float] | None  # if state was not ready: how it came, its entries, and ms
    came: list[Sample]
    went: list[Sample]
    sizes: Mapping[str, int] = {}  # bytes of a record of the log, on average, by topic


class Batch(NamedTuple):
    number: int
    clock: int


class CommitRequest(NamedTuple):
    """A processor of the task called `context.commit()`."""

    stage: int
    partition: int


class ShareOrder(NamedTuple):
    """The share of a batch that somebody is to deliver; where that is exactly once, `line` names who shared it out."""

    number: int
    share: int
    shares: int
    line: str
    producer: str  # who delivered that of the batch before


class ShareDone(NamedTuple):
    """A share was delivered; `topics` are those that none of them has."""

    share: int
    producer: str
    topics: list[str]


class Failed(NamedTuple):
    """A task failed for a reason that trying again does not change; `error` is pickled, if it can be."""

    text: str
    trace: str
    error: bytes


_encode = msgspec.msgpack.Encoder().encode
_LETTERS = {
    Orders: b"O", Rows: b"R", Tally: b"T", Batch: b"B", CommitRequest: b"Q", ShareOrder: b"S", ShareDone: b"L",
    Failed: b"F",
}  # fmt: skip
_orders, _rows = msgspec.msgpack.Decoder(Orders), msgspec.msgpack.Decoder(Rows)
_batch, _failed = msgspec.msgpack.Decoder(Batch), msgspec.msgpack.Decoder(Failed)
_commit_request = msgspec.msgpack.Decoder(CommitRequest)
_tally = msgspec.msgpack.Decoder(Tally)
_shared, _left = msgspec.msgpack.Decoder(ShareOrder), msgspec.msgpack.Decoder(ShareDone)
RECEIPT = b"C"

Message = Orders | Rows | Tally | Batch | CommitRequest | ShareOrder | ShareDone | Failed


def encode(message: Message) -> bytes:
    return _LETTERS[type(message)] + _encode(message)


def decode(raw: bytes) -> Message | bytes:  # noqa: PLR0911 - one match over the kinds of messages
    """A message; a receipt stays bytes, without its kind.

    >>> decode(encode(Batch(7, 0)))
    Batch(number=7, clock=0)
    """
    kind, rest = raw[:1], memoryview(raw)[1:]
    match kind:
        case b"O":
            return _orders.decode(rest)
        case b"R":
            return _rows.decode(rest)
        case b"T":
            return _tally.decode(rest)
        case b"B":
            return _batch.decode(rest)
        case b"Q":
            return _commit_request.decode(rest)
        case b"S":
            return _shared.decode(rest)
        case b"L":
            return _left.decode(rest)
        case b"F":
            return _failed.decode(rest)
        case _:
            return bytes(rest)


def decode_orders(raw: bytes) -> Orders:
    return _orders.decode(memoryview(raw)[1:])


def decode_rows(raw: bytes) -> Rows:
    return _rows.decode(memoryview(raw)[1:])


def is_orders(raw: bytes) -> bool:
    return raw[:1] == b"O"


def level_of(raw: bytes) -> int | None:
    """The level that orders or rows are for; it stands right behind the kind and the head of the array.

    >>> level_of(encode(Rows(2, 0, 0, "a", b"")))
    2
    """
    return raw[2] if raw[:1] in (b"O", b"R") else None


# pyright: basic


ARROW_SCHEMA = pa.schema([("slot", pa.int32()), ("message", pa.binary())])


def record_batch(rows: Sequence[tuple[int, bytes]]) -> pa.RecordBatch:
    slots, messages = [slot for slot, _ in rows], [message for _, message in rows]
    return pa.RecordBatch.from_arrays(
        [pa.array(slots, pa.int32()), pa.array(messages, pa.binary())], schema=ARROW_SCHEMA
    )


def rows_of(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    for batch in batches:
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
