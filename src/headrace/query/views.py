"""Stores of all tasks, for reading: every call is answered as of one batch, the last one that is known then.

The stores' own methods, under their own names; what gives many gives all of it as of the same batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from headrace.model.record import VersionedRecord
from headrace.model.windows import Windowed
from headrace.query.catalog import Shelf
from headrace.query.errors import UnsuitableQueryError
from headrace.query.parts import Pairs, Parts
from headrace.serde.protocol import Serde
from headrace.state.lru import RecentlyUsed
from headrace.state.spec import KeyValueKind, LruKind, SessionKind, VersionedKind, WindowKind

Now = Callable[[], Parts]
WindowedPairs = Iterator[tuple[Windowed, Any]]


class KeyValueView:
    """Key → value."""

    def __init__(self, name: str, now: Now) -> None:
        self.name, self._now = name, now

    def get(self, key: Any) -> Any:
        # To look at a store from outside is not to use it: it must not change which key has to make room.
        return self._now().one(key, lambda s: s.peek(key) if isinstance(s, RecentlyUsed) else s.get(key))

    def range(self, low: Any = None, high: Any = None) -> Pairs:
        return (parts := self._now()).all(lambda store: store.range(low, high), parts.encode)

    def reverse_range(self, low: Any = None, high: Any = None) -> Pairs:
        return (parts := self._now()).all(lambda store: store.reverse_range(low, high), parts.encode, reverse=True)

    def prefix_scan(self, prefix: Any, serde: Serde | None = None) -> Pairs:
        return (parts := self._now()).all(lambda store: store.prefix_scan(prefix, serde), parts.encode)

    def all(self) -> Pairs:
        return self.range()

    def reverse_all(self) -> Pairs:
        return self.reverse_range()

    @property
    def approximate_size(self) -> int:
        return self._now().total(lambda store: store.approximate_size)


class WindowView:
    """(Key, window start) → value."""

    def __init__(self, name: str, now: Now) -> None:
        self.name, self._now = name, now

    def fetch(self, key: Any, first: int, last: int | None = None) -> Any:
        """The value of the window that starts at `first`; with `last`, (start, value) of all from `first` to `last`."""
        if last is None:
            return self._now().one(key, lambda store: store.fetch(key, first))
        return self._now().of_key(key, lambda store: store.fetch(key, first, last))

    def backward_fetch(self, key: Any, first: int, last: int) -> Iterator[tuple[int, Any]]:
        return self._now().of_key(key, lambda store: store.backward_fetch(key, first, last))

    def fetch_all(self, first: int, last: int) -> WindowedPairs:
        return self._all(lambda store: store.fetch_all(first, last))

    def backward_fetch_all(self, first: int, last: int) -> WindowedPairs:
        return self._all(lambda store: store.backward_fetch_all(first, last), reverse=True)

    def all(self) -> WindowedPairs:
        return self._all(lambda store: store.all())

    def backward_all(self) -> WindowedPairs:
        return self._all(lambda store: store.backward_all(), reverse=True)

    def _all(self, ask: Callable[[Any], WindowedPairs], *, reverse: bool = False) -> WindowedPairs:
        parts = self._now()
        return parts.all(ask, lambda at: (parts.encode(at.key), at.window.start), reverse=reverse)


class SessionView:
    """(Key, session start, session end) → value."""

    def __init__(self, name: str, now: Now) -> None:
        self.name, self._now = name, now

    def find_sessions(self, key: Any, earliest_end: int, latest_start: int) -> WindowedPairs:
        return self._now().of_key(key, lambda store: store.find_sessions(key, earliest_end, latest_start))

    def backward_find_sessions(self, key: Any, earliest_end: int, latest_start: int) -> WindowedPairs:
        return self._now().of_key(key, lambda store: store.backward_find_sessions(key, earliest_end, latest_start))

    def fetch(self, key: Any) -> WindowedPairs:
        return self._now().of_key(key, lambda store: store.fetch(key))

    def backward_fetch(self, key: Any) -> WindowedPairs:
        return self._now().of_key(key, lambda store: store.backward_fetch(key))

    def fetch_session(self, key: Any, start: int, end: int) -> Any:
        return self._now().one(key, lambda store: store.fetch_session(key, start, end))

    def all(self) -> WindowedPairs:
        parts = self._now()
        return parts.all(lambda store: store.all(), lambda at: (parts.encode(at.key), at.window.end, at.window.start))


class VersionedView:
    """Key → values by timestamp."""

    def __init__(self, name: str, now: Now) -> None:
        self.name, self._now = name, now

    def get(self, key: Any, as_of: int | None = None) -> VersionedRecord | None:
        return self._now().one(key, lambda store: store.get(key, as_of))

    def history(self, key: Any, first: int, last: int) -> Iterator[VersionedRecord]:
        return self._now().of_key(key, lambda store: store.history(key, first, last))

    def latest(self) -> Pairs:
        return (parts := self._now()).all(lambda store: store.latest(), parts.encode)


View = KeyValueView | WindowView | SessionView | VersionedView


def view_of(shelf: Shelf, now: Now) -> View:
    """The view that fits the kind of a store."""
    match shelf.spec.kind:
        case KeyValueKind() | LruKind():
            return KeyValueView(shelf.name, now)
        case WindowKind():
            return WindowView(shelf.name, now)
        case SessionKind():
            return SessionView(shelf.name, now)
        case VersionedKind():
            return VersionedView(shelf.name, now)
        case _:
            raise UnsuitableQueryError(f"the store {shelf.name!r} is an operator's own: it cannot be asked")
