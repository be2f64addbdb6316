"""How operators read, write and look up the store of a table, and forward its updates.

A table's store is a timestamped key-value store or a versioned one; windowed and session tables have window and session
stores. A table without a store is looked up by computing its value from its parents'.

The updates of a table that has a store are forwarded at once, or with caching once a batch.

With caching, an update only records its key. At the end of the batch the table forwards the current value of each key,
with the value from before the batch as the old value, in the order of the last updates.

An update carries two timestamps: that of the new value (for an aggregate the largest so far) and that of the record
that made the update. A value always goes out with its own timestamp. The store keeps no timestamp for a tombstone, so
a tombstone goes out as in Kafka Streams: at once with the timestamp that the operator computed, from a cache with the
timestamp of the record that made the last update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import NoneType
from typing import Any, NamedTuple, TypeVar

from headrace.errors import InvalidStateStoreError
from headrace.model.record import Headers, stamped
from headrace.model.windows import Windowed
from headrace.runtime.environment import SLICE, Columns, Emit, Env, Lookup
from headrace.state.key_value import KeyValues
from headrace.state.session import Sessions
from headrace.state.table import Table
from headrace.state.versioned import NOT_PUT, Versions
from headrace.state.window import WindowedValues

T = TypeVar("T")

IS_LATEST = -1


class Keyed(NamedTuple):
    """The store of a table by key: `place` encodes a key once, for all the calls that follow.

    `put` returns whether the value is now the latest, or None if the store rejected it as too old.
    """

    place: Callable[[Any], Any]
    get: Callable[[Any], tuple[Any, int] | None]  # (place)
    put: Callable[[Any, Any, int], bool | None]  # (place, value, timestamp)


def keyed(store: Any) -> Keyed:
    """The store of an unwindowed table, whichever kind it is."""
    match store:
        case KeyValues():
            return Keyed(store.key_bytes, store.table.get, timestamped_put(store))
        case Versions():
            return Keyed(itself, versioned_lookup(store).get, versioned_put(store))
        case _:
            raise InvalidStateStoreError(
                f"a table by key needs a key-value store, but {store.name!r} is a {type(store).__name__}: "
                "the table of a windowed cogroup cannot be joined with a table; "
                "aggregate without cogroup, or join its stream"
            )


def timestamped_put(store: KeyValues) -> Callable[[Any, Any, int], bool | None]:
    put = store.table.put

    def run(place: bytes, value: Any, timestamp: int) -> bool:
        put(place, None if value is None else stamped((value, timestamp)))
        return True

    return run


def itself(key: Any) -> Any:
    return key


def versioned_put(store: Versions) -> Callable[[Any, Any, int], bool | None]:
    def run(key: Any, value: Any, timestamp: int) -> bool | None:
        valid_to = store.put(key, value, timestamp)
        return None if valid_to == NOT_PUT else valid_to == IS_LATEST

    return run


def versioned_lookup(store: Versions) -> Lookup:
    def get(key: Any, time: int | None = None) -> tuple[Any, int] | None:
        found = store.get(key, time)
        return None if found is None else (found.value, found.timestamp)

    return Lookup(get, get)


class Cached(NamedTuple):
    """What the cache reads from a store; keys are those of the table (windowed for windows and sessions)."""

    table: Table
    before: Callable[[bytes], Any]  # the value at a place before this batch
    with_time: Callable[[Any, Any], tuple[Any, int]]  # value and timestamp, from a key and the entry of the table


def cached(store: Any) -> Cached:
    match store:
        case Sessions():
            return Cached(store.table, store.before, at_session_end)
        case WindowedValues():
            return Cached(store.table, store.before, as_held)
        case _:
            return Cached(store.table, store.table.committed, as_held)


def at_session_end(key: Windowed, held: Any) -> tuple[Any, int]:
    """The result of a session has the timestamp of the session's end."""
    return held, key.window.end


def as_held(_key: Any, held: tuple[Any, int]) -> tuple[Any, int]:
    return held


def is_cached(name: str, env: Env) -> bool:
    """Whether the table with this store forwards its updates once a batch."""
    return env.caching and env.state.specs[name].caching


def forwarder(name: str, env: Env, emit: Emit, *, send_old: bool) -> Forward:
    """The function that forwards updates of the table with this store."""
    if is_cached(name, env):
        return cache_of(name, cached(env.store(name)), env, emit, send_old=send_old).forward()
    return at_once(emit, send_old=send_old)


def keyed_lookup(store: Any) -> Lookup:
    place, get_at, _ = keyed(store)

    def get(key: Any) -> tuple[Any, int] | None:
        return get_at(place(key))

    return Lookup(get)


def lookup_in(store: Any) -> Lookup:
    """The lookup of keys in the store of a table."""
    match store:
        case Versions():
            return versioned_lookup(store)
        case WindowedValues():

            def fetch(key: Windowed) -> tuple[Any, int] | None:
                return store.fetch(key.key, key.window.start)

            return Lookup(fetch)
        case Sessions():

            def get(key: Windowed) -> tuple[Any, int] | None:
                value = store.fetch_session(key.key, key.window.start, key.window.end)
                return None if value is None else (value, key.window.end)

            return Lookup(get)
        case _:
            return keyed_lookup(store)


