"""Read-only views of stores over all tasks, and the execution of queries on them.

A store is split over tasks, one per partition. A view has the read methods of the store's kind and answers each call
from all tasks. It takes the task stores when it is called, so one call sees the state after one batch.

`execute_query` answers the public queries. `read_entries` answers the same queries with uniform `StoreEntry` rows, for
HTTP, the command line and exports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import chain
from typing import Any, NamedTuple

from headrace.errors import UnsuitableQueryError
from headrace.model.partitioner import partition_of
from headrace.model.record import ValueAndTimestamp, VersionedRecord
from headrace.model.windows import Window, Windowed, ends_of
from headrace.query import queries as q
from headrace.query.catalog import StoreDescription
from headrace.serde.protocol import Serde
from headrace.state.key_value import RecentlyUsed
from headrace.state.spec import KeyValueKind, LruKind, SessionKind, VersionedKind, WindowKind

_MISSING: Any = object()
Pairs = Iterator[tuple[Any, Any]]
WindowedPairs = Iterator[tuple[Windowed, Any]]


class _View:
    """A store over all tasks. `stores` returns the task stores by partition, as of the latest snapshot."""

    def __init__(self, description: StoreDescription, stores: Callable[[], Sequence[Any]]) -> None:
        self.name, self._stores, self._encode = description.name, stores, description.key.encode

    def _find(self, key: Any, read: Callable[[Any], Any]) -> Any:
        """Return the first result that is not None."""
        return next((found for store in self._order_stores(key) if (found := read(store)) is not None), None)

    def _find_all(self, key: Any, read: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        """Return the first result that is not empty."""
        for store in self._order_stores(key):
            found = read(store)
            first = next(found, _MISSING)
            if first is not _MISSING:
                return chain([first], found)
        return iter(())

    def _merge(self, read: Callable[[Any], Pairs], *, reverse: bool = False) -> Pairs:
        """Merge the sorted results of all tasks into one sorted result."""
        found = [read(store) for store in self._stores()]
        if len(found) == 1:
            return found[0]
        return merge(*found, key=lambda entry: self._sort_key(entry[0]), reverse=reverse)

    def _sort_key(self, key: Any) -> Any:
        return self._encode(key)

    def _order_stores(self, key: Any) -> Iterator[Any]:
        """Return the store at the key's partition first. The others follow, since a topology may partition its way."""
        stores = self._stores()
        if len(stores) == 1 or key is None:
            return iter(stores)
        first = partition_of(self._encode(key), len(stores)) or 0
        return chain([stores[first]], (store for place, store in enumerate(stores) if place != first))


class KeyValueView(_View):
    """Key → value."""

    def get(self, key: Any) -> Any:
        # A read from outside must not change which key the LRU store evicts next.
        return self._find(key, lambda store: store.peek(key) if isinstance(store, RecentlyUsed) else store.get(key))

    def range(self, low: Any = None, high: Any = None) -> Pairs:
        return self._merge(lambda store: store.range(low, high))

    def reverse_range(self, low: Any = None, high: Any = None) -> Pairs:
        return self._merge(lambda store: store.reverse_range(low, high), reverse=True)

    def prefix_scan(self, prefix: Any, serde: Serde | None = None) -> Pairs:
        return self._merge(lambda store: store.prefix_scan(prefix, serde))

    def all(self) -> Pairs:
        return self.range()

    def reverse_all(self) -> Pairs:
        return self.reverse_range()

    @property
    def approximate_size(self) -> int:
        return sum(store.approximate_size for store in self._stores())


