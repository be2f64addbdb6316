"""The format of a packed chunk: records as bytes, in the embedded log, in outboxes, and between processes.

| "HRC1" | CRC-32 of the rest u32 | flags u8 | records u32 | first, last time i64 | longest u32 | size u64 | body |

All numbers are little-endian. The body is an Arrow IPC record batch without its schema. Its columns are key and value
(binary), timestamp (int64), and as the flags say headers and offset. `longest` is an upper bound for the bytes of a
record, and `size` is the length of the body before compression.

| flag | meaning |
|------|---------|
| 1    | there is a column headers (binary: MessagePack of the pairs) |
| 2    | there is a column offset (int64) |
| 4    | the body is compressed by zstd |
| 8    | some key is null |
| 16   | some value is null |

`pack` and `unpack` convert; `read_header` reads what is known of a chunk without unpacking it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from headrace.errors import MissingExtraError, StateCorruptedError
from headrace.extras import lazy_extra
from headrace.log.protocol import Records
from headrace.model.record import Headers

_arrow = lazy_extra("pyarrow", "spark")

MAGIC = b"HRC1"
HEADERS, OFFSETS, COMPRESSED, NULL_KEYS, TOMBSTONES = 1, 2, 4, 8, 16
_PREFIX = struct.Struct("<4sI")
_HEADER = struct.Struct("<BIqqIQ")
_BODY = _PREFIX.size + _HEADER.size
# zstd compresses a chunk of 10,000 small JSON records to a quarter in 1.3 ms, less than writing the rest would take.
_MIN_COMPRESSED_SIZE, _MAX_COMPRESSED_RATIO = 512, 0.9
_MAX_BYTES, _MAX_RECORDS = 8 << 20, 50_000  # of one chunk: to read one record, all of them are decoded
_SMALL_BODY = 1 << 20  # bytes: up to here `longest` is the size of the body, and no record is measured
_NO_TIME = -1  # first and last time of a chunk without records

_pack_headers = msgspec.msgpack.Encoder().encode
_unpack_headers = msgspec.msgpack.Decoder(tuple[tuple[str, bytes | None], ...]).decode


class ChunkHeader(NamedTuple):
    """What is known of a packed chunk without unpacking it."""

    flags: int
    records: int
    first_time: int
    last_time: int
    longest: int
    size: int


def pack(records: Records, offsets: Sequence[int] | None = None) -> bytes:
    """Packs records into one chunk.

    >>> unpack(pack(Records([b"k"], [None], [10])))
    (Records(keys=[b'k'], values=[None], timestamps=[10], headers=None), None)
    """
    return _encode(*_build_batch(records, offsets), records)


def pack_parts(records: Records) -> Iterator[bytes]:
    """Packs records into chunks of a limited size. A single record is never split, however large it is."""
    for start in range(0, len(records), _MAX_RECORDS):
        yield from _pack_bisected(records.slice(start, start + _MAX_RECORDS))


def _pack_bisected(records: Records) -> Iterator[bytes]:
    batch, flags = _build_batch(records, None)
    if len(records) == 1 or batch.nbytes <= _MAX_BYTES:
        yield _encode(batch, flags, records)
    else:
        middle = len(records) // 2
        yield from _pack_bisected(records.slice(0, middle))
        yield from _pack_bisected(records.slice(middle, len(records)))


def _build_batch(records: Records, offsets: Sequence[int] | None) -> tuple[Any, int]:
    """Returns the Arrow record batch and its flags."""
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


def _encode(batch: Any, flags: int, records: Records) -> bytes:
    body = batch.serialize().to_pybytes()
    size = len(body)
    if size >= _MIN_COMPRESSED_SIZE:
        smaller = _arrow.compress(body, codec="zstd", asbytes=True)
        if len(smaller) <= size * _MAX_COMPRESSED_RATIO:
            body, flags = smaller, flags | COMPRESSED
    times = records.timestamps or (_NO_TIME,)
    longest = size if size <= _SMALL_BODY else longest_record(records)
    header = _HEADER.pack(flags, len(records), min(times), max(times), longest, size)
    return b"".join((_PREFIX.pack(MAGIC, crc32(body, crc32(header))), header, body))


def read_checksum(packed: bytes) -> int:
    """Returns the checksum that a packed chunk carries, without checking it."""
    return _PREFIX.unpack_from(packed)[1]


def read_header(packed: bytes) -> ChunkHeader:
    """Checks the checksum of a packed chunk, and returns its header."""
    if len(packed) < _BODY or not packed.startswith(MAGIC):
        begin = packed[:4]
        raise StateCorruptedError(
            f"not packed records, or a newer Headrace's: {len(packed)} bytes, beginning {begin!r}"
        )
    if crc32(memoryview(packed)[_PREFIX.size :]) != read_checksum(packed):
        raise StateCorruptedError(f"{len(packed)} bytes of records do not match their checksum")
    return ChunkHeader(*_HEADER.unpack_from(packed, _PREFIX.size))


def unpack(packed: bytes) -> tuple[Records, list[int] | None]:
    """Checks and unpacks a chunk. Returns the records, and their offsets if they were packed with offsets."""
    header = read_header(packed)
    try:
        return _decode(header, memoryview(packed)[_BODY:])
    except MissingExtraError:
        raise
    except Exception as error:  # the checksum is right, so it was not written by `pack`: Arrow may raise anything
        raise StateCorruptedError(f"{len(packed)} bytes of records cannot be read: {error}") from error


def _decode(header: ChunkHeader, body: memoryview) -> tuple[Records, list[int] | None]:
    if header.flags & COMPRESSED:
        body = _arrow.decompress(body, decompressed_size=header.size, codec="zstd")
    batch = _arrow.ipc.read_record_batch(_arrow.py_buffer(body), _schema(header.flags & (HEADERS | OFFSETS)))
    batch.validate(full=True)  # else wrong offsets lead out of the buffer; takes 0.1 of 4 ms for 10,000 records
    keys, values, timestamps, *more = (column.to_pylist() for column in batch.columns)
    headers: list[Headers] | None = None
    if header.flags & HEADERS:
        headers = [() if raw is None else _unpack_headers(raw) for raw in more[0]]
    return Records(keys, values, timestamps, headers), more[-1] if header.flags & OFFSETS else None


# `pyarrow.array` is not used: it imports pandas where that is installed, which takes a second in every worker.
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


def longest_record(records: Records) -> int:
    """Returns the length of the longest record."""
    headers = records.headers or [()] * len(records)
    return max(map(record_length, records.keys, records.values, headers))


def record_length(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Returns the bytes of a record that count for max.message.bytes.

    >>> record_length(b"key", None, (("h", b"12"),))
    6
    """
    length = len(key or b"") + len(value or b"")
    return length + sum(len(name) + len(raw or b"") for name, raw in headers) if headers else length
