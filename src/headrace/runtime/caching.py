"""Forwards the updates of a table that has a store: at once, or with caching once a batch.

With caching, an update only records its key. At the end of the batch the table forwards the current value of each key,
with the value from before the batch as the old value, in the order of the last updates.

An update carries two timestamps: that of the new value (for an aggregate the largest so far) and that of the record
that made the update. A value always goes out with its own timestamp. The store keeps no timestamp for a tombstone, so
a tombstone goes out as in Kafka Streams: at once with the timestamp that the operator computed, from a cache with the
timestamp of the record that made the last update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from headrace.model.record import Headers
from headrace.runtime.environment import Env
from headrace.runtime.operators.emit import Emit
from headrace.state.table import Table

# (place, key, new, old, timestamp of the new value, timestamp of the record, headers, is latest)
Forward = Callable[[Any, Any, Any, Any, int, int, Headers, bool], None]


# (key, timestamp, headers, row, order) of the record that made an update.
Cause = tuple[Any, int, Headers, Any, Any]


def by_last(touched: Sequence[bytes]) -> Iterator[bytes]:
    """Each item once, in the order of its last occurrence.

    >>> list(by_last([b"a", b"b", b"a"]))
    [b'b', b'a']
    """
    return reversed(dict.fromkeys(reversed(touched)))


class Cached(Protocol):
    """What the cache reads from a store; keys are those of the table (windowed for windows and sessions)."""

    @property
    def table(self) -> Table: ...

    @property
    def before(self) -> Callable[[bytes], Any]:
        """The value at a place before this batch."""
        ...

    @property
    def with_time(self) -> Callable[[Any, Any], tuple[Any, int]]:
        """The value and the timestamp, from a key and the entry of the table for it."""
        ...


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
    """The updates that a table forwards at the end of the batch; `key_at` makes the emitted key from place and key.

    Operators with many updates for each record write the cause of an update into `pending` and its place into
    `touched` themselves: a call for each update would take longer than the update.
    """

    def __init__(
        self, cached: Cached, env: Env, emit: Emit, *, send_old: bool, key_at: Callable[[bytes, Any], Any] | None
    ) -> None:
        self.touched: list[bytes] = []
        self.pending: dict[bytes, Cause] = {}
        self._cached, self._here, self._emit, self._send_old = cached, env.here, emit, send_old
        self._key_at = key_at

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
        here, key_at = self._here, self._key_at
        updates = [(raw, self.pending[raw]) for raw in by_last(self.touched)]
        self.pending.clear()
        self.touched.clear()
        row, order = here.row, here.order
        for raw, (key, timestamp, headers, here.row, here.order) in updates:
            self._let_out(raw, key_at(raw, key) if key_at else key, timestamp, headers)
        here.row, here.order = row, order
        return True

    def _let_out(self, raw: bytes, key: Any, timestamp: int, headers: Headers) -> None:
        cached, send_old = self._cached, self._send_old
        # Read from the table, not from the store: a window that expired in this batch is forwarded all the same.
        held = cached.table.get(raw)
        before = cached.before(raw) if send_old or held is None else None
        if held is not None:
            new, time = cached.with_time(key, held)
            old = cached.with_time(key, before)[0] if before is not None else None
            self._emit(key, (new, old, True), time, headers)
        elif before is not None:
            old = cached.with_time(key, before)[0] if send_old else None
            self._emit(key, (None, old, True), timestamp, headers)


def cache_of(
    store: str,
    cached: Cached,
    env: Env,
    emit: Emit,
    *,
    send_old: bool,
    key_at: Callable[[bytes, Any], Any] | None = None,
) -> Cache:
    """The cache of a store; the aggregates of a cogrouped stream share one store and so one cache."""
    if store not in env.caches:
        cache = env.caches[store] = Cache(cached, env, emit, send_old=send_old, key_at=key_at)
        env.flushers[store] = cache.flush
    return env.caches[store]