class WindowView(_View):
    """(Key, window start) → value."""

    def fetch(self, key: Any, first: int, last: int | None = None) -> Any:
        """Return the value of the window that starts at `first`; with `last`, (start, value) from `first` to `last`."""
        if last is None:
            return self._find(key, lambda store: store.fetch(key, first))
        return self._find_all(key, lambda store: store.fetch(key, first, last))

    def backward_fetch(self, key: Any, first: int, last: int) -> Iterator[tuple[int, Any]]:
        return self._find_all(key, lambda store: store.backward_fetch(key, first, last))

    def fetch_all(self, first: int, last: int) -> WindowedPairs:
        return self._merge(lambda store: store.fetch_all(first, last))

    def backward_fetch_all(self, first: int, last: int) -> WindowedPairs:
        return self._merge(lambda store: store.backward_fetch_all(first, last), reverse=True)

    def all(self) -> WindowedPairs:
        return self._merge(lambda store: store.all())

    def backward_all(self) -> WindowedPairs:
        return self._merge(lambda store: store.backward_all(), reverse=True)

    def _sort_key(self, key: Windowed) -> Any:
        return self._encode(key.key), key.window.start


class SessionView(_View):
    """(Key, session start, session end) → value."""

    def find_sessions(self, key: Any, earliest_end: int, latest_start: int) -> WindowedPairs:
        return self._find_all(key, lambda store: store.find_sessions(key, earliest_end, latest_start))

    def backward_find_sessions(self, key: Any, earliest_end: int, latest_start: int) -> WindowedPairs:
        return self._find_all(key, lambda store: store.backward_find_sessions(key, earliest_end, latest_start))

    def fetch(self, key: Any) -> WindowedPairs:
        return self._find_all(key, lambda store: store.fetch(key))

    def backward_fetch(self, key: Any) -> WindowedPairs:
        return self._find_all(key, lambda store: store.backward_fetch(key))

    def fetch_session(self, key: Any, start: int, end: int) -> Any:
        return self._find(key, lambda store: store.fetch_session(key, start, end))

    def all(self) -> WindowedPairs:
        return self._merge(lambda store: store.all())

    def _sort_key(self, key: Windowed) -> Any:
        return self._encode(key.key), key.window.end, key.window.start


class VersionedView(_View):
    """Key → values by timestamp."""

    def get(self, key: Any, as_of: int | None = None) -> VersionedRecord | None:
        return self._find(key, lambda store: store.get(key, as_of))

    def history(self, key: Any, first: int, last: int) -> Iterator[VersionedRecord]:
        return self._find_all(key, lambda store: store.history(key, first, last))

    def latest(self) -> Pairs:
        return self._merge(lambda store: store.latest())


View = KeyValueView | WindowView | SessionView | VersionedView


def open_view(description: StoreDescription, stores: Callable[[], Sequence[Any]]) -> View:
    """Return the view for the kind of a store."""
    match description.spec.kind:
        case KeyValueKind() | LruKind():
            return KeyValueView(description, stores)
        case WindowKind():
            return WindowView(description, stores)
        case SessionKind():
            return SessionView(description, stores)
        case VersionedKind():
            return VersionedView(description, stores)
        case _:
            raise UnsuitableQueryError(f"the store {description.name!r} is an operator's own: it cannot be queried")


# ---------------------------------------------------------------------------------------------------------- queries
def execute_query(view: View, store: StoreDescription, query: q.Query[Any]) -> Any:
    """Answer a query: a value, or an iterator of entries. Only the timestamped queries return timestamps."""
    found = _read(view, store, query)
    if not store.is_timestamped or found is None:
        return found
    match query:
        case q.TimestampedKeyQuery() | q.TimestampedRangeQuery():
            return found
        case q.KeyQuery():
            return found.value
        case _:
            return ((key, value.value) for key, value in found)


