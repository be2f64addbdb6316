"""From a question and a store to the answer: one `match`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.query import queries as q
from headrace.query.catalog import Shelf
from headrace.query.errors import UnsuitableQueryError
from headrace.query.parts import Pairs
from headrace.query.views import KeyValueView, SessionView, VersionedView, View, WindowView
from headrace.state.spec import KeyValueKind, WindowKind


def answer(view: View, shelf: Shelf, query: q.Query) -> Any:
    """What a store says; of many entries an iterator."""
    match view:
        case KeyValueView():
            found = _of_key_values(view, _is_timestamped(shelf), query)
        case WindowView():
            found = _of_windows(view, _is_timestamped(shelf), query)
        case SessionView():
            found = _of_sessions(view, query)
        case VersionedView():
            found = _of_versions(view, query)
    if found is NotImplemented:
        raise UnsuitableQueryError(f"{shelf.name!r} is a {shelf.kind} store: it cannot answer a {type(query).__name__}")
    return found


def _is_timestamped(shelf: Shelf) -> bool:
    kind = shelf.spec.kind
    return isinstance(kind, KeyValueKind | WindowKind) and kind.timestamped


def _of_key_values(view: KeyValueView, timestamped: bool, query: q.Query) -> Any:
    match query:
        case q.KeyQuery(key):
            found = view.get(key)
            return found.value if timestamped and found is not None else found
        case q.TimestampedKeyQuery(key) if timestamped:
            return view.get(key)
        case q.RangeQuery(low, high, descending):
            return _plain(view.reverse_range(low, high) if descending else view.range(low, high), timestamped)
        case q.TimestampedRangeQuery(low, high, descending) if timestamped:
            return view.reverse_range(low, high) if descending else view.range(low, high)
        case q.PrefixQuery(prefix):
            return _plain(view.prefix_scan(prefix), timestamped)
        case _:
            return NotImplemented


def _of_windows(view: WindowView, timestamped: bool, query: q.Query) -> Any:
    match query:
        case q.WindowKeyQuery(key, first, last, descending):
            found = view.backward_fetch(key, first, last) if descending else view.fetch(key, first, last)
            return _plain(found, timestamped)
        case q.WindowRangeQuery(first, last, descending):
            return _plain(
                view.backward_fetch_all(first, last) if descending else view.fetch_all(first, last), timestamped
            )
        case _:
            return NotImplemented


def _of_sessions(view: SessionView, query: q.Query) -> Any:
    match query:
        case q.SessionKeyQuery(key, earliest_end, latest_start, descending):
            find = view.backward_find_sessions if descending else view.find_sessions
            return find(key, earliest_end, latest_start)
        case q.SessionRangeQuery():
            return view.all()
        case _:
            return NotImplemented


def _of_versions(view: VersionedView, query: q.Query) -> Any:
    match query:
        case q.VersionedKeyQuery(key, time):
            return view.get(key, time)
        case q.MultiVersionedKeyQuery(key, first, last, descending):
            found = view.history(key, first, last)
            return reversed(list(found)) if descending else found
        case q.RangeQuery(None, None, False):
            return view.latest()
        case _:
            return NotImplemented


def _plain(entries: Pairs, timestamped: bool) -> Iterator[tuple[Any, Any]]:
    """Without timestamps: who wants them asks for them, or takes the store itself."""
    return ((key, value.value) for key, value in entries) if timestamped else entries
