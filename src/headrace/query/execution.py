"""The execution of queries on a store's view (state/read_only.py), which reads the stores of all tasks.

`execute_query` answers the public queries. `read_entries` answers the same queries with uniform `StoreEntry` rows, for
HTTP, the command line and exports.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from headrace.errors import UnsuitableQueryError
from headrace.model.record import ValueAndTimestamp, VersionedRecord
from headrace.model.windows import Window, ends_of
from headrace.query import queries as q
from headrace.query.catalog import StoreDescription
from headrace.serde.protocol import Serde
from headrace.state.spec import KeyValueKind, LruKind, SessionKind, VersionedKind, WindowKind


def execute_query(view: Any, store: StoreDescription, query: q.Query[Any]) -> Any:
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


def _read(view: Any, store: StoreDescription, query: q.Query[Any]) -> Any:  # noqa: PLR0911 - one match over the kinds of queries
    """Read what a query asks for, with values as the store has them."""
    match store.spec.kind, query:
        case KeyValueKind() | LruKind(), q.TimestampedKeyQuery() | q.TimestampedRangeQuery() if (
            not store.is_timestamped
        ):
            pass
        case KeyValueKind() | LruKind(), q.KeyQuery(key):
            return view.get(key)
        case KeyValueKind() | LruKind(), q.RangeQuery(low, high, descending):
            return view.reverse_range(low, high) if descending else view.range(low, high)
        case KeyValueKind() | LruKind(), q.PrefixQuery(prefix):
            return view.prefix_scan(prefix)
        case WindowKind(), q.WindowKeyQuery(key, first, last, descending):
            return view.backward_fetch(key, first, last) if descending else view.fetch(key, first, last)
        case WindowKind(), q.WindowRangeQuery(first, last, descending):
            return view.backward_fetch_all(first, last) if descending else view.fetch_all(first, last)
        case SessionKind(), q.SessionKeyQuery(key, earliest_end, latest_start, descending):
            find = view.backward_find_sessions if descending else view.find_sessions
            return find(key, earliest_end, latest_start)
        case SessionKind(), q.SessionRangeQuery(earliest_end, latest_start):
            return (e for e in view.all() if e[0].window.end >= earliest_end and e[0].window.start <= latest_start)
        case VersionedKind(), q.VersionedKeyQuery(key, time):
            return view.get(key, time)
        case VersionedKind(), q.MultiVersionedKeyQuery(key, first, last, descending):
            found = view.history(key, first, last)
            return reversed(list(found)) if descending else found
        case VersionedKind(), q.RangeQuery(low, high, False) if not isinstance(query, q.TimestampedRangeQuery):
            return filter_keys(view.latest(), store.key, low, high)
        case _:
            pass
    raise UnsuitableQueryError(f"{store.name!r} is a {store.kind} store: it cannot answer a {type(query).__name__}")


def filter_keys(entries: Iterator[Any], serde: Serde, low: Any, high: Any) -> Iterator[Any]:
    """Keep the entries whose key, the first field, is from `low` to `high` inclusive, compared by bytes."""
    if low is None and high is None:
        return entries
    first, last = (None if key is None else serde.encode(key) for key in (low, high))
    keyed = ((serde.encode(entry[0]), entry) for entry in entries)
    return (entry for raw, entry in keyed if (first is None or raw >= first) and (last is None or raw <= last))


class StoreEntry(NamedTuple):
    """An entry of any kind of store; fields that the kind does not have are None."""

    key: Any
    value: Any
    window: Window | None = None
    timestamp: int | None = None
    valid_to: int | None = None  # of a version


def read_entries(view: Any, store: StoreDescription, query: q.Query[Any]) -> Iterator[StoreEntry]:
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
