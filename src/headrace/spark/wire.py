"""What travels between levels: a Spark row is the slot that it goes to and one message.

| kind u8: "O" orders, "R" rows, "C" receipt, "B" batch | MessagePack |
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

SCHEMA = "slot int, message binary"


class Range(NamedTuple):
    """What to read of one partition of the log; `more`: the log holds more than that."""

    topic: str
    partition: int
    start: int
    end: int
    more: bool


class Order(NamedTuple):
    """What a task is to do in a batch."""

    stage: int
    partition: int
    base: tuple[int, str] | None
    ranges: list[Range]
    carried: bool  # rows from the batch before wait for it in the checkpoint


class Orders(NamedTuple):
    """For one level and slot."""

    number: int
    clock: int
    level: int
    orders: list[Order]
    globals: tuple[int, str] | None  # the version of the global stores that all tasks see


class Rows(NamedTuple):
    """Rows from an attempt at one task to another task."""

    level: int
    stage: int
    partition: int
    attempt: str
    packed: bytes


class Batch(NamedTuple):
    number: int
    clock: int


_encode = msgspec.msgpack.Encoder().encode
_orders, _rows, _batch = (
    msgspec.msgpack.Decoder(Orders),
    msgspec.msgpack.Decoder(Rows),
    msgspec.msgpack.Decoder(Batch),
)
RECEIPT = b"C"

Message = Orders | Rows | Batch


def encode(message: Message) -> bytes:
    kind = b"O" if isinstance(message, Orders) else b"R" if isinstance(message, Rows) else b"B"
    return kind + _encode(message)


def decode(raw: bytes) -> Message | bytes:
    """A message; a receipt stays bytes, without its kind.

    >>> decode(encode(Batch(7, 0)))
    Batch(number=7, clock=0)
    """
    kind, rest = raw[:1], raw[1:]
    match kind:
        case b"O":
            return _orders.decode(rest)
        case b"R":
            return _rows.decode(rest)
        case b"B":
            return _batch.decode(rest)
        case _:
            return rest


def decode_orders(raw: bytes) -> Orders:
    return _orders.decode(raw[1:])
