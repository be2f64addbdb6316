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

Forward = Callable[[Any, Any, Any, int, Headers, bool], None]  # (key, new, old, timestamp, headers, is latest)


class Cached(Protocol):
    """What the cache needs to know of a store; keys are those of the table (windowed for windows and sessions)."""

    @property
    def key_bytes(self) -> Callable[[Any], bytes]: ...

    @property
    def current(self) -> Callable[[Any], tuple[Any, int] | None]: ...

    @property
    def committed(self) -> Callable[[Any], tuple[Any, int] | None]: ...


def at_once(emit: Emit, *, send_old: bool) -> Forward:
    if send_old:

        def run(key: Any, new: Any, old: Any, timestamp: int, headers: Headers, latest: bool) -> None:
            emit(key, (new, old, latest), timestamp, headers)
    else:

        def run(key: Any, new: Any, old: Any, timestamp: int, headers: Headers, latest: bool) -> None:
            emit(key, (new, None, latest), timestamp, headers)

    return run


def once_a_batch(store: str, cached: Cached, env: Env, emit: Emit, *, send_old: bool) -> Forward:
    if store in env.caches:  # the aggregates of a cogrouped stream share one store, and what is below it
        return env.caches[store]
    here = env.here
    pending: dict[bytes, tuple[Any, int, Headers, Any, Any]] = {}
    key_bytes = cached.key_bytes

    def run(key: Any, new: Any, old: Any, timestamp: int, headers: Headers, latest: bool) -> None:
        raw = key_bytes(key)
        pending.pop(raw, None)  # so that the key moves to the end
        pending[raw] = (key, timestamp, headers, here.row, here.order)

    def flush() -> bool:
        if not pending:
            return False
        updates = list(pending.values())
        pending.clear()
        row, order = here.row, here.order
        for key, timestamp, headers, here.row, here.order in updates:
            new, time = cached.current(key) or (None, timestamp)
            old = cached.committed(key) if send_old or new is None else None
            if new is not None or old is not None:
                emit(key, (new, old[0] if send_old and old else None, True), time, headers)
        here.row, here.order = row, order
        return True

    env.flushers[store] = flush
    env.caches[store] = run
    return run
