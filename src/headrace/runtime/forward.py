"""How a table that has a store passes its updates on: at once, or with caching once a batch.

With caching an update only notes its key. When the batch ends the value that the store then has goes out, with the one
from before the batch as the old value; keys go in the order of their last update.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from headrace.model.record import Headers
from headrace.runtime.env import Env
from headrace.runtime.operators.emit import Emit
from headrace.state.table import Table

Forward = Callable[
    [Any, Any, Any, Any, int, Headers, bool], None
]  # (place, key, new, old, timestamp, headers, is latest)


class Cached(Protocol):
    """What the cache needs to know of a store; keys are those of the table (windowed for windows and sessions)."""

    @property
    def table(self) -> Table: ...

    @property
    def before(self) -> Callable[[bytes], Any]:
        """What was at a place before this batch."""
        ...

    @property
    def with_time(self) -> Callable[[Any, Any], tuple[Any, int]]:
        """The value and the timestamp, of a key and what the table has for it."""
        ...


def at_once(emit: Emit, *, send_old: bool) -> Forward:
    if send_old:

        def run(place: Any, key: Any, new: Any, old: Any, timestamp: int, headers: Headers, latest: bool) -> None:
            emit(key, (new, old, latest), timestamp, headers)
    else:

        def run(place: Any, key: Any, new: Any, old: Any, timestamp: int, headers: Headers, latest: bool) -> None:
            emit(key, (new, None, latest), timestamp, headers)

    return run


def once_a_batch(store: str, cached: Cached, env: Env, emit: Emit, *, send_old: bool) -> Forward:
    if store in env.caches:  # the aggregates of a cogrouped stream share one store, and what is below it
        return env.caches[store]
    here = env.here
    pending: dict[bytes, tuple[Any, int, Headers, Any, Any]] = {}
    touched: list[bytes] = []
    touch = touched.append
    get, before_at, with_time = cached.table.get, cached.before, cached.with_time

    def run(place: Any, key: Any, new: Any, old: Any, timestamp: int, headers: Headers, latest: bool) -> None:
        touch(place)
        pending[place] = (key, timestamp, headers, here.row, here.order)

    def flush() -> bool:
        if not pending:
            return False
        updates = [(raw, pending[raw]) for raw in reversed(dict.fromkeys(reversed(touched)))]
        pending.clear()
        touched.clear()
        row, order = here.row, here.order
        for raw, (key, timestamp, headers, here.row, here.order) in updates:
            # From the table, not the store: a window that this batch has made too old to see goes out all the same.
            held = get(raw)
            before = before_at(raw) if send_old or held is None else None
            if held is None:
                if before is not None:
                    emit(key, (None, with_time(key, before)[0] if send_old else None, True), timestamp, headers)
                continue
            new, time = with_time(key, held)
            old = with_time(key, before)[0] if before is not None else None
            emit(key, (new, old, True), time, headers)
        here.row, here.order = row, order
        return True

    env.flushers[store] = flush
    env.caches[store] = run
    return run
