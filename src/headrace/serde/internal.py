"""Serdes of what stays inside an application.

- Values without a declared serde: | 0 | MessagePack |; a tuple: | 1 | MessagePack of its list |; "": no bytes.
- Records for a sink without a declared serde: MessagePack; objects with fields come back as dicts.
- Changes of a table, sent to another sub-topology.
- Messages of a foreign-key join: the left side sends subscriptions, the right side sends responses.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple, cast

import msgspec

from headrace.model.record import Change
from headrace.serde.protocol import Serde

_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.decode
_SCALARS = frozenset({str, int, float, bool, bytes, type(None)})


def encode(value: Any) -> bytes:
    if value == "":
        return b""  # as STRING has it
    is_tuple = type(value) is tuple
    _check(list(cast("tuple[Any, ...]", value)) if is_tuple else value, value)
    try:
        return (b"\x01" if is_tuple else b"\x00") + _encode(value)
    except OverflowError as problem:
        raise _refused(value, str(problem)) from None


def decode(raw: bytes) -> Any:
    if not raw:
        return ""
    try:
        value = _decode(memoryview(raw)[1:])
        return tuple(value) if raw[0] else value
    except (msgspec.DecodeError, TypeError, RecursionError) as problem:
        raise ValueError(f"not a value that was written without a serde: {raw[:40]!r}: {problem}") from None


def _check(part: Any, whole: Any) -> None:
    """Rejects values that would decode to something else."""
    if type(part) in _SCALARS:
        return
    if type(part) is list:
        parts = cast("list[Any]", part)
    elif type(part) is dict:
        parts = [*cast("dict[Any, Any]", part), *cast("dict[Any, Any]", part).values()]
    else:
        raise _refused(whole, f"it would not come back as a {type(part).__name__}")
    for item in parts:
        _check(item, whole)


def _refused(value: Any, why: str) -> TypeError:
    return TypeError(
        f"a {type(value).__name__} cannot be kept without a serde: {why}. "
        "Declare one where the stream or table is made: value=..., or store=Materialized(value=...)"
    )


UNDECLARED = Serde("UNDECLARED", encode, decode)


def _plain(value: Any) -> Any:
    """What MessagePack has no type for: a pydantic model becomes a dict, anything else is an error."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"a {type(value).__name__} has no fields that can be written: give the sink a serde, value=...")


def _encode_row(value: Any) -> bytes:
    return _row_encoder.encode(value)


def _decode_row(raw: bytes) -> Any:
    return _decode(raw)


_row_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
ROW = Serde("ROW", _encode_row, _decode_row)


# | flags u8: 1 new, 2 old, 4 latest | length of new u32, if there are both | new | old |
_NEW, _OLD, _LATEST = 1, 2, 4
_BOTH = _NEW | _OLD
_HEAD = struct.Struct(">BI")


def change_serde(inner: Serde) -> Serde:
    r"""Changes `(new, old, is_latest)` of values whose serde is `inner`; new and old may be None.

    >>> from headrace.serde import STRING
    >>> change_serde(STRING).encode(("new", "old", True))
    b'\x07\x00\x00\x00\x03newold'
    """
    encode_value, decode_value = inner.encode, inner.decode

    def encode(change: Change) -> bytes:
        new, old, is_latest = change
        latest = _LATEST if is_latest else 0
        if old is None:
            return bytes((latest,)) if new is None else bytes((latest | _NEW,)) + encode_value(new)
        if new is None:
            return bytes((latest | _OLD,)) + encode_value(old)
        raw = encode_value(new)
        return _HEAD.pack(latest | _BOTH, len(raw)) + raw + encode_value(old)

    def decode(raw: bytes) -> Change:
        flags = raw[0] if raw else 8
        latest = flags & _LATEST != 0
        if flags & _BOTH == _BOTH and len(raw) >= _HEAD.size:
            middle = _HEAD.size + _HEAD.unpack_from(raw)[1]
            if middle <= len(raw):
                return decode_value(raw[_HEAD.size : middle]), decode_value(raw[middle:]), latest
        elif flags & _BOTH == _NEW:
            return decode_value(raw[1:]), None, latest
        elif flags & _BOTH == _OLD:
            return None, decode_value(raw[1:]), latest
        elif flags <= _LATEST and len(raw) == 1:
            return None, None, latest
        raise ValueError(f"not a change of {inner.name}: {raw[:40]!r}")

    return Serde(f"change_serde({inner.name})", encode, decode, inner.immutable, (change_serde, (inner,)))


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


def move_subscription(raw: bytes, partition_of: Callable[[bytes], int]) -> bytes:
    r"""Returns an encoded subscription with another partition, by the bytes of its primary key.

    >>> move_subscription(b'\r\x01#\x00\x00\x00\x02k', lambda key: 5)
    b'\r\x01#\x00\x00\x00\x05k'
    """
    _, partition, start = _read_head(raw)
    if partition is None:
        return raw
    key = raw[start:]
    return raw[: start - _U32.size] + _U32.pack(partition_of(key)) + key


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
