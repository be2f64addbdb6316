"""Every layout of a composite key, encode beside decode.

Engines compare keys as bytes, so a layout decides an order. Key bytes are escaped where something follows them, times
are signed 64-bit numbers, big-endian, with the sign flipped so that negative ones come first.

    escaped key   | every 00 as 00 FF | 00 01 |              no escaped key is the beginning of another
    window        | escaped key | start |                    by key, then start
    duplicate     | escaped key | start | sequence u32 |     by key, then start, then arrival
    session       | escaped key | end | start |              by key, then end, then start
    version       | escaped key | valid from |               by key, oldest version first
    by time       | time | key |                             oldest first
    by end        | end | start | key |
    subscription  | length of the foreign key u32 | foreign key | primary key |
"""

from __future__ import annotations

import struct

SIGN = 1 << 63
FIRST, LAST = -SIGN, SIGN - 1  # the smallest and the largest time
END_OF_KEY = b"\x00\x01"

LENGTH = struct.Struct(">I")
TIME = struct.Struct(">Q")
TIMES = struct.Struct(">QQ")
TIME_AND_SEQUENCE = struct.Struct(">QI")


def successor(prefix: bytes) -> bytes | None:
    r"""The smallest bytes above all that begin with `prefix`; None if there are none.

    >>> successor(b"ab"), successor(b"a\xff"), successor(b"\xff")
    (b'ac', b'b', None)
    """
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None


def escape(key: bytes) -> bytes:
    return key.replace(b"\x00", b"\x00\xff") + END_OF_KEY


def unescape(escaped: bytes) -> bytes:
    return escaped[:-2].replace(b"\x00\xff", b"\x00")


# | time |
def decode_time(raw: bytes) -> int:
    return TIME.unpack_from(raw)[0] - SIGN


# | escaped key | time |: windows and versions
def encode_window(key: bytes, start: int) -> bytes:
    return key.replace(b"\x00", b"\x00\xff") + END_OF_KEY + TIME.pack(start + SIGN)


def decode_window(raw: bytes) -> tuple[bytes, int]:
    return unescape(raw[:-8]), TIME.unpack_from(raw, len(raw) - 8)[0] - SIGN


def windows_between(key: bytes, first: int, last: int) -> tuple[bytes, bytes | None]:
    """The bounds of a scan over the windows of a key that start from `first` to `last`, both included."""
    escaped = escape(key)
    end = escaped + TIME.pack(last + 1 + SIGN) if last < LAST else successor(escaped)
    return escaped + TIME.pack(first + SIGN), end


# | escaped key | start | sequence u32 |
def encode_duplicate(key: bytes, start: int, sequence: int) -> bytes:
    return key.replace(b"\x00", b"\x00\xff") + END_OF_KEY + TIME_AND_SEQUENCE.pack(start + SIGN, sequence)


def decode_duplicate(raw: bytes) -> tuple[bytes, int, int]:
    start, sequence = TIME_AND_SEQUENCE.unpack_from(raw, len(raw) - 12)
    return unescape(raw[:-12]), start - SIGN, sequence


# | escaped key | end | start |
def encode_session(key: bytes, start: int, end: int) -> bytes:
    return key.replace(b"\x00", b"\x00\xff") + END_OF_KEY + TIMES.pack(end + SIGN, start + SIGN)


def decode_session(raw: bytes) -> tuple[bytes, int, int]:
    """The key, the start and the end."""
    end, start = TIMES.unpack_from(raw, len(raw) - 16)
    return unescape(raw[:-16]), start - SIGN, end - SIGN


# | time | key |
def encode_by_time(time: int, key: bytes) -> bytes:
    return TIME.pack(time + SIGN) + key


def decode_by_time(raw: bytes) -> tuple[int, bytes]:
    return TIME.unpack_from(raw)[0] - SIGN, raw[8:]


# | end | start | key |
def encode_by_end(key: bytes, start: int, end: int) -> bytes:
    return TIMES.pack(end + SIGN, start + SIGN) + key


def decode_by_end(raw: bytes) -> tuple[bytes, int, int]:
    """The key, the start and the end."""
    end, start = TIMES.unpack_from(raw)
    return raw[16:], start - SIGN, end - SIGN


def times_between(first: int, last: int) -> tuple[bytes, bytes | None]:
    """The bounds of a scan over a layout that begins with a time, from `first` to `last`, both included."""
    return TIME.pack(first + SIGN), TIME.pack(last + 1 + SIGN) if last < LAST else None


# | length of the foreign key u32 | foreign key | primary key |
def encode_subscription(foreign_key: bytes, primary_key: bytes) -> bytes:
    return subscription_prefix(foreign_key) + primary_key


def subscription_prefix(foreign_key: bytes) -> bytes:
    """The prefix that the subscriptions of a foreign key share, and no others have."""
    return LENGTH.pack(len(foreign_key)) + foreign_key
