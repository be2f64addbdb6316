"""Layouts of stored values, encode beside decode, and cells: single values that are state.

parts    | number of parts u32 | length of each i32, -1 if absent | the parts |

A codec lays a value out with a timestamp or a period of validity. A cell holds a clock, a sequence number or the stream
time of an operator.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import add, itemgetter
from typing import Any, NamedTuple

from headrace.errors import StateCorruptedError
from headrace.model.record import Headers, RecordMetadata, ValueAndTimestamp, VersionedRecord
from headrace.serde.protocol import Serde, encode_column

ONE = struct.Struct(">Ii")
NUMBERS = struct.Struct(">qqi")  # timestamp, offset, partition; the partition is -1 where the origin is unknown


def pack_parts(parts: Sequence[bytes | None]) -> bytes:
    """
    >>> unpack_parts(pack_parts([b"a", None, b""]))
    [b'a', None, b'']
    """
    if len(parts) == 1 and parts[0] is not None:
        return ONE.pack(1, len(parts[0])) + parts[0]
    lengths = [-1 if part is None else len(part) for part in parts]
    return struct.pack(f">I{len(parts)}i", len(parts), *lengths) + b"".join(part for part in parts if part)


def unpack_parts(raw: bytes) -> list[bytes | None]:
    (count,) = struct.unpack_from(">I", raw)
    lengths = struct.unpack_from(f">{count}i", raw, 4)
    at, parts = 4 + 4 * count, list[bytes | None]()
    for length in lengths:
        parts.append(None if length < 0 else raw[at : at + length])
        at += max(0, length)
    return parts


def pack_record(
    values: Sequence[bytes | None], timestamp: int, headers: Headers, metadata: RecordMetadata | None
) -> bytes:
    """The parts of a value, and the context of the record that they came with."""
    topic, partition, offset = metadata or ("", -1, -1)
    named = [part for name, value in headers for part in (name.encode(), value)]
    return pack_parts([pack_parts(values), NUMBERS.pack(timestamp, offset, partition), topic.encode(), *named])


def unpack_record(raw: bytes) -> tuple[list[bytes | None], int, Headers, RecordMetadata | None]:
    """
    >>> unpack_record(pack_record([b"new", None], 7, (("h", None),), RecordMetadata("t", 0, 3)))
    ([b'new', None], 7, (('h', None),), RecordMetadata(topic='t', partition=0, offset=3))
    """
    values, numbers, topic, *named = unpack_parts(raw)
    timestamp, offset, partition = NUMBERS.unpack(numbers or b"")
    headers = tuple(((name or b"").decode(), value) for name, value in zip(named[::2], named[1::2], strict=True))
    metadata = None if partition < 0 else RecordMetadata((topic or b"").decode(), partition, offset)
    return unpack_parts(values or b""), timestamp, headers, metadata


_first, _second = itemgetter(0), itemgetter(1)
NUMBER = struct.Struct(">q")
NUMBER_AND_FLAG = struct.Struct(">q?")


class Codec(NamedTuple):
    """Encodes and decodes the values of a table; `share` is true when a decoded value cannot be changed in place.

    `encode_all` encodes many values, more quickly than `encode` one by one; it may be None.
    """

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    share: bool
    encode_all: Callable[[Sequence[Any]], list[bytes]] | None = None


def plain(serde: Serde) -> Codec:
    return Codec(serde.encode, serde.decode, serde.immutable)


# | timestamp i64 | value |
def timestamped(serde: Serde, make: Callable[[Any, int], tuple[Any, ...]] = ValueAndTimestamp) -> Codec:
    """The codec of `ValueAndTimestamp`, or of another tuple that begins with a value and its timestamp."""
    to_bytes, from_bytes = serde.encode, serde.decode

    def encode(pair: tuple[Any, ...]) -> bytes:
        return NUMBER.pack(pair[1]) + to_bytes(pair[0])

    def decode(raw: bytes) -> tuple[Any, ...]:
        return make(from_bytes(raw[8:]), NUMBER.unpack_from(raw)[0])

    def encode_all(pairs: Sequence[tuple[Any, ...]]) -> list[bytes]:
        raws: Sequence[Any] = encode_column(serde, list(map(_first, pairs)))
        return list(map(add, map(NUMBER.pack, map(_second, pairs)), raws))

    return Codec(encode, decode, serde.immutable, encode_all)


def latest(serde: Serde) -> Codec:
    """The codec of the latest `VersionedRecord` of a key: it has no end, so it is laid out as a timestamped value."""
    return timestamped(serde, VersionedRecord)


# | valid to i64 | 1 | value |, or | valid to i64 | 0 | for a deletion
def past(serde: Serde) -> Codec:
    """The codec of `(valid_to, value or None)`: a version that has ended."""
    to_bytes, from_bytes = serde.encode, serde.decode

    def encode(version: tuple[int, Any]) -> bytes:
        valid_to, value = version
        return NUMBER_AND_FLAG.pack(valid_to, value is not None) + (b"" if value is None else to_bytes(value))

    def decode(raw: bytes) -> tuple[int, Any]:
        valid_to, present = NUMBER_AND_FLAG.unpack_from(raw)
        return valid_to, from_bytes(raw[9:]) if present else None

    return Codec(encode, decode, serde.immutable)


# | number of the use i64 | value |
def used(serde: Serde) -> Codec:
    """The codec of `(number of the last use, value)`."""
    to_bytes, from_bytes = serde.encode, serde.decode

    def encode(entry: tuple[int, Any]) -> bytes:
        return NUMBER.pack(entry[0]) + to_bytes(entry[1])

    def decode(raw: bytes) -> tuple[int, Any]:
        return NUMBER.unpack_from(raw)[0], from_bytes(raw[8:])

    return Codec(encode, decode, serde.immutable)


Content = int | bytes | None


class Cell:
    """One value; operators read and set `value`, a commit saves it if it changed."""

    __slots__ = ("default", "saved", "value")

    value: Any  # an int, bytes or None; the operator knows which
    saved: Any  # as of the last commit

    def __init__(self, default: Content, saved: Content) -> None:
        self.default = default
        self.value = self.saved = saved


# none    | 0 |
# int     | 1 | as few bytes as it takes, big-endian, two's complement |
# bytes   | 2 | the bytes |
def encode_cell(content: Content) -> bytes:
    r"""
    >>> encode_cell(-1), encode_cell(b"x"), encode_cell(None)
    (b'\x01\xff', b'\x02x', b'\x00')
    """
    if content is None:
        return b"\x00"
    if isinstance(content, bytes):
        return b"\x02" + content
    return b"\x01" + content.to_bytes(content.bit_length() // 8 + 1, "big", signed=True)


def decode_cell(raw: bytes) -> Content:
    match raw[:1]:
        case b"\x00":
            return None
        case b"\x01":
            return int.from_bytes(raw[1:], "big", signed=True)
        case b"\x02":
            return raw[1:]
        case _:
            raise StateCorruptedError(f"a cell cannot be {raw!r}: delete the local state, the checkpoint restores it")


class Cells:
    """The logged, or the unlogged, cells of a task."""

    def __init__(self, prefix: bytes, load: Callable[[bytes], bytes | None]) -> None:
        self.prefix, self._load = prefix, load
        self._cells: dict[str, Cell] = {}

    def cell(self, name: str, default: Content) -> Cell:
        found = self._cells.get(name)
        if found is None:
            found = self._cells[name] = Cell(default, self._saved(name, default))
        return found

    def changes(self) -> list[tuple[bytes, bytes | None]]:
        changed = [(name, cell) for name, cell in self._cells.items() if cell.value != cell.saved]
        return sorted((self.prefix + name.encode(), encode_cell(cell.value)) for name, cell in changed)

    def settle(self, _changes: object) -> None:
        for cell in self._cells.values():
            cell.saved = cell.value

    def rollback(self) -> None:
        for cell in self._cells.values():
            cell.value = cell.saved

    def forget(self) -> None:
        """Reads every cell again, because the engine was changed underneath."""
        for name, cell in self._cells.items():
            cell.value = cell.saved = self._saved(name, cell.default)

    def _saved(self, name: str, default: Content) -> Content:
        raw = self._load(self.prefix + name.encode())
        return default if raw is None else decode_cell(raw)
