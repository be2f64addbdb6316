"""Windowed keys on topics, byte for byte as Kafka's windowed serdes write them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from datetime import timedelta
from operator import add, itemgetter
from typing import Any, TypeVar

from headrace.model.windows import Windowed, Windows, ends_of, milliseconds
from headrace.model.windows import window as _window
from headrace.model.windows import windowed as _windowed
from headrace.serde.protocol import Serde, encode_column

# Time window:     | key | start i64 |            the end is the start plus the size, which the reader must know
# Session window:  | key | end i64 | start i64 |
_START = struct.Struct(">q")
_SESSION = struct.Struct(">qq")


K = TypeVar("K")


def windowed(inner: Serde[K], size: int | timedelta | Windows | None = None) -> Serde[Windowed[K]]:
    r"""Keys in time windows of a size, or of a definition whose windows differ in size, such as `DailyWindows`.

    >>> from headrace.serde import STRING
    >>> windowed(STRING, 10).decode(b"a" + bytes(7) + b"\x05")
    Windowed(key='a', window=Window(start=5, end=15))
    """
    if size is None:
        raise ValueError(
            f"windowed({inner.name}) needs the size of the windows, since only their start is in the bytes: "
            f"windowed({inner.name}, size), or session_windowed({inner.name}) for session windows"
        )
    is_length = isinstance(size, int | timedelta)
    end_of = ends_of(milliseconds(size, "the window size", at_least=1) if is_length else size)
    name = f"windowed({inner.name}, {size})"
    encode_key, decode_key, pack, unpack_from = inner.encode, inner.decode, _START.pack, _START.unpack_from

    def encode(key: Windowed[K]) -> bytes:
        try:
            inside, window = key
            start = pack(window[0])
        except (TypeError, ValueError, IndexError, struct.error):
            raise _not_windowed(name, key) from None
        return encode_key(inside) + start

    def encode_all(keys: Iterator[Windowed[K]], types: set[type]) -> list[bytes]:
        if types != {Windowed}:
            return list(map(encode, keys))
        inside, windows = zip(*keys, strict=True)
        raw_keys: Sequence[Any] = encode_column(inner, inside)
        return list(map(add, raw_keys, map(pack, map(itemgetter(0), windows))))

    def decode(raw: bytes) -> Windowed[K]:
        at = len(raw) - 8
        if at < 0:
            return _nothing(name, raw, 8)
        (start,) = unpack_from(raw, at)
        if start < 0:
            raise ValueError(f"{name} found a window that starts at {start}: written with another serde?")
        return _windowed((decode_key(raw[:at]), _window((start, end_of(start)))))

    return Serde(name, encode, decode, inner.immutable, (windowed, (inner, size)), encode_all=encode_all)


def inside_windows(key: Serde) -> Serde | None:
    """The serde of the key inside windowed keys; None if the serde is not for windowed keys.

    >>> from headrace.serde import STRING
    >>> inside_windows(windowed(STRING, 10)), inside_windows(STRING)
    (<serde STRING>, None)
    """
    if key.recipe is None or key.recipe[0] not in (windowed, session_windowed):
        return None
    return key.recipe[1][0]


def session_windowed(inner: Serde[K]) -> Serde[Windowed[K]]:
    """Keys in session windows.

    >>> from headrace.model.windows import Window
    >>> from headrace.serde import STRING
    >>> session_windowed(STRING).encode(Windowed("a", Window(1, 2))).hex(" ", 8)
    '61 0000000000000002 0000000000000001'
    """
    name = f"session_windowed({inner.name})"
    encode_key, decode_key, pack, unpack_from = inner.encode, inner.decode, _SESSION.pack, _SESSION.unpack_from

    def encode(key: Windowed[K]) -> bytes:
        try:
            inside, (start, end) = key
            window = pack(end, start)
        except (TypeError, ValueError, struct.error):
            raise _not_windowed(name, key) from None
        return encode_key(inside) + window

    def decode(raw: bytes) -> Windowed[K]:
        at = len(raw) - 16
        if at < 0:
            return _nothing(name, raw, 16)
        end, start = unpack_from(raw, at)
        if not 0 <= start <= end:
            raise ValueError(f"{name} found a session from {start} to {end}: written with another serde?")
        return _windowed((decode_key(raw[:at]), _window((start, end))))

    return Serde(name, encode, decode, inner.immutable, (session_windowed, (inner,)))


def _not_windowed(name: str, key: object) -> TypeError:
    return TypeError(f"{name} encodes Windowed(key, Window(start, end)), not {key!r} of type {type(key).__name__}")


def _nothing(name: str, raw: bytes, length: int) -> Any:
    """Returns None for no bytes at all, which are no key as in Kafka; too few bytes are an error."""
    if raw:
        raise ValueError(f"{name} is at least {length} bytes, not the {len(raw)} of {raw!r}: another serde's?")
