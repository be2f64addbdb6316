"""The queries that stores answer, under the names of Kafka Streams' interactive queries, and an answer's position.

`execute_query` in store_views.py answers them. parameters.py makes them from the parameters of a URL or a command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from headrace.model.ids import TopicPartition

FIRST, LAST = 0, 2**63 - 1  # the earliest and the latest timestamp


@dataclass(frozen=True, slots=True)
class Position:
    """The batch after which an answer holds, and the offset up to which each source partition was read then.

    >>> Position(7).reaches(6), Position(7).reaches(Position(7, {TopicPartition("in", 0): 10}))
    (True, False)
    """

    batch: int
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])

    def reaches(self, other: Position | int) -> bool:
        """Return True if this position is at or after another position or batch number."""
        if isinstance(other, int):
            return self.batch >= other
        offsets = self.offsets
        return self.batch >= other.batch and all(offsets.get(at, 0) >= to for at, to in other.offsets.items())

    def __str__(self) -> str:
        return f"batch {self.batch}"


@dataclass(frozen=True, slots=True)
class QueryResult:
    """An answer and its position. Where a query finds many entries, `result` is an iterator over one batch's state."""

    result: Any
    position: Position


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """Return the value of a key in a key-value store, or None."""

    key: Any

    @classmethod
    def with_key(cls, key: Any) -> Self:
        return cls(key)


@dataclass(frozen=True, slots=True)
class TimestampedKeyQuery(KeyQuery):
    """Return the `ValueAndTimestamp` of a key in a timestamped key-value store, or None."""


@dataclass(frozen=True, slots=True)
class RangeQuery:
    """Return (key, value) from `low` to `high`, both inclusive, in the order of the keys' bytes. None is an open end.

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
class TimestampedRangeQuery(RangeQuery):
    """Return (key, `ValueAndTimestamp`) from a timestamped key-value store."""


@dataclass(frozen=True, slots=True)
class PrefixQuery:
    """Return (key, value) of the keys whose bytes begin with the bytes of a prefix."""

    prefix: Any


@dataclass(frozen=True, slots=True)
class WindowKeyQuery:
    """Return (start, value) of the windows of a key that start from `first` to `last`, both inclusive."""

    key: Any
    first: int = FIRST
    last: int = LAST
    descending: bool = False

    @classmethod
    def with_key_and_window_start_range(cls, key: Any, first: int, last: int) -> Self:
        return cls(key, first, last)


@dataclass(frozen=True, slots=True)
class WindowRangeQuery:
    """Return (`Windowed`, value) of the windows of all keys that start from `first` to `last`, both inclusive."""

    first: int = FIRST
    last: int = LAST
    descending: bool = False

    @classmethod
    def with_window_start_range(cls, first: int, last: int) -> Self:
        return cls(first, last)

    @classmethod
    def with_key(cls, key: Any) -> SessionKeyQuery:
        """Return the query for the sessions of a key, under the name that Kafka Streams gives it."""
        return SessionKeyQuery(key)


@dataclass(frozen=True, slots=True)
class SessionKeyQuery:
    """Return (`Windowed`, value) of the sessions of a key that end at or after `earliest_end` and start at or before
    `latest_start`, in the order of their ends.
    """

    key: Any
    earliest_end: int = FIRST
    latest_start: int = LAST
    descending: bool = False


@dataclass(frozen=True, slots=True)
class SessionRangeQuery:
    """Return (`Windowed`, value) of the sessions of all keys within the same bounds as `SessionKeyQuery`."""

    earliest_end: int = FIRST
    latest_start: int = LAST


@dataclass(frozen=True, slots=True)
class VersionedKeyQuery:
    """Return the latest version of a key, or the version that was valid at a time.

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
    """Return the versions of a key that were valid at some time from `first` to `last`, oldest first."""

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
