"""Aggregates of a stream in sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.model.record import Headers
from headrace.model.windows import Window, Windowed
from headrace.runtime.environment import Closing, Emit, Env
from headrace.runtime.tables import forwarder, is_cached
from headrace.state.session import Sessions
from headrace.topology.nodes import SessionAggregate


def session_aggregate(node: SessionAggregate, env: Env, emit: Emit) -> Emit:
    store: Sessions = env.store(node.store)
    pass_on = forward_session(node, env, store, emit)
    close = emit_closed(node, env, store, emit) if node.on_close else None
    gap, grace = node.windows.gap, node.windows.grace
    initialize, add, merge, drop = node.initialize, node.add, node.merge, env.drop
    observed = env.state.cell(f"{node.name}/stream time", -1)

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            drop("null key")
            return
        if timestamp > observed.value:
            observed.value = timestamp
        close_time = observed.value - grace - gap
        start = end = timestamp
        aggregate = initialize()
        found = list(store.find_sessions(key, timestamp - gap, timestamp + gap))
        for session, part in found:
            aggregate = merge(key, aggregate, part)
            start, end = min(start, session.window.start), max(end, session.window.end)
        if end < close_time:
            drop("late")
        else:
            if (start, end) != (timestamp, timestamp):
                for session, part in found:
                    store.remove(session)
                    pass_on(session, None, part, headers)
            aggregate = add(key, value, aggregate)
            merged = Windowed(key, Window(start, end))
            store.put(merged, aggregate)
            pass_on(merged, aggregate, None, headers)
        if close is not None:
            close(close_time, headers)

    return run


def forward_session(
    node: SessionAggregate, env: Env, store: Sessions, emit: Emit
) -> Callable[[Windowed, Any, Any, Headers], None]:
    """The function that forwards a session's new and old value; it forwards nothing with emit-on-close."""
    if node.on_close:
        return lambda session, new, old, headers: None
    forward, place = forwarder(node.store, env, emit, send_old=node.send_old), store.key_bytes
    # As in Kafka Streams: only a cache keeps headers, and not if the persistent store behind it has the HEADERS format.
    keep_headers = is_cached(node.store, env) and not (env.headers_format and store.is_persistent)

    def run(session: Windowed, new: Any, old: Any, headers: Headers) -> None:
        time = session.window.end  # of the result and of the tombstone, with a cache and without
        forward(place(session), session, new, old, time, time, headers if keep_headers else (), True)

    return run


def emit_closed(node: SessionAggregate, env: Env, store: Sessions, emit: Emit) -> Callable[[int, Headers], None]:
    closing = Closing(node.name, env)
    store.hold_back(max(0, closing.last.value))

    def run(close_time: int, headers: Headers) -> None:
        last = close_time - 1
        first = max(0, closing.last.value)
        if not closing.due(close_time) or last < first:
            return
        for key, value in store.by_end(first, last):
            emit(key, (value, None, True), key.window.end, headers)
        closing.last.value = close_time
        store.hold_back(close_time)

    closing.make_up(run)
    return run
