"""Aggregates of a stream in tumbling, hopping, unlimited and user-defined windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from types import NoneType
from typing import Any

from headrace.model.record import Headers, stamped
from headrace.model.windows import TimeWindows, Window, Windowed, Windows, ends_of, window, windowed
from headrace.runtime.environment import NEVER_CLOSED, Closing, Columns, Emit, Env
from headrace.runtime.tables import Cache, Cause, Update, at_once, cached, is_cached
from headrace.state.keys import SIGN, TIME, decode_time
from headrace.state.window import OpenWindow, WindowedValues
from headrace.topology.nodes import WindowAggregate

Slice = tuple[int, int, bytes]  # start and end of a window, and the suffix of its place in the store


def window_aggregate(node: WindowAggregate, env: Env, emit: Emit, *, true_old: bool) -> Emit:
    """With `true_old` a new window has no old value; Kafka Streams passes the initial value instead."""
    if is_cached(node.store, env) and not node.on_close:
        return cached_window_aggregate(node, env, emit)
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


def cached_window_aggregate(node: WindowAggregate, env: Env, emit: Emit) -> Emit:
    """The operator with a cache: it updates open windows, and the cache forwards them at the end of the batch."""
    store: WindowedValues = env.store(node.store)
    cache = window_cache_of(node, store, env, emit)
    row_of, slices_of, here, clock, retention = store.row, slicer(node.windows), env.here, store.clock, store.retention
    open_windows, open_window = store.open, store.open_window
    next_turn, writes_at_once = cache.next_turn, cache.is_traced
    initialize, add, drop, grace = node.initialize, node.add, env.drop, node.windows.grace
    observed = env.state.cell(f"{node.name}/stream time", -1)

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            drop("null key")
            return
        if timestamp > observed.value:
            observed.value = timestamp
        close_time, expired, row = observed.value - grace, clock.value - retention, row_of(key)
        windows = open_windows[row]
        cause, turn = (key, timestamp, headers, here.row, here.order), next_turn()
        for start, end, suffix in slices_of(timestamp):
            if end <= close_time:
                drop("late")
                continue
            if start <= expired:
                cache.update_expired(node, row + suffix, start, value, cause)
                windows = open_windows[row]
                continue
            opened = windows.get(start)
            if opened is None:
                opened = open_window(windows, row + suffix, start)
            old, time = opened.value, opened.time
            if old is None:
                old, time = initialize(), timestamp
            elif time < timestamp:
                time = timestamp
            opened.value = add(key, value, old)
            opened.time, opened.cause, opened.turn = time, cause, turn
            if start > clock.value:
                clock.value = start
        if writes_at_once:
            cache.write()

    return run


class WindowCache(Cache):
    """The updates of a window store that its aggregates forward at the end of the batch.

    The aggregates of a cogrouped stream share it. `next_turn` numbers the records that update windows. A trace shows
    the store after each record, so the windows are then written at once.
    """

    def __init__(self, store: WindowedValues, windows: Windows, env: Env, emit: Emit, *, send_old: bool) -> None:
        super().__init__(cached(store), env, emit, send_old=send_old, key_at=key_at(windows))
        self.next_turn, self.is_traced = count(1).__next__, store.table.is_observed
        self._store, self._end_of = store, ends_of(windows)
        store.write_open = self.write

    def write(self) -> None:
        """Writes the open windows into the store before the end of the batch."""
        for opened in self._store.take_open():
            self.touched.append(opened.place)
            self.pending[opened.place] = opened.cause

    def update_expired(self, node: WindowAggregate, place: bytes, start: int, value: Any, cause: Cause) -> None:
        """Updates a window that has expired in the store: a processor has put a much later window into it."""
        self.write()
        key, timestamp, *_ = cause
        before = self._store.table.get(place)
        old, time = (node.initialize(), timestamp) if before is None else before
        new = node.add(key, value, old)
        held = None if new is None else stamped((new, max(time, timestamp)))
        self._store.update(place, held, start, known=before is not None)
        self.touched.append(place)
        self.pending[place] = cause

    def flush(self) -> bool:
        if self.pending:
            self.write()
            return super().flush()
        updated = self._store.take_open()
        if not updated:
            return False
        self._let_out(updated, self._changes_of, self._columns_of)
        return True

    def _changes_of(self, updated: Iterable[OpenWindow]) -> Iterator[Update]:
        """The changes of open windows; none for a window that came and went in this batch."""
        send_old, before_of, end_of = self._send_old, self._store.before, self._end_of
        for opened in updated:
            key, timestamp, headers, row, order = opened.cause
            value, start = opened.value, opened.start
            before = before_of(opened.place) if send_old or value is None else None
            if value is not None or before is not None:
                old = before[0] if send_old and before is not None else None
                time = timestamp if value is None else opened.time
                yield windowed((key, window((start, end_of(start))))), value, old, time, headers, row, order

    def _columns_of(self, updated: Sequence[OpenWindow]) -> Columns | None:
        values = [opened.value for opened in updated]
        if NoneType in set(map(type, values)):
            return None
        keys, _, headers, _, orders = zip(*[opened.cause for opened in updated], strict=True)
        starts = [opened.start for opened in updated]
        windows = {start: window((start, self._end_of(start))) for start in set(starts)}
        windowed_keys = list(map(windowed, zip(keys, map(windows.__getitem__, starts), strict=True)))
        return Columns(windowed_keys, values, [opened.time for opened in updated], headers, orders)


def window_cache_of(node: WindowAggregate, store: WindowedValues, env: Env, emit: Emit) -> WindowCache:
    """The cache of a window store: one for all aggregates of the store."""
    cache = env.caches.get(node.store)
    if cache is None:
        cache = env.caches[node.store] = WindowCache(store, node.windows, env, emit, send_old=node.send_old)
        env.flushers[node.store] = cache.flush
    return cache


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
