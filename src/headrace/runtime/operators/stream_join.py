"""Joins of two streams, and of a stream with itself, within windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.model.record import Headers
from headrace.model.windows import LONGEST
from headrace.runtime.environment import Emit, Env, Postponed
from headrace.state.buffer import UnmatchedBuffer
from headrace.state.window import WindowedDuplicates
from headrace.topology.nodes import JoinWindow, SelfJoin, StreamJoin


def join_window(node: JoinWindow, env: Env, emit: Emit) -> Emit:
    put = env.store(node.store).put

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        emit(key, value, timestamp, headers)
        if key is not None:
            put(key, value, timestamp)

    return run


class Unmatched:
    """State that both sides of an outer join share: records without a partner, and the join's stream time."""

    def __init__(self, node: StreamJoin, env: Env, buffer: UnmatchedBuffer | None) -> None:
        cell = env.state.cell
        self.buffer, self.here, self.interval = buffer, env.here, env.emit_interval
        self.stream_time = cell(f"{node.join}/stream time", -1)
        self.oldest = cell(f"{node.join}/oldest unmatched", LONGEST)
        self.next = cell(f"{node.join}/next emission", 0)  # wall clock
        self.is_postponed = cell(f"{node.join}/postponed", 0)
        self.windows, self.joiner = node.windows, node.joiner
        self.sides: set[bool] = set()  # the sides that have waiting records

    def emit_expired(self, after: int, headers: Headers, emit: Emit, *, at_end: bool = False) -> None:
        """Emits the records that can no longer find a partner; `after` is the wait of the side that triggers this."""
        grace, now = self.windows.grace, self.stream_time.value
        if self.buffer is None or self._nothing_expired(after + grace):
            return
        if self.here.clock < self.next.value and not at_end:
            self.is_postponed.value = int(self.oldest.value != LONGEST)
            return
        self.next.value, self.is_postponed.value = self.here.clock + self.interval, 0
        self.oldest.value = LONGEST
        open_sides: set[bool] = set()
        done: list[bytes] = []
        for place, timestamp, left_side, key, value in self.buffer.entries():
            self.oldest.value = timestamp
            if len(open_sides) == 2:
                break
            wait = self.windows.after_ms if left_side else self.windows.before_ms
            if timestamp + wait + grace >= now:
                open_sides.add(left_side)
                continue
            joined = self.joiner(key, value, None) if left_side else self.joiner(key, None, value)
            emit(key, joined, timestamp, headers)
            done.append(place)
        for place in done:
            self.buffer.remove(place)

    def postponed(self, name: str, emit: Emit) -> Postponed:
        """The emission that the interval held back; it runs at the end of a batch if no record triggers it before.

        In a batch that has emitted already, the emission is due at once: the clock does not move within a batch, so the
        interval cannot end before the batch. The buffer then holds only records that still wait, even after a backlog.
        """
        wait = min(self.windows.before_ms, self.windows.after_ms)

        def due() -> int | None:
            if not self.is_postponed.value:
                return None
            clock, next_emission = self.here.clock, self.next.value
            return clock if next_emission == clock + self.interval else next_emission

        return Postponed(name, due, lambda: self.emit_expired(wait, (), emit, at_end=True))

    def _nothing_expired(self, wait: int) -> bool:
        # If no record waits, Kafka Streams adds to the largest long, and the sum overflows to a negative number. So it
        # looks for expired records, which restarts the interval between two emissions.
        if self.oldest.value == LONGEST and wait > 0:
            return False
        return self.oldest.value + wait >= self.stream_time.value


def stream_join(node: StreamJoin, env: Env, unmatched: Unmatched, emit: Emit) -> Emit:  # noqa: C901 - one call a record
    others: WindowedDuplicates = env.store(node.other_store)
    left_side, outer, drop, buffer = node.left_side, node.outer, env.drop, unmatched.buffer
    joiner = node.joiner if left_side else flipped(node.joiner)  # (key, this, other)
    windows = node.windows
    before, after = (windows.before_ms, windows.after_ms) if left_side else (windows.after_ms, windows.before_ms)
    between, stream_time, sides, other_side = others.between, unmatched.stream_time, unmatched.sides, not left_side
    oldest, is_postponed, wait = unmatched.oldest, unmatched.is_postponed, after + windows.grace
    here, next_emission = env.here, unmatched.next
    if outer:
        sides.add(left_side)
    if left_side and buffer is not None:
        env.postponed.append(unmatched.postponed(node.name, emit))

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if timestamp > stream_time.value:
            stream_time.value = timestamp
        if key is None or value is None:
            if outer and value is not None:
                emit(key, joiner(key, value, None), timestamp, headers)
            else:
                drop("null key or value")
            return
        if buffer is not None and timestamp == stream_time.value:
            since = oldest.value
            held_back = is_postponed.value and here.clock < next_emission.value
            if since == LONGEST or (since + wait < timestamp and not held_back):
                unmatched.emit_expired(after, headers, emit)
        first, last, found = timestamp - before, timestamp + after, False
        if first < 0:  # rare, so that most records need no call of `max`
            first, last = 0, max(0, last)
        for time, other in between(key, first, last):
            found = True
            if buffer is not None and other_side in sides:
                buffer.forget(time, other_side, key)
            emit(key, joiner(key, value, other), max(timestamp, time), headers)
        if outer and not found:
            if buffer is None or last < stream_time.value:
                emit(key, joiner(key, value, None), timestamp, headers)
            else:
                unmatched.oldest.value = min(unmatched.oldest.value, timestamp)
                buffer.add(timestamp, left_side, key, value)

    return run


def flipped(joiner: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    return lambda key, this, other: joiner(key, other, this)


def self_join(node: SelfJoin, env: Env, emit: Emit) -> Emit:
    store: WindowedDuplicates = env.store(node.store)
    before, after, joiner, drop = node.windows.before_ms, node.windows.after_ms, node.joiner, env.drop
    observed = env.state.cell(f"{node.name}/stream time", -1)
    retention = before + after + node.windows.grace

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None:
            drop("null key or value")
            return
        observed.value = max(observed.value, timestamp)
        with_itself = timestamp > observed.value - retention + 1
        for time, other in store.between(key, max(0, timestamp - before), max(0, timestamp + after)):
            emit(key, joiner(key, value, other), max(timestamp, time), headers)
        for time, other in store.between(key, max(0, timestamp - after), max(0, timestamp + before)):
            if with_itself and time > timestamp:
                with_itself = False
                emit(key, joiner(key, value, value), timestamp, headers)
            emit(key, joiner(key, other, value), max(timestamp, time), headers)
        if with_itself:
            emit(key, joiner(key, value, value), timestamp, headers)

    return run
