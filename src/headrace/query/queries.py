"""The queries that stores answer, under the names of Kafka Streams' interactive queries, and an answer's position.

A `Query[R]` has a result of type `R`: `KeyQuery[str, int]` is a `Query[int | None]`. The key's type is known from the
arguments, the value's is Any unless the query states it: `KeyQuery[str, int]("hello")`. Python 3.11 cannot make an
object in this way if the class is frozen and has slots, so the classes have no `slots=True`.

`execute_query` in execution.py answers them. parameters.py makes them from the parameters of a URL or a command.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Generic, Self, cast

from typing_extensions import TypeVar

from headrace.hints import RenamedNames, explain_names
from headrace.html import ROWS, render_table
from headrace.model.ids import TopicPartition
from headrace.model.record import ValueAndTimestamp, VersionedRecord
from headrace.model.windows import Windowed
from headrace.state.rendering import render_entries

K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)
R_co = TypeVar("R_co", covariant=True, default=Any)

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


@dataclass(frozen=True)
class QueryResult(Generic[R_co]):
    """An answer and its position. Where a query finds many entries, `result` is an iterator over one batch's state.

    >>> QueryResult(3, Position(7)).result
    3
    """

    result: R_co
    position: Position

    def __post_init__(self) -> None:
        result = cast("Any", self.result)
        if isinstance(result, Iterator):
            object.__setattr__(self, "result", Entries(cast("Iterator[Any]", result)))

    def _repr_html_(self) -> str:
        """The first entries, or the value. Entries that are shown are not taken off the iterator."""
        caption, result = f"as of {self.position}", cast("Any", self.result)
        if not isinstance(result, Entries):
            return render_table(["result"], [[result]], caption=caption)
        entries = result.peek(ROWS + 1)
        if all(isinstance(entry, tuple) and len(cast("tuple[Any, ...]", entry)) == 2 for entry in entries):
            return render_entries(caption, cast("list[tuple[Any, Any]]", entries))
        return render_table(["result"], [[entry] for entry in entries], caption=caption)


class Entries(Iterator[Any]):
    """An iterator whose next items can be looked at before they are taken.

    >>> entries = Entries(iter("abc"))
    >>> entries.peek(2), list(entries)
    (['a', 'b'], ['a', 'b', 'c'])
    """

    def __init__(self, items: Iterator[Any]) -> None:
        self._items, self._seen = items, deque[Any]()

    def __next__(self) -> Any:
        return self._seen.popleft() if self._seen else next(self._items)

    def peek(self, count: int) -> list[Any]:
        """Return at most `count` of the next items, without taking them."""
        self._seen += islice(self._items, max(0, count - len(self._seen)))
        return list(islice(self._seen, count))


@explain_names({"with_bounds": "with_range(low, high)", "with_time_range": "with_window_start_range(first, last)"})
class Query(Generic[R_co], metaclass=RenamedNames):
    """A question to a store whose answer is of type `R`: what `app.query(store, query)` takes."""


@dataclass(frozen=True)
class KeyQuery(Query[V | None], Generic[K, V]):
    """Return the value of a key in a key-value store, or None.

    >>> KeyQuery[str, int]("hello") == KeyQuery.with_key("hello")
    True
    """

    key: K

    @classmethod
    def with_key(cls, key: K) -> Self:
        return cls(key)


@dataclass(frozen=True)
class TimestampedKeyQuery(KeyQuery[K, ValueAndTimestamp[V]], Generic[K, V]):
    """Return the `ValueAndTimestamp` of a key in a timestamped key-value store, or None.

    >>> TimestampedKeyQuery.with_key("hello")
    TimestampedKeyQuery(key='hello')
    """


@dataclass(frozen=True)
class RangeQuery(Query[Iterator[tuple[K, V]]], Generic[K, V]):
    """Return (key, value) from `low` to `high`, both inclusive, in the order of the keys' bytes. None is an open end.

    >>> RangeQuery.with_lower_bound("b").with_descending_keys()
    RangeQuery(low='b', high=None, descending=True)
    """

    low: K | None = None
    high: K | None = None
    descending: bool = False

    @classmethod
    def with_range(cls, low: K, high: K) -> Self:
        return cls(low, high)

    @classmethod
    def with_lower_bound(cls, low: K) -> Self:
        return cls(low)

    @classmethod
    def with_upper_bound(cls, high: K) -> Self:
        return cls(None, high)

    @classmethod
    def with_no_bounds(cls) -> Self:
        return cls()

    def with_ascending_keys(self) -> Self:
        return replace(self, descending=False)

    def with_descending_keys(self) -> Self:
        return replace(self, descending=True)


@dataclass(frozen=True)
class TimestampedRangeQuery(RangeQuery[K, ValueAndTimestamp[V]], Generic[K, V]):
    """Return (key, `ValueAndTimestamp`) from a timestamped key-value store.

    >>> TimestampedRangeQuery.with_range("a", "c")
    TimestampedRangeQuery(low='a', high='c', descending=False)
    """


@dataclass(frozen=True)
class PrefixQuery(Query[Iterator[tuple[K, V]]], Generic[K, V]):
    """Return (key, value) of the keys whose bytes begin with the bytes of a prefix.

    >>> PrefixQuery("user-").prefix
    'user-'
    """

    prefix: K


@dataclass(frozen=True)
class WindowKeyQuery(Query[Iterator[tuple[int, V]]], Generic[K, V]):
    """Return (start, value) of the windows of a key that start from `first` to `last`, both inclusive.

    >>> query = WindowKeyQuery.with_key_and_window_start_range("ada", 0, 60_000)
    >>> query.first, query.last
    (0, 60000)
    """

    key: K
    first: int = FIRST
    last: int = LAST
    descending: bool = False

    @classmethod
    def with_key_and_window_start_range(cls, key: K, first: int, last: int) -> Self:
        return cls(key, first, last)


@dataclass(frozen=True)
class WindowRangeQuery(Query[Iterator[tuple[Windowed[K], V]]], Generic[K, V]):
    """Return (`Windowed`, value) of the windows of all keys that start from `first` to `last`, both inclusive.

    >>> WindowRangeQuery.with_window_start_range(0, 60_000)
    WindowRangeQuery(first=0, last=60000, descending=False)
    """

    first: int = FIRST
    last: int = LAST
    descending: bool = False

    @classmethod
    def with_window_start_range(cls, first: int, last: int) -> Self:
        return cls(first, last)

    @classmethod
    def with_key(cls, key: K) -> SessionKeyQuery[K, V]:
        """Return the query for the sessions of a key, under the name that Kafka Streams gives it."""
        return SessionKeyQuery[K, V](key)


@dataclass(frozen=True)
class SessionKeyQuery(Query[Iterator[tuple[Windowed[K], V]]], Generic[K, V]):
    """Return (`Windowed`, value) of the sessions of a key that end at or after `earliest_end` and start at or before
    `latest_start`, in the order of their ends.

    >>> SessionKeyQuery("ada", earliest_end=1000).key
    'ada'
    """

    key: K
    earliest_end: int = FIRST
    latest_start: int = LAST
    descending: bool = False


@dataclass(frozen=True)
class SessionRangeQuery(Query[Iterator[tuple[Windowed[K], V]]], Generic[K, V]):
    """Return (`Windowed`, value) of the sessions of all keys within the same bounds as `SessionKeyQuery`.

    >>> SessionRangeQuery(earliest_end=1000).earliest_end
    1000
    """

    earliest_end: int = FIRST
    latest_start: int = LAST


@dataclass(frozen=True)
class VersionedKeyQuery(Query[VersionedRecord[V] | None], Generic[K, V]):
    """Return the latest version of a key, or the version that was valid at a time.

    >>> VersionedKeyQuery.with_key("a").as_of(5)
    VersionedKeyQuery(key='a', time=5)
    """

    key: K
    time: int | None = None

    @classmethod
    def with_key(cls, key: K) -> Self:
        return cls(key)

    def as_of(self, time: int) -> Self:
        return replace(self, time=time)


@dataclass(frozen=True)
class MultiVersionedKeyQuery(Query[Iterator[VersionedRecord[V]]], Generic[K, V]):
    """Return the versions of a key that were valid at some time from `first` to `last`, oldest first.

    >>> MultiVersionedKeyQuery.with_key("a").from_time(5).to_time(9)
    MultiVersionedKeyQuery(key='a', first=5, last=9, descending=False)
    """

    key: K
    first: int = FIRST
    last: int = LAST
    descending: bool = False

    @classmethod
    def with_key(cls, key: K) -> Self:
        return cls(key)

    def from_time(self, first: int) -> Self:
        return replace(self, first=first)

    def to_time(self, last: int) -> Self:
        return replace(self, last=last)

    def with_descending_timestamps(self) -> Self:
        return replace(self, descending=True)
