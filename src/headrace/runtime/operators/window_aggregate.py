"""Aggregates of a stream in tumbling, hopping, unlimited and user-defined windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.model.record import Headers, stamped
from headrace.model.windows import Windowed
from headrace.runtime.env import Env
from headrace.runtime.operators.closing import NEVER, Closing
from headrace.runtime.operators.emit import Emit
from headrace.runtime.tables import forwarder
from headrace.state.window import WindowedValues
from headrace.topology.nodes import WindowAggregate


def window_aggregate(node: WindowAggregate, env: Env, emit: Emit) -> Emit:
    store: WindowedValues = env.store(node.store)
    fetch, put, place_of = store.fetch, store.put, store.key_bytes
    forward = None if node.on_close else forwarder(node.store, env, emit, send_old=node.send_old)
    close = emit_closed(node, env, store, emit) if node.on_close else None
    windows_for, grace = node.windows.windows_for, node.windows.grace
    initialize, add, drop = node.initialize, node.add, env.drop
    observed = env.state.cell(f"{node.name}/stream time", -1)

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            drop("null key")
            return
        if timestamp > observed.value:
            observed.value = timestamp
        close_time = observed.value - grace
        for window in windows_for(timestamp):
            if window.end <= close_time:
                drop("late")
                continue
            start = window.start
            before = fetch(key, start)
            if before is None:
                old, time = initialize(), timestamp
            else:
                old, time = before
                if time < timestamp:
                    time = timestamp
            new = add(key, value, old)
            put(key, None if new is None else stamped((new, time)), start)
            if forward is not None:
                forward(place_of(key, start), Windowed(key, window), new, old, time, headers, True)
        if close is not None:
            close(close_time, headers)

    return run


def emit_closed(
    node: WindowAggregate, env: Env, store: WindowedValues, emit: Emit
) -> Callable[[int, Headers], None]:
    closing, size = Closing(node.name, env), node.windows.size
    store.hold_back(max(0, closing.last.value - size + 1) if closing.last.value != NEVER else 0)

    def run(close_time: int, headers: Headers) -> None:
        last = close_time - size
        if not closing.due(close_time) or last < 0:
            return
        first = 0 if closing.last.value == NEVER else max(0, closing.last.value - size) + 1
        for key, (value, timestamp) in store.by_time(first, last):
            emit(key, (value, None, True), timestamp, headers)
        closing.last.value = close_time
        store.hold_back(last + 1)

    return run
