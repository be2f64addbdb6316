"""A record and what is said about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

Headers = tuple[tuple[str, bytes | None], ...]

# What flows between table operators in place of a plain value: (new value, old value, is it the latest version).
# A plain tuple, because one is made for every update of every table (a named tuple takes ten times as long to make).
Change = tuple[Any, Any, bool]


@dataclass(frozen=True, slots=True)
class Record:
    """A key, a value, a timestamp in milliseconds, and headers.

    >>> Record("k", 1, 10).with_value(2)
    Record(key='k', value=2, timestamp=10, headers=())
    """

    key: Any
    value: Any
    timestamp: int
    headers: Headers = ()

    def __post_init__(self) -> None:
        if type(self.headers) is not tuple:
            object.__setattr__(self, "headers", headers_of(self.headers))

    def with_key(self, key: Any) -> Self:
        return replace(self, key=key)

    def with_value(self, value: Any) -> Self:
        return replace(self, value=value)

    def with_timestamp(self, timestamp: int) -> Self:
        return replace(self, timestamp=timestamp)

    def with_headers(self, headers: Iterable[tuple[str, bytes | None]]) -> Self:
        return replace(self, headers=headers_of(headers))


@dataclass(frozen=True, slots=True)
class FixedKeyRecord:
    """A record whose key cannot be changed: what `process_values` hands out."""

    key: Any
    value: Any
    timestamp: int
    headers: Headers = ()

    def with_value(self, value: Any) -> Self:
        return replace(self, value=value)

    def with_timestamp(self, timestamp: int) -> Self:
        return replace(self, timestamp=timestamp)

    def with_headers(self, headers: Iterable[tuple[str, bytes | None]]) -> Self:
        return replace(self, headers=headers_of(headers))


class RecordMetadata(NamedTuple):
    """Where a record was read."""

    topic: str
    partition: int
    offset: int


class ValueAndTimestamp(NamedTuple):
    """What a timestamped store holds for a key."""

    value: Any
    timestamp: int


# `ValueAndTimestamp` of a (value, timestamp) pair, in half the time that its constructor takes.
stamped: Callable[[tuple[Any, int]], ValueAndTimestamp] = partial(tuple.__new__, ValueAndTimestamp)  # pyright: ignore[reportUnknownMemberType]


class VersionedRecord(NamedTuple):
    """One version of a key in a versioned store; `valid_to` is None unless a history query filled it."""

    value: Any
    timestamp: int
    valid_to: int | None = None


def headers_of(headers: Iterable[tuple[str, bytes | None]]) -> Headers:
    return tuple((name, value) for name, value in headers)


class Sample(NamedTuple):
    """A record as bytes, to be shown; `cut`: of its key or its value only the beginning is here."""

    topic: str
    partition: int  # -1: the hash of the key will decide
    offset: int  # -1: it has none yet
    key: bytes | None
    value: bytes | None
    timestamp: int
    cut: bool
