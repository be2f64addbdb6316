"""The parts of a store that several tasks have, as one.

From a question and a store to the answer: one `match`.

The state of all tasks after one batch: nothing in it ever changes.

Stores of all tasks, for reading: every call is answered as of one batch, the last one that is known then.

The stores' own methods, under their own names; what gives many gives all of it as of the same batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import merge
from itertools import chain
from typing import Any

from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.ledger import Ledger
from headrace.errors import UnsuitableQueryError
from headrace.model.ids import TaskId
from headrace.model.partitioner import partition_of
from headrace.model.record import VersionedRecord
from headrace.model.windows import Windowed
from headrace.query import queries as q
from headrace.query.catalog import Catalog, Shelf
from headrace.query.memory_copy import Entries, TaskCopy
from headrace.query.memory_copy import TaskCopies as Copied
from headrace.query.queries import Position, Query, QueryResult
from headrace.serde.protocol import Serde
from headrace.state.keys import successor
from headrace.state.lru import RecentlyUsed
from headrace.state.spec import KeyValueKind, LruKind, SessionKind, VersionedKind, WindowKind
from headrace.state.task_state import TaskState

NOTHING: Any = object()
Pairs = Iterator[tuple[Any, Any]]


class CompositeStore:
    """The stores of the tasks, by partition; `encode` gives the bytes of a key.

    Most keys are where Kafka's partitioning puts them: there one is looked for first. An application may have its own
    partitioning, so the other parts are asked, too.
    """

    def __init__(self, stores: Sequence[Any], encode: Callable[[Any], bytes]) -> None:
        self._stores, self.encode = stores, encode

    def one(self, key: Any, ask: Callable[[Any], Any]) -> Any:
        """The first answer that is not None."""
        for store in self._beginning_at(key):
            found = ask(store)
            if found is not None:
                return found
        return None

    def of_key(self, key: Any, ask: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        """The first answer that is not empty."""
        for store in self._beginning_at(key):
            found = ask(store)
            first = next(found, NOTHING)
            if first is not NOTHING:
                return chain([first], found)
        return iter(())

    def all(self, ask: Callable[[Any], Pairs], order: Callable[[Any], Any], *, reverse: bool = False) -> Pairs:
        """All answers in one order: that of `order` of the key, which each of them has already."""
        found = [ask(store) for store in self._stores]
        return found[0] if len(found) == 1 else merge(*found, key=lambda entry: order(entry[0]), reverse=reverse)

    def total(self, ask: Callable[[Any], int]) -> int:
        return sum(ask(store) for store in self._stores)

    def _beginning_at(self, key: Any) -> Iterator[Any]:
        stores = self._stores
        if len(stores) == 1 or key is None:
            return iter(stores)
        first = partition_of(self.encode(key), len(stores)) or 0
        return chain([stores[first]], (store for place, store in enumerate(stores) if place != first))


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


@dataclass(frozen=True)
class Snapshot:
    """All stores as of `position.batch`; `clock` is the time of that batch."""

    position: Position
    clock: int
    checkpoint: str
    application: str
    epoch: int
    delivered: int  # at least the batches up to this one, when the batch was committed
    dropped: Mapping[str, int]
    sizes: Mapping[TaskId, int]  # bytes of the state of each task in the checkpoint
    catalog: Catalog
    entries: Copied
    fingerprint: Fingerprint | None
    _opened: dict[TaskId, TaskState] = field(default_factory=dict[TaskId, TaskState])

    @classmethod
    def of(cls, ledger: Ledger, catalog: Catalog, entries: Copied) -> Snapshot:
        return cls(
            position=Position(ledger.number, dict(ledger.positions)),
            clock=ledger.clock,
            checkpoint=ledger.checkpoint,
            application=ledger.application,
            epoch=ledger.epoch,
            delivered=ledger.delivered_before,
            dropped=dict(ledger.dropped),
            sizes={task: sum(link.piece.size for link in at.chain) for task, at in ledger.tasks.items()},
            catalog=catalog,
            entries=entries,
            fingerprint=ledger.fingerprint,
        )

    @cached_property
    def batch(self) -> int:
        return self.position.batch

    def store(self, name: str) -> Any:
        """A view by the kind of the store, for reading."""
        return self.view(name)

    def view(self, name: str) -> View:
        return view_of(self.catalog.shelf(name), lambda: self.parts(name))

    def query(self, store: str, query: Query) -> QueryResult:
        return QueryResult(answer(self.view(store), self.catalog.shelf(store), query), self.position)

    def parts(self, store: str) -> CompositeStore:
        shelf = self.catalog.shelf(store)
        stores: list[Any] = [self._state(task).store(store) for task in shelf.tasks]
        return CompositeStore(stores, shelf.key.encode)

    def count(self, store: str) -> int:
        """How many entries a store has; they are not looked at."""
        found = 0
        for task in self.catalog.shelf(store).tasks:
            prefix = self._state(task).table(store).prefix
            found += self._entries(task).count(prefix, successor(prefix))
        return found

    def forget(self) -> None:
        """Lets go of decoded values: a newer one is asked from now on."""
        self._opened.clear()

    def _state(self, task: TaskId) -> TaskState:
        # Two threads may both open it; they open the same, and either will do.
        found = self._opened.get(task)
        if found is None:
            found = self._opened[task] = self.catalog.open(task, self._entries(task))
        return found

    def _entries(self, task: TaskId) -> TaskCopy:
        found = self.entries.get(task)
        return Entries() if found is None else found


def view_of_last(name: str, last: Callable[[], Snapshot]) -> View:
    """A view by the kind of the store, each of whose calls is answered as of the snapshot that is the last one then."""
    return view_of(last().catalog.shelf(name), lambda: last().parts(name))


Now = Callable[[], CompositeStore]
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