# ---------------------------------------------------------------------------------------------------------- forwarding
# (place, key, new, old, timestamp of the new value, timestamp of the record, headers, is latest)
Forward = Callable[[Any, Any, Any, Any, int, int, Headers, bool], None]


# (key, timestamp, headers, row, order) of the record that made an update.
Cause = tuple[Any, int, Headers, Any, Any]

# (key, new, old, timestamp, headers, row, order): an update that a cache forwards, with the record that made it.
Update = tuple[Any, Any, Any, int, Headers, Any, Any]


def by_last(touched: Sequence[bytes]) -> Iterator[bytes]:
    """Each item once, in the order of its last occurrence.

    >>> list(by_last([b"a", b"b", b"a"]))
    [b'b', b'a']
    """
    return reversed(dict.fromkeys(reversed(touched)))


def at_once(emit: Emit, *, send_old: bool) -> Forward:
    if send_old:

        def run(
            place: Any, key: Any, new: Any, old: Any, timestamp: int, record_time: int, headers: Headers, latest: bool
        ) -> None:
            emit(key, (new, old, latest), timestamp, headers)
    else:

        def run(
            place: Any, key: Any, new: Any, old: Any, timestamp: int, record_time: int, headers: Headers, latest: bool
        ) -> None:
            emit(key, (new, None, latest), timestamp, headers)

    return run


class Cache:
    """The updates that a table forwards at the end of the batch; `key_at` makes the emitted key from place and key."""

    def __init__(
        self,
        cached: Cached,
        env: Env,
        emit: Emit,
        *,
        send_old: bool,
        key_at: Callable[[bytes, Any], Any] | None = None,
    ) -> None:
        self.touched: list[bytes] = []
        self.pending: dict[bytes, Cause] = {}
        self._cached, self._here, self._emit, self._send_old = cached, env.here, emit, send_old
        self._key_at, self._to_sink = key_at, None if send_old else env.to_sink

    def forward(self) -> Forward:
        here, touch, pending = self._here, self.touched.append, self.pending

        def run(
            place: Any, key: Any, new: Any, old: Any, timestamp: int, record_time: int, headers: Headers, latest: bool
        ) -> None:
            touch(place)
            pending[place] = (key, record_time, headers, here.row, here.order)

        return run

    def flush(self) -> bool:
        """Forwards all pending updates in the order of the last update of each key; False if there were none."""
        if not self.pending:
            return False
        updates = [(place, self.pending[place]) for place in by_last(self.touched)]
        self.pending.clear()
        self.touched.clear()
        self._let_out(updates, self._changes, self._columns)
        return True

    def _let_out(
        self,
        updates: Sequence[T],
        changes: Callable[[Iterable[T]], Iterator[Update]],
        columns: Callable[[Sequence[T]], Columns | None],
    ) -> None:
        """Forwards updates: many at once if only `to_stream` lies between the table and a sink, else one by one.

        `columns` returns None if there is a tombstone; the updates beside it are forwarded one by one, too.
        """
        if self._to_sink is None:
            self._emit_all(changes(updates))
            return
        for start in range(0, len(updates), SLICE):
            some = updates[start : start + SLICE]
            found = columns(some)
            if found is None or not self._to_sink(found):
                self._emit_all(changes(some))

    def _emit_all(self, updates: Iterable[Update]) -> None:
        here, emit = self._here, self._emit
        row, order = here.row, here.order
        for key, new, old, timestamp, headers, here.row, here.order in updates:
            emit(key, (new, old, True), timestamp, headers)
        here.row, here.order = row, order

    def _changes(self, updates: Iterable[tuple[bytes, Cause]]) -> Iterator[Update]:
        """The changes that updates have made; none for a key that came and went in this batch."""
        key_at, send_old, (table, before_of, with_time) = self._key_at, self._send_old, self._cached
        for place, (own_key, timestamp, headers, row, order) in updates:
            key = own_key if key_at is None else key_at(place, own_key)
            # Read from the table, not from the store: a window that expired in this batch is forwarded all the same.
            held = table.get(place)
            before = before_of(place) if send_old or held is None else None
            if held is not None or before is not None:
                new, time = (None, timestamp) if held is None else with_time(key, held)
                old = with_time(key, before)[0] if send_old and before is not None else None
                yield key, new, old, time, headers, row, order

    def _columns(self, updates: Sequence[tuple[bytes, Cause]]) -> Columns | None:
        places, causes = zip(*updates, strict=True)
        held = list(map(self._cached.table.get, places))
        if NoneType in set(map(type, held)):
            return None
        keys, _, headers, _, orders = zip(*causes, strict=True)
        if self._key_at is not None:
            keys = list(map(self._key_at, places, keys))
        values, timestamps = zip(*map(self._cached.with_time, keys, held), strict=True)
        return Columns(keys, values, timestamps, headers, orders)


def cache_of(store: str, cached: Cached, env: Env, emit: Emit, *, send_old: bool) -> Cache:
    """The cache of a store; the aggregates of a cogrouped stream share one store and so one cache."""
    if store not in env.caches:
        cache = env.caches[store] = Cache(cached, env, emit, send_old=send_old)
        env.flushers[store] = cache.flush
    return env.caches[store]
