"""Records and headers, where a record is, and what timestamped and versioned stores hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, NamedTuple, Self

from typing_extensions import TypeVar

from headrace.html import render_table

K = TypeVar("K")
V = TypeVar("V")
K_co = TypeVar("K_co", covariant=True, default=Any)
V_co = TypeVar("V_co", covariant=True, default=Any)

Headers = tuple[tuple[str, bytes | None], ...]

# What flows between table operators in place of a plain value: (new value, old value, is it the latest version).
# A plain tuple, because one is made for every update of every table (a named tuple takes ten times as long to make).
Change = tuple[Any, Any, bool]


@dataclass(frozen=True, slots=True)
class Record(Generic[K_co, V_co]):
    """A key, a value, a timestamp in milliseconds, and headers.

    >>> Record("k", 1, 10).with_value(2)
    Record(key='k', value=2, timestamp=10, headers=())
    """

    key: K_co
    value: V_co
    timestamp: int
    headers: Headers = ()

    def __post_init__(self) -> None:
        if type(self.headers) is not tuple:
            object.__setattr__(self, "headers", headers_of(self.headers))

    def _repr_html_(self) -> str:
        return render_record(self)

    def with_key(self, key: K) -> Record[K, V_co]:
        return Record(key, self.value, self.timestamp, self.headers)

    def with_value(self, value: V) -> Record[K_co, V]:
        return Record(self.key, value, self.timestamp, self.headers)

    def with_timestamp(self, timestamp: int) -> Self:
        return replace(self, timestamp=timestamp)

    def with_headers(self, headers: Iterable[tuple[str, bytes | None]]) -> Self:
        return replace(self, headers=headers_of(headers))


@dataclass(frozen=True, slots=True)
class FixedKeyRecord(Generic[K_co, V_co]):
    """A record whose key cannot be changed: what `process_values` hands out.

    >>> FixedKeyRecord("ada", 1, timestamp=10).with_value("one")
    FixedKeyRecord(key='ada', value='one', timestamp=10, headers=())
    """

    key: K_co
    value: V_co
    timestamp: int
    headers: Headers = ()

    def _repr_html_(self) -> str:
        return render_record(self)

    def with_value(self, value: V) -> FixedKeyRecord[K_co, V]:
        return FixedKeyRecord(self.key, value, self.timestamp, self.headers)

    def with_timestamp(self, timestamp: int) -> Self:
        return replace(self, timestamp=timestamp)

    def with_headers(self, headers: Iterable[tuple[str, bytes | None]]) -> Self:
        return replace(self, headers=headers_of(headers))


def render_record(record: Record[Any, Any] | FixedKeyRecord[Any, Any]) -> str:
    """The record as a table, for a notebook."""
    row = (record.key, record.value, record.timestamp, record.headers)
    return render_table(["key", "value", "timestamp", "headers"], [row])


class RecordMetadata(NamedTuple):
    """Where a record is in the log.

    >>> RecordMetadata("orders", 0, 41).offset
    41
    """

    topic: str
    partition: int
    offset: int


class ValueAndTimestamp(NamedTuple, Generic[V_co]):
    """What a timestamped store holds for a key.

    >>> value, timestamp = ValueAndTimestamp(3, 1_700_000_000_000)
    >>> value
    3
    """

    value: V_co
    timestamp: int


# `ValueAndTimestamp` of a (value, timestamp) pair, in half the time that its constructor takes.
stamped: Callable[[tuple[Any, int]], ValueAndTimestamp] = partial(tuple.__new__, ValueAndTimestamp)  # pyright: ignore[reportUnknownMemberType]


class VersionedRecord(NamedTuple, Generic[V_co]):
    """One version of a key in a versioned store; `valid_to` is None unless a history query filled it.

    >>> VersionedRecord("red", 10)
    VersionedRecord(value='red', timestamp=10, valid_to=None)
    """

    value: V_co
    timestamp: int
    valid_to: int | None = None


def headers_of(headers: Iterable[tuple[str, bytes | None]]) -> Headers:
    return tuple((name, value) for name, value in headers)


class Sample(NamedTuple):
    """A record as bytes, for display. With `cut`, only the beginning of its key or value is here."""

    topic: str
    partition: int  # -1: the hash of the key will decide
    offset: int  # -1: it has none yet
    key: bytes | None
    value: bytes | None
    timestamp: int
    cut: bool
