"""Records as bytes: how they lie in the log, and how they travel from those who make them to the one who appends them.

| "HRC1" | CRC-32 of the rest u32 | flags u8 | count u32 | first and last time i64, i64 | longest u32 | size u64 | body |

The body is an Arrow IPC record batch without its schema, which the flags tell: columns key and value (binary), timestamp
(int64), with flag 1 headers (binary, MessagePack of their pairs), with flag 2 offset (int64). With flag 4 it is compressed
by zstd, and `size` is its length without. Flag 8: a key is null. Flag 16: a value is null. No record is longer than
`longest` bytes. All numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import pyarrow  # pyright: ignore[reportMissingTypeStubs]

from headrace.errors import StateCorruptedError
from headrace.log.protocol import Records
from headrace.model.record import Headers

_arrow: Any = pyarrow  # it has no types

MAGIC = b"HRC1"
HEADERS, OFFSETS, COMPRESSED, NULL_KEYS, TOMBSTONES = 1, 2, 4, 8, 16
_START = struct.Struct("<4sI")
_LABEL = struct.Struct("<BIqqIQ")
_BODY = _START.size + _LABEL.size
# zstd makes a chunk of 10,000 small JSON records four times smaller in 1.3 ms, which writing it takes longer for.
_WORTH_TRYING, _WORTH_IT = 512, 0.9
_MOST_BYTES, _MOST_RECORDS = 8 << 20, 50_000  # in one chunk: whoever needs one record of it decodes all
_NO_TIME = -1  # of a chunk without records

_pack_headers = msgspec.msgpack.Encoder().encode
_unpack_headers = msgspec.msgpack.Decoder(tuple[tuple[str, bytes | None], ...]).decode


class Label(NamedTuple):
    """What is known of packed records without unpacking them."""

    flags: int
    count: int
    first_time: int
    last_time: int
    longest: int
    size: int


def pack(records: Records, offsets: Sequence[int] | None = None) -> bytes:
    """
    >>> unpack(pack(Records([b"k"], [None], [10])))
    (Records(keys=[b'k'], values=[None], timestamps=[10], headers=None), None)
    """
    keys = _arrow.array(records.keys, _arrow.binary())
    values = _arrow.array(records.values, _arrow.binary())
    columns = [keys, values, _arrow.array(records.timestamps, _arrow.int64())]
    flags = (NULL_KEYS if keys.null_count else 0) | (TOMBSTONES if values.null_count else 0)
    longest = _longest(records.keys) + _longest(records.values)
    if records.headers is not None:
        packed = [_pack_headers(headers) if headers else None for headers in records.headers]
        columns.append(_arrow.array(packed, _arrow.binary()))
        flags, longest = flags | HEADERS, longest + _longest(packed)
    if offsets is not None:
        columns.append(_arrow.array(offsets, _arrow.int64()))
        flags |= OFFSETS
    body = _arrow.RecordBatch.from_arrays(columns, schema=_schema(flags)).serialize().to_pybytes()
    return _wrap(body, flags, longest, records.timestamps)


def _wrap(body: bytes, flags: int, longest: int, timestamps: Sequence[int]) -> bytes:
    size = len(body)
    if size >= _WORTH_TRYING:
        smaller = _arrow.compress(body, codec="zstd", asbytes=True)
        if len(smaller) <= size * _WORTH_IT:
            body, flags = smaller, flags | COMPRESSED
    first, last = (min(timestamps), max(timestamps)) if timestamps else (_NO_TIME, _NO_TIME)
    label = _LABEL.pack(flags, len(timestamps), first, last, longest, size)
    return b"".join((_START.pack(MAGIC, crc32(body, crc32(label))), label, body))


def label_of(packed: bytes) -> Label:
    """The label, of bytes that are whole."""
    check(packed)
    return Label(*_LABEL.unpack_from(packed, _START.size))


def digest_of(packed: bytes) -> int:
    """The checksum that packed records carry."""
    return _START.unpack_from(packed)[1]


def check(packed: bytes) -> None:
    """Refuses bytes that are not what `pack` gave."""
    if len(packed) < _BODY or not packed.startswith(MAGIC):
        begin = packed[:4]
        raise StateCorruptedError(
            f"not packed records, or a newer Headrace's: {len(packed)} bytes, beginning {begin!r}"
        )
    found = crc32(memoryview(packed)[_START.size :])
    if found != digest_of(packed):
        raise StateCorruptedError(f"{len(packed)} bytes of records do not match their checksum")


def unpack(packed: bytes) -> tuple[Records, list[int] | None]:
    """The records, and their offsets if they were packed with them."""
    label = label_of(packed)
    body = memoryview(packed)[_BODY:]
    if label.flags & COMPRESSED:
        body = _arrow.decompress(body, decompressed_size=label.size, codec="zstd")
    batch = _arrow.ipc.read_record_batch(_arrow.py_buffer(body), _schema(label.flags))
    keys, values, timestamps, *more = (column.to_pylist() for column in batch.columns)
    headers: list[Headers] | None = None
    if label.flags & HEADERS:
        headers = [() if raw is None else _unpack_headers(raw) for raw in more[0]]
    return Records(keys, values, timestamps, headers), more[-1] if label.flags & OFFSETS else None


def pieces(records: Records) -> Iterator[Records]:
    """Records in parts that are small enough for a chunk each; one record is one part, however large."""
    count = len(records)
    size = _total(records.keys) + _total(records.values)
    parts = max(-(-size // _MOST_BYTES), -(-count // _MOST_RECORDS), 1)
    step = max(-(-count // parts), 1)
    for start in range(0, count, step):
        part = records if step >= count else records.part(start, start + step)
        if len(part) > 1 and _total(part.keys) + _total(part.values) > 2 * _MOST_BYTES:
            middle = len(part) // 2
            yield from pieces(part.part(0, middle))
            yield from pieces(part.part(middle, len(part)))
        else:
            yield part


def _schema(flags: int) -> Any:
    fields = [("key", _arrow.binary()), ("value", _arrow.binary()), ("timestamp", _arrow.int64())]
    if flags & HEADERS:
        fields.append(("headers", _arrow.binary()))
    if flags & OFFSETS:
        fields.append(("offset", _arrow.int64()))
    return _arrow.schema(fields)


def _longest(column: Sequence[bytes | None]) -> int:
    return max(map(len, filter(None, column)), default=0)


def _total(column: Sequence[bytes | None]) -> int:
    return sum(map(len, filter(None, column)))
