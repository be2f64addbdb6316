"""The messages of a foreign-key join: the left side subscribes, the right side responds."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, NamedTuple

from headrace.serde.protocol import Serde

# | flags u8 | hash length u8, hash: if flag 4 | partition u32: if flag 8 | primary key, or value |
# The two lowest flags of a subscription are its instruction.
_HASH, _PARTITION = 4, 8
_U32 = struct.Struct(">I")


class Instruction(IntEnum):
    """What the right side does with a subscription."""

    DELETE_KEY_NO_PROPAGATE = 0
    DELETE_KEY_AND_PROPAGATE = 1
    PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE = 2
    PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE = 3


class Subscription(NamedTuple):
    """A left row tells the right side that it has, or no longer has, a foreign key.

    The hash is the left value's: it comes back in the response and tells whether the value has changed meanwhile.
    """

    hash: bytes | None
    instruction: Instruction
    primary_key: Any
    primary_partition: int | None = None


class Response(NamedTuple):
    """The right value for a left row, with the hash of the subscription that asked for it."""

    hash: bytes | None
    value: Any
    primary_partition: int | None = None


_INSTRUCTIONS = tuple(Instruction)


def subscription_serde(primary_key: Serde) -> Serde:
    r"""Subscriptions whose primary key has the given serde.

    >>> from headrace.serde import STRING
    >>> subscription_serde(STRING).encode(Subscription(b"#", Instruction.DELETE_KEY_AND_PROPAGATE, "k", 2))
    b'\r\x01#\x00\x00\x00\x02k'
    """

    def encode(subscription: Subscription) -> bytes:
        digest, instruction, key, partition = subscription
        return _head(instruction, digest, partition) + primary_key.encode(key)

    def decode(raw: bytes) -> Subscription:
        digest, partition, start = _read_head(raw)
        return Subscription(digest, _INSTRUCTIONS[raw[0] & 3], primary_key.decode(raw[start:]), partition)

    name = f"subscription_serde({primary_key.name})"
    return Serde(name, encode, decode, primary_key.immutable, (subscription_serde, (primary_key,)))


def response_serde(value: Serde) -> Serde:
    r"""Responses whose value has the given serde, or is None.

    >>> from headrace.serde import STRING
    >>> response_serde(STRING).decode(b"\x00")
    Response(hash=None, value=None, primary_partition=None)
    """

    def encode(response: Response) -> bytes:
        digest, answer, partition = response
        return _head(0, digest, partition) + (b"" if answer is None else value.encode(answer))

    def decode(raw: bytes) -> Response:
        digest, partition, start = _read_head(raw)
        # As in Kafka Streams, a right value of no bytes arrives as no value.
        return Response(digest, value.decode(raw[start:]) if start < len(raw) else None, partition)

    return Serde(f"response_serde({value.name})", encode, decode, value.immutable, (response_serde, (value,)))


def _head(flags: int, digest: bytes | None, partition: int | None) -> bytes:
    head = bytearray((flags,))
    if digest is not None:
        head[0] |= _HASH
        head.append(len(digest))
        head += digest
    if partition is not None:
        head[0] |= _PARTITION
        head += _U32.pack(partition)
    return bytes(head)


def _read_head(raw: bytes) -> tuple[bytes | None, int | None, int]:
    """The hash, the partition, and where the rest begins."""
    digest, partition, at = None, None, 1
    try:
        if raw[0] & _HASH:
            at = 2 + raw[1]
            digest = raw[2:at]
        if raw[0] & _PARTITION:
            (partition,) = _U32.unpack_from(raw, at)
            at += 4
    except (IndexError, struct.error):
        at = len(raw) + 1
    if at > len(raw) or raw[0] > 15:
        raise ValueError(f"not a message of a foreign-key join: {raw[:40]!r}")
    return digest, partition, at
