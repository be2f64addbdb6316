"""Lists, byte for byte as Kafka's ListSerde writes them."""

from __future__ import annotations

import struct
from typing import Any, TypeVar, cast

from headrace.serde import primitives
from headrace.serde.protocol import Serde

# Values of one size:  | 0 u8 | nulls i32 | index of a null i32, each | entries i32 | value, each that is not null |
# All others:          | 1 u8 | entries i32 | length i32, -1 for null; value; each |
_ONE_SIZE, _ANY_SIZE, _NULL = 0, 1, -1
_SIZES: dict[Serde[Any], int] = {
    primitives.SHORT: 2,
    primitives.INTEGER: 4,
    primitives.FLOAT: 4,
    primitives.LONG: 8,
    primitives.DOUBLE: 8,
    primitives.UUID: 36,
}
_INT = struct.Struct(">i")


T = TypeVar("T")


def list_of(inner: Serde[T]) -> Serde[list[T]]:
    """Lists whose entries have the serde `inner`, or are None.

    >>> list_of(primitives.SHORT).encode([1, None]).hex(" ", -4)
    '00000000 01000000 01000000 020001'
    """
    size = _SIZES.get(inner)

    def encode(values: Any) -> bytes:
        if not isinstance(values, (list, tuple)):
            raise _not_a_list(inner, values)
        entries = [None if value is None else inner.encode(value) for value in cast("list[Any]", values)]
        return _join_any_size(entries) if size is None else _join_one_size(entries)

    def decode(raw: bytes) -> list[Any]:
        try:
            entries = _split(raw, size)
        except (struct.error, IndexError, EOFError):
            raise ValueError(f"list_of({inner.name}) cannot read {raw[:40]!r}: cut short, or another serde's") from None
        return [None if entry is None else inner.decode(entry) for entry in entries]

    return Serde(f"list_of({inner.name})", encode, decode, recipe=(list_of, (inner,)))


def _not_a_list(inner: Serde, values: object) -> TypeError:
    return TypeError(f"list_of({inner.name}) encodes a list, not {values!r} of type {type(values).__name__}")


def _join_one_size(entries: list[bytes | None]) -> bytes:
    nulls = [i for i, entry in enumerate(entries) if entry is None]
    head = struct.pack(f">bi{len(nulls)}ii", _ONE_SIZE, len(nulls), *nulls, len(entries))
    return head + b"".join(entry for entry in entries if entry is not None)


def _join_any_size(entries: list[bytes | None]) -> bytes:
    parts = [struct.pack(">bi", _ANY_SIZE, len(entries))]
    for entry in entries:
        parts += (_INT.pack(_NULL),) if entry is None else (_INT.pack(len(entry)), entry)
    return b"".join(parts)


def _split(raw: bytes, size: int | None) -> list[bytes | None]:
    """The bytes of the entries; how they are written is in the bytes, as Kafka's reader takes it."""
    if raw[0] == _ANY_SIZE:
        return _split_any_size(raw)
    if raw[0] == _ONE_SIZE and size is not None:
        return _split_one_size(raw, size)
    raise EOFError


def _split_one_size(raw: bytes, size: int) -> list[bytes | None]:
    (count,) = _INT.unpack_from(raw, 1)
    nulls = set(struct.unpack_from(f">{count}i", raw, 5))
    position = 5 + 4 * count
    length = _length(raw, position)
    position += 4
    entries: list[bytes | None] = []
    for i in range(length):
        if i in nulls:
            entries.append(None)
            continue
        entries.append(_part(raw, position, size))
        position += size
    return entries


def _split_any_size(raw: bytes) -> list[bytes | None]:
    length = _length(raw, 1)
    position = 5
    entries: list[bytes | None] = []
    for _ in range(length):
        (size,) = _INT.unpack_from(raw, position)
        position += 4
        if size == _NULL:
            entries.append(None)
            continue
        entries.append(_part(raw, position, size))
        position += size
    return entries


def _length(raw: bytes, at: int) -> int:
    (length,) = _INT.unpack_from(raw, at)
    if length < 0:
        raise EOFError
    return length


def _part(raw: bytes, start: int, size: int) -> bytes:
    if size < 0 or start + size > len(raw):
        raise EOFError
    return raw[start : start + size]
