"""Every layout of a stored value that says more than the value itself, encode beside decode."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.model.record import ValueAndTimestamp, VersionedRecord
from headrace.serde.protocol import Serde

NUMBER = struct.Struct(">q")
NUMBER_AND_FLAG = struct.Struct(">q?")


class Codec(NamedTuple):
    """How a table writes and reads a value; `share`: a decoded value cannot be changed in place."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    share: bool


def plain(serde: Serde) -> Codec:
    return Codec(serde.encode, serde.decode, serde.immutable)


# | timestamp i64 | value |
def timestamped(serde: Serde) -> Codec:
    """For `ValueAndTimestamp`."""
    to_bytes, from_bytes = serde.encode, serde.decode

    def encode(pair: ValueAndTimestamp) -> bytes:
        return NUMBER.pack(pair[1]) + to_bytes(pair[0])

    def decode(raw: bytes) -> ValueAndTimestamp:
        return ValueAndTimestamp(from_bytes(raw[8:]), NUMBER.unpack_from(raw)[0])

    return Codec(encode, decode, serde.immutable)


def latest(serde: Serde) -> Codec:
    """For the latest `VersionedRecord` of a key: it has no end, so it is laid out as a timestamped value is."""
    to_bytes, from_bytes = serde.encode, serde.decode

    def encode(record: VersionedRecord) -> bytes:
        return NUMBER.pack(record.timestamp) + to_bytes(record.value)

    def decode(raw: bytes) -> VersionedRecord:
        return VersionedRecord(from_bytes(raw[8:]), NUMBER.unpack_from(raw)[0])

    return Codec(encode, decode, serde.immutable)


# | valid to i64 | 1 | value |, or | valid to i64 | 0 | where the key was deleted at that time
def past(serde: Serde) -> Codec:
    """For `(valid_to, value or None)`: a version that is over."""
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
    """For `(number of the last use, value)`."""
    to_bytes, from_bytes = serde.encode, serde.decode

    def encode(entry: tuple[int, Any]) -> bytes:
        return NUMBER.pack(entry[0]) + to_bytes(entry[1])

    def decode(raw: bytes) -> tuple[int, Any]:
        return NUMBER.unpack_from(raw)[0], from_bytes(raw[8:])

    return Codec(encode, decode, serde.immutable)
