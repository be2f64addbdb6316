"""Several byte strings, some of them absent, in one; and a record's context beside them.

| number of parts u32 | length of each i32, -1 if absent | the parts |
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from headrace.model.record import Headers, RecordMetadata

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
