"""Records as bytes: how they lie in the log, and how they travel from those who make them to the one who appends them.

| "HRC1" | CRC-32 of the rest u32 | flags u8 | records u32 | first, last time i64 | longest u32 | size u64 | body |

The body is an Arrow IPC record batch without its schema, which flags tell: columns key and value (binary), timestamp
(int64), with flag 1 headers (binary: MessagePack of their pairs), with flag 2 offset (int64). With flag 4 the body is
compressed by zstd, and `size` is its length without. Flag 8: a key is null. Flag 16: a value is null. No record is of
more than `longest` bytes. All numbers are little-endian.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]

from headrace.errors import StateCorruptedError
from headrace.log.protocol import Records
from headrace.model.record import Headers

_arrow: Any = pa  # it has no types

MAGIC = b"HRC1"
HEADERS, OFFSETS, COMPRESSED, NULL_KEYS, TOMBSTONES = 1, 2, 4, 8, 16
_START = struct.Struct("<4sI")
_LABEL = struct.Struct("<BIqqIQ")
_BODY = _START.size + _LABEL.size
# zstd makes a chunk of 10,000 small JSON records four times smaller in 1.3 ms, which writing it takes longer for.
_WORTH_TRYING, _WORTH_IT = 512, 0.9
_MOST_BYTES, _MOST_RECORDS = 8 << 20, 50_000  # in one chunk: whoever needs one record of it decodes all
_HARMLESS = 1 << 20  # bytes of all records: below it nobody asks how long each is, unless a topic allows even less
_NO_TIME = -1  # of a chunk without records

_pack_headers = msgspec.msgpack.Encoder().encode
_unpack_headers = msgspec.msgpack.Decoder(tuple[tuple[str, bytes | None], ...]).decode


class Label(NamedTuple):
    """What is known of packed records without unpacking them."""

    flags: int
    records: int
    first_time: int
    last_time: int
    longest: int
    size: int


def pack(records: Records, offsets: Sequence[int] | None = None) -> bytes:
    """
    >>> unpack(pack(Records([b"k"], [None], [10])))
    (Records(keys=[b'k'], values=[None], timestamps=[10], headers=None), None)
    """
    return _wrap(*_columns(records, offsets), records)


def pack_parts(records: Records) -> Iterator[bytes]:
    """Packs records in as many parts as are good for reading them; one record is one part, however large."""
    for start in range(0, len(records), _MOST_RECORDS):
        yield from _pack_halves(records.part(start, start + _MOST_RECORDS))


def _pack_halves(records: Records) -> Iterator[bytes]:
    batch, flags = _columns(records, None)
    if len(records) == 1 or batch.nbytes <= _MOST_BYTES:
        yield _wrap(batch, flags, records)
    else:
        middle = len(records) // 2
        yield from _pack_halves(records.part(0, middle))
        yield from _pack_halves(records.part(middle, len(records)))


def _columns(records: Records, offsets: Sequence[int] | None) -> tuple[Any, int]:
    """The record batch, and its flags."""
    keys = _binary(records.keys)
    values = _binary(records.values)
    columns = [keys, values, _integers(records.timestamps)]
    flags = (NULL_KEYS if keys.null_count else 0) | (TOMBSTONES if values.null_count else 0)
    if records.headers is not None:
        packed = [_pack_headers(headers) if headers else None for headers in records.headers]
        columns.append(_binary(packed))
        flags |= HEADERS
    if offsets is not None:
        columns.append(_integers(offsets))
        flags |= OFFSETS
    return _arrow.RecordBatch.from_arrays(columns, schema=_schema(flags & (HEADERS | OFFSETS))), flags


def _wrap(batch: Any, flags: int, records: Records) -> bytes:
    body = batch.serialize().to_pybytes()
    size = len(body)
    if size >= _WORTH_TRYING:
        smaller = _arrow.compress(body, codec="zstd", asbytes=True)
        if len(smaller) <= size * _WORTH_IT:
            body, flags = smaller, flags | COMPRESSED
    times = records.timestamps or (_NO_TIME,)
    longest = size if size <= _HARMLESS else _longest(records)
    label = _LABEL.pack(flags, len(records), min(times), max(times), longest, size)
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
    batch = _arrow.ipc.read_record_batch(_arrow.py_buffer(body), _schema(label.flags & (HEADERS | OFFSETS)))
    keys, values, timestamps, *more = (column.to_pylist() for column in batch.columns)
    headers: list[Headers] | None = None
    if label.flags & HEADERS:
        headers = [() if raw is None else _unpack_headers(raw) for raw in more[0]]
    return Records(keys, values, timestamps, headers), more[-1] if label.flags & OFFSETS else None


# Not `pyarrow.array`: it imports pandas, where that is installed, which takes a second and slows every worker down.
def _binary(column: Sequence[bytes | None]) -> Any:
    builder = _arrow.lib.StringBuilder()
    builder.append_values(column)
    return builder.finish().view(_arrow.binary())


def _integers(column: Sequence[int]) -> Any:
    return _arrow.Array.from_buffers(_arrow.int64(), len(column), [None, _arrow.py_buffer(array("q", column))])


@cache
def _schema(flags: int) -> Any:
    fields = [("key", _arrow.binary()), ("value", _arrow.binary()), ("timestamp", _arrow.int64())]
    if flags & HEADERS:
        fields.append(("headers", _arrow.binary()))
    if flags & OFFSETS:
        fields.append(("offset", _arrow.int64()))
    return _arrow.schema(fields)


def longest_of(packed: bytes) -> int:
    """How long the longest record is."""
    return _longest(unpack(packed)[0])


def _longest(records: Records) -> int:
    headers = records.headers or [()] * len(records)
    return max(map(record_length, records.keys, records.values, headers))


def record_length(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """What counts for max.message.bytes.

    >>> record_length(b"key", None, (("h", b"12"),))
    6
    """
    length = len(key or b"") + len(value or b"")
    return length + sum(len(name) + len(raw or b"") for name, raw in headers) if headers else length