def _read(view: View, store: StoreDescription, query: q.Query[Any]) -> Any:  # noqa: PLR0911 - one match over the kinds of queries
    """Read what a query asks for, with values as the store has them."""
    match view, query:
        case KeyValueView(), q.TimestampedKeyQuery() | q.TimestampedRangeQuery() if not store.is_timestamped:
            pass
        case KeyValueView(), q.KeyQuery(key):
            return view.get(key)
        case KeyValueView(), q.RangeQuery(low, high, descending):
            return view.reverse_range(low, high) if descending else view.range(low, high)
        case KeyValueView(), q.PrefixQuery(prefix):
            return view.prefix_scan(prefix)
        case WindowView(), q.WindowKeyQuery(key, first, last, descending):
            return view.backward_fetch(key, first, last) if descending else view.fetch(key, first, last)
        case WindowView(), q.WindowRangeQuery(first, last, descending):
            return view.backward_fetch_all(first, last) if descending else view.fetch_all(first, last)
        case SessionView(), q.SessionKeyQuery(key, earliest_end, latest_start, descending):
            find = view.backward_find_sessions if descending else view.find_sessions
            return find(key, earliest_end, latest_start)
        case SessionView(), q.SessionRangeQuery(earliest_end, latest_start):
            return (e for e in view.all() if e[0].window.end >= earliest_end and e[0].window.start <= latest_start)
        case VersionedView(), q.VersionedKeyQuery(key, time):
            return view.get(key, time)
        case VersionedView(), q.MultiVersionedKeyQuery(key, first, last, descending):
            found = view.history(key, first, last)
            return reversed(list(found)) if descending else found
        case VersionedView(), q.RangeQuery(low, high, False) if not isinstance(query, q.TimestampedRangeQuery):
            return filter_keys(view.latest(), store.key, low, high)
        case _:
            pass
    raise UnsuitableQueryError(f"{store.name!r} is a {store.kind} store: it cannot answer a {type(query).__name__}")


def filter_keys(entries: Iterator[Any], serde: Serde, low: Any, high: Any) -> Iterator[Any]:
    """Keep the entries whose keys, their first fields, are from `low` to `high` inclusive, by the keys' bytes."""
    if low is None and high is None:
        return entries
    first, last = (None if key is None else serde.encode(key) for key in (low, high))
    keyed = ((serde.encode(entry[0]), entry) for entry in entries)
    return (entry for raw, entry in keyed if (first is None or raw >= first) and (last is None or raw <= last))


class StoreEntry(NamedTuple):
    """An entry of any kind of store; what the kind does not have is None."""

    key: Any
    value: Any
    window: Window | None = None
    timestamp: int | None = None
    valid_to: int | None = None  # of a version


def read_entries(view: View, store: StoreDescription, query: q.Query[Any]) -> Iterator[StoreEntry]:
    """Answer a query with uniform entries, which have timestamps if the store has them."""
    found = _read(view, store, query)
    match query:
        case q.KeyQuery(key) | q.TimestampedKeyQuery(key) | q.VersionedKeyQuery(key):
            return iter(() if found is None else (_make_entry(key, found),))
        case q.RangeQuery() | q.PrefixQuery():
            return (_make_entry(key, value) for key, value in found)
        case q.WindowKeyQuery(key):
            kind = store.spec.kind
            end_of = ends_of(kind.window_size if isinstance(kind, WindowKind) else 0)
            return (_make_entry(key, value, Window(start, end_of(start))) for start, value in found)
        case q.WindowRangeQuery() | q.SessionKeyQuery() | q.SessionRangeQuery():
            return (_make_entry(at.key, value, at.window) for at, value in found)
        case q.MultiVersionedKeyQuery(key):
            return (_make_entry(key, version) for version in found)
        case _:
            raise UnsuitableQueryError(f"a {type(query).__name__} has no entries: use the queries of headrace")


def _make_entry(key: Any, value: Any, window: Window | None = None) -> StoreEntry:
    match value:
        case ValueAndTimestamp(timestamp=timestamp):
            return StoreEntry(key, value[0], window, timestamp)
        case VersionedRecord(timestamp=timestamp, valid_to=valid_to):
            return StoreEntry(key, value[0], window, timestamp, valid_to)
        case _:
            return StoreEntry(key, value, window)


def query_all(store: StoreDescription) -> q.Query[Any]:
    """Return the query for every entry of a store; of a versioned store, the latest versions."""
    match store.spec.kind:
        case WindowKind():
            return q.WindowRangeQuery()
        case SessionKind():
            return q.SessionRangeQuery()
        case _:
            return q.RangeQuery()
