"""Aggregates of a stream in tumbling, hopping, unlimited and user-defined windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headrace.model.record import Headers, stamped
from headrace.model.windows import TimeWindows, Window, Windowed, Windows, ends_of, window, windowed
from headrace.runtime.env import Env
from headrace.runtime.operators.closing import NEVER, Closing
from headrace.runtime.operators.emit import Emit
from headrace.runtime.tables import forwarder
from headrace.state.keys import SIGN, TIME
from headrace.state.window import WindowedValues
from headrace.topology.nodes import WindowAggregate


def window_aggregate(node: WindowAggregate, env: Env, emit: Emit, *, true_old: bool) -> Emit:
    """`true_old`: a window that was not there before has no old value, where Kafka Streams gives the initial one."""
    store: WindowedValues = env.store(node.store)
    row_of, get, put, update, time_bytes = store.row, store.table.get, store.table.put, store.update, TIME.pack
    starts_for, end_of, size = starts_of(node.windows), ends_of(node.windows), fixed_size(node.windows)
    key_of = windowed_key(end_of)
    forward = None if node.on_close else forwarder(node.store, env, emit, send_old=node.send_old, key_of=key_of)
    close = emit_closed(node, env, store, emit) if node.on_close else None
    initialize, add, drop, grace = node.initialize, node.add, env.drop, node.windows.grace
    observed = env.state.cell(f"{node.name}/stream time", -1)

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            drop("null key")
            return
        if timestamp > observed.value:
            observed.value = timestamp
        close_time = observed.value - grace
        row, hidden = row_of(key), store.hidden
        for start in starts_for(timestamp):
            if (end_of(start) if size is None else start + size) <= close_time:
                drop("late")
                continue
            place = row + time_bytes(start + SIGN)
            before = get(place) if start > hidden else None
            old, time = (initialize(), timestamp) if before is None else before
            if time < timestamp:
                time = timestamp
            new = add(key, value, old)
            if before is not None and new is not None:
                put(place, stamped((new, time)))  # a window that is there and can be seen: the store's clock knows it
            else:
                update(place, None if new is None else stamped((new, time)), start, known=before is not None)
            if forward is not None:
                forward(place, (key, start), new, None if before is None and true_old else old, time, headers, True)
        if close is not None:
            close(close_time, headers)

    return run


def fixed_size(windows: Windows) -> int | None:
    """The size, where all windows have the same: a sum is quicker than asking each for its end."""
    return windows.size if isinstance(windows, TimeWindows) else None


def starts_of(windows: Windows) -> Callable[[int], Iterable[int]]:
    """Where the windows of a timestamp start."""
    if isinstance(windows, TimeWindows):
        return windows.starts_for
    return lambda timestamp: [window.start for window in windows.windows_for(timestamp)]


def windowed_key(end_of: Callable[[int], int]) -> Callable[[tuple[Any, int]], Windowed]:
    """The key of a window's result, made only when the result goes out."""
    return lambda handle: windowed((handle[0], window((handle[1], end_of(handle[1])))))


def emit_closed(node: WindowAggregate, env: Env, store: WindowedValues, emit: Emit) -> Callable[[int, Headers], None]:
    """Emits every window once, when it has closed: those whose end lies between the last close time and this one."""
    closing, end_of = Closing(node.name, env), ends_of(node.windows)
    longest = getattr(node.windows, "longest", node.windows.size)

    def first_start() -> int:
        return 0 if closing.last.value == NEVER else max(0, closing.last.value - longest)

    store.hold_back(first_start())

    def run(close_time: int, headers: Headers) -> None:
        if not closing.due(close_time) or close_time < 0:
            return
        last_close = closing.last.value
        for found, (value, timestamp) in store.by_time(first_start(), close_time):
            end = end_of(found.window.start)
            if last_close < end <= close_time:
                key = Windowed(found.key, Window(found.window.start, end))
                emit(key, (value, None, True), timestamp, headers)
        closing.last.value = close_time
        store.hold_back(first_start())

    closing.make_up(run)
    return run
