"""Aggregates of a stream in tumbling, hopping, unlimited and user-defined windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headrace.model.record import Headers, stamped
from headrace.model.windows import TimeWindows, Window, Windowed, Windows, ends_of, window, windowed
from headrace.runtime.environment import NEVER_CLOSED, Closing, Emit, Env
from headrace.runtime.tables import at_once, cache_of, cached, is_cached
from headrace.state.keys import SIGN, TIME, decode_time
from headrace.state.table import UNKNOWN
from headrace.state.window import WindowedValues
from headrace.topology.nodes import WindowAggregate

Slice = tuple[int, int, bytes]  # start and end of a window, and the suffix of its place in the store


def window_aggregate(node: WindowAggregate, env: Env, emit: Emit, *, true_old: bool) -> Emit:
    """With `true_old` a new window has no old value; Kafka Streams passes the initial value instead."""
    if is_cached(node.store, env) and not node.on_close:
        return noting(node, env, emit)
    store: WindowedValues = env.store(node.store)
    row_of, get, update, slices_of = store.row, store.table.get, store.update, slicer(node.windows)
    close = emit_closed(node, env, store, emit) if node.on_close else None
    forward = None if close else at_once(emit, send_old=node.send_old)
    initialize, add, drop, grace = node.initialize, node.add, env.drop, node.windows.grace
    observed = env.state.cell(f"{node.name}/stream time", -1)

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            drop("null key")
            return
        observed.value = max(observed.value, timestamp)
        close_time = observed.value - grace
        row, hidden = row_of(key), store.hidden
        for start, end, suffix in slices_of(timestamp):
            if end <= close_time:
                drop("late")
                continue
            place = row + suffix
            before = get(place) if start > hidden else None
            old, time = (initialize(), timestamp) if before is None else before
            time = max(time, timestamp)
            new = add(key, value, old)
            update(place, None if new is None else stamped((new, time)), start, known=before is not None)
            if forward is not None:
                old = None if before is None and true_old else old
                forward(place, windowed((key, window((start, end)))), new, old, time, timestamp, headers, True)
        if close is not None:
            close(close_time, headers)

    return run


def noting(node: WindowAggregate, env: Env, emit: Emit) -> Emit:
    """The operator with a cache: it updates the windows and records the causes; the cache forwards the results."""
    store: WindowedValues = env.store(node.store)
    row_of, update, slices_of, here = store.row, store.update, slicer(node.windows), env.here
    recent, get, put = store.table.recent, store.table.get, store.table.put
    cache = cache_of(node.store, cached(store), env, emit, send_old=node.send_old, key_at=key_at(node.windows))
    touch, pending = cache.touched.append, cache.pending
    initialize, add, drop, grace = node.initialize, node.add, env.drop, node.windows.grace
    observed = env.state.cell(f"{node.name}/stream time", -1)

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            drop("null key")
            return
        if timestamp > observed.value:
            observed.value = timestamp
        close_time, row, hidden, expired = observed.value - grace, row_of(key), store.hidden, store.expired
        newest = store.newest_before
        cause = key, timestamp, headers, here.row, here.order
        for start, end, suffix in slices_of(timestamp):
            if end <= close_time:
                drop("late")
                continue
            place = row + suffix
            before = recent(place, UNKNOWN) if start > hidden else None
            if before is UNKNOWN:
                before = get(place) if start <= newest else None
            old, time = (initialize(), timestamp) if before is None else before
            if time < timestamp:
                time = timestamp
            new = add(key, value, old)
            if before is not None and new is not None and start > expired:
                put(place, stamped((new, time)))  # live: the store's stream time need not move
            else:
                update(place, None if new is None else stamped((new, time)), start, known=before is not None)
            touch(place)
            pending[place] = cause

    return run


def key_at(windows: Windows) -> Callable[[bytes, Any], Windowed]:
    """The windowed key of a result, from the window's place and its key."""
    end_of = ends_of(windows)

    def run(place: bytes, key: Any) -> Windowed:
        start = decode_time(place[-8:])
        return windowed((key, window((start, end_of(start)))))

    return run


def slicer(windows: Windows) -> Callable[[int], list[Slice]]:
    """The windows of a timestamp."""
    end_of = ends_of(windows)

    def slices_at(starts: Iterable[int]) -> list[Slice]:
        return [(start, end_of(start), TIME.pack(start + SIGN)) for start in starts]

    if not isinstance(windows, TimeWindows):
        return lambda timestamp: slices_at(window.start for window in windows.windows_for(timestamp))
    if windows.size % windows.advance:
        return lambda timestamp: slices_at(windows.starts_for(timestamp))
    advance, at, slices = windows.advance, -1, list[Slice]()

    def run(timestamp: int) -> list[Slice]:
        """Caches the windows of the last timestamp: all timestamps between two window starts have the same windows."""
        nonlocal at, slices
        step = timestamp // advance
        if step != at:
            at, slices = step, slices_at(windows.starts_for(timestamp))
        return slices

    return run


def emit_closed(node: WindowAggregate, env: Env, store: WindowedValues, emit: Emit) -> Callable[[int, Headers], None]:
    """Emits each window once, when it closes: the windows that end between the last close time and this one."""
    closing, end_of = Closing(node.name, env), ends_of(node.windows)
    longest = getattr(node.windows, "longest", node.windows.size)

    def first_start() -> int:
        return 0 if closing.last.value == NEVER_CLOSED else max(0, closing.last.value - longest)

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
