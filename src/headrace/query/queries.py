"""How far an answer is.

Questions to a store, in the words of Kafka Streams' interactive queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from headrace.model.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class Position:
    """The batch that an answer is as of, and the offset of every source partition up to which it has been read.

    >>> Position(7).reaches(6), Position(7).reaches(Position(7, {TopicPartition("in", 0): 10}))
    (True, False)
    """

    batch: int
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])

    def reaches(self, other: Position | int) -> bool:
        """Whether it is at least as far as another one, or as a batch."""
        if isinstance(other, int):
            return self.batch >= other
        offsets = self.offsets
        return self.batch >= other.batch and all(offsets.get(at, 0) >= to for at, to in other.offsets.items())

    def __str__(self) -> str:
        return f"batch {self.batch}"


@dataclass(frozen=True, slots=True)
class QueryResult:
    """An answer, and as of when it is; of many entries `result` is an iterator, all of them as of the same batch."""

    result: Any
    position: Position


FIRST, LAST = 0, 2**63 - 1  # times


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """The value of a key in a key-value store."""

    key: Any

    @classmethod
    def with_key(cls, key: Any) -> Self:
        return cls(key)


@dataclass(frozen=True, slots=True)
class TimestampedKeyQuery:
    """The same with its timestamp, in a store that has timestamps."""

    key: Any

    @classmethod
    def with_key(cls, key: Any) -> Self:
        return cls(key)


@dataclass(frozen=True, slots=True)
class RangeQuery:
    """(Key, value) from `low` to `high`, both included, by the bytes of the keys; None is an open end.

    >>> RangeQuery.with_lower_bound("b").with_descending_keys()
    RangeQuery(low='b', high=None, descending=True)
    """

    low: Any = None
    high: Any = None
    descending: bool = False

    @classmethod
    def with_range(cls, low: Any, high: Any) -> Self:
        return cls(low, high)

    @classmethod
    def with_lower_bound(cls, low: Any) -> Self:
        return cls(low)

    @classmethod
    def with_upper_bound(cls, high: Any) -> Self:
        return cls(None, high)

    @classmethod
    def with_no_bounds(cls) -> Self:
        return cls()

    def with_ascending_keys(self) -> Self:
        return replace(self, descending=False)

    def with_descending_keys(self) -> Self:
        return replace(self, descending=True)


@dataclass(frozen=True, slots=True)
class TimestampedRangeQuery:
    """The same with timestamps, in a store that has them."""

    low: Any = None
    high: Any = None
    descending: bool = False

    @classmethod
    def with_range(cls, low: Any, high: Any) -> Self:
        return cls(low, high)

    @classmethod
    def with_no_bounds(cls) -> Self:
        return cls()

    def with_descending_keys(self) -> Self:
        return replace(self, descending=True)


@dataclass(frozen=True, slots=True)
class PrefixQuery:
    """(Key, value) of the keys whose bytes begin with those of a prefix."""

    prefix: Any


@dataclass(frozen=True, slots=True)
class WindowKeyQuery:
    """(Start, value) of the windows of a key that start from one time to another, both included."""

    key: Any
    first: int = FIRST
    last: int = LAST
    descending: bool = False

    @classmethod
    def with_key_and_window_start_range(cls, key: Any, first: int, last: int) -> Self:
        return cls(key, first, last)


@dataclass(frozen=True, slots=True)
class WindowRangeQuery:
    """(Windowed, value) of the windows of all keys that start from one time to another, both included."""

    first: int = FIRST
    last: int = LAST
    descending: bool = False

    @classmethod
    def with_window_start_range(cls, first: int, last: int) -> Self:
        return cls(first, last)

    @classmethod
    def with_key(cls, key: Any) -> SessionKeyQuery:
        """Kafka Streams asks a session store this way."""
        return SessionKeyQuery(key)


@dataclass(frozen=True, slots=True)
class SessionKeyQuery:
    """(Windowed, value) of the sessions of a key that end at a time or later and start at one or earlier, by end."""

    key: Any
    earliest_end: int = FIRST
    latest_start: int = LAST
    descending: bool = False


@dataclass(frozen=True, slots=True)
class SessionRangeQuery:
    """(Windowed, value) of all sessions."""


@dataclass(frozen=True, slots=True)
class VersionedKeyQuery:
    """The latest version of a key, or the one that was valid at a time.

    >>> VersionedKeyQuery.with_key("a").as_of(5)
    VersionedKeyQuery(key='a', time=5)
    """

    key: Any
    time: int | None = None

    @classmethod
    def with_key(cls, key: Any) -> Self:
        return cls(key)

    def as_of(self, time: int) -> Self:
        return replace(self, time=time)


@dataclass(frozen=True, slots=True)
class MultiVersionedKeyQuery:
    """The versions of a key that were valid at some time from `first` to `last`, oldest first."""

    key: Any
    first: int = FIRST
    last: int = LAST
    descending: bool = False

    @classmethod
    def with_key(cls, key: Any) -> Self:
        return cls(key)

    def from_time(self, first: int) -> Self:
        return replace(self, first=first)

    def to_time(self, last: int) -> Self:
        return replace(self, last=last)

    def with_descending_timestamps(self) -> Self:
        return replace(self, descending=True)


Query = (
    KeyQuery
    | TimestampedKeyQuery
    | RangeQuery
    | TimestampedRangeQuery
    | PrefixQuery
    | WindowKeyQuery
    | WindowRangeQuery
    | SessionKeyQuery
    | SessionRangeQuery
    | VersionedKeyQuery
    | MultiVersionedKeyQuery
)
