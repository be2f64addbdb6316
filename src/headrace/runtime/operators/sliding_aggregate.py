"""Aggregates of a stream in sliding windows.

A window exists for every set of records that are at most `difference` apart: the record's *left* window ends at it, its
*right* window begins one millisecond after it. A new record is added to the windows it falls into, and makes up to
three new ones: the right window of the record before it, its own left window, and its own right window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.model.record import Headers, stamped
from headrace.model.windows import Window, Windowed
from headrace.runtime.environment import NEVER_CLOSED, Closing, Emit, Env
from headrace.runtime.tables import forwarder
from headrace.state.window import WindowedValues
from headrace.topology.nodes import SlidingAggregate

Aggregated = tuple[Any, int]  # an aggregate and the largest timestamp in it


@dataclass(slots=True)
class Neighbours:
    """What the windows around a record reveal about its neighbouring records."""

    left: Aggregated | None = None  # the aggregate of the records before it
    right: Aggregated | None = None  # an aggregate with the records after it
    left_exists: bool = False
    right_exists: bool = False
    previous: int | None = None  # the timestamp of the record before it
    starts: set[int] = field(default_factory=set[int])


class Sliding:
    """The windows of one operator: finds, updates and creates them."""

    def __init__(self, node: SlidingAggregate, env: Env, emit: Emit, *, true_old: bool) -> None:
        self.store: WindowedValues = env.store(node.store)
        self.forward = None if node.on_close else forwarder(node.store, env, emit, send_old=node.send_old)
        self.initialize, self.add, self.drop = node.initialize, node.add, env.drop
        self.difference, self.close_time, self.true_old = node.windows.difference, 0, true_old

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """A record at or after `difference`: its left window starts at or after 0."""
        around = self.visit(key, value, timestamp, headers)
        if around is None:
            return
        if around.previous is not None:
            start = around.previous + 1
            if start not in around.starts and start + self.difference >= timestamp:
                self.update(key, value, timestamp, headers, start, (self.initialize(), timestamp), fresh=True)
        if not around.left_exists:
            filled = around.previous is not None and timestamp - self.difference <= around.previous
            aggregate = around.left[0] if filled and around.left else self.initialize()
            start = timestamp - self.difference
            self.update(key, value, timestamp, headers, start, (aggregate, timestamp), fresh=True)
        self.create_right(key, timestamp, headers, around)

    def visit(self, key: Any, value: Any, timestamp: int, headers: Headers) -> Neighbours | None:
        """Adds the record to its windows, latest first; None if an earlier record of the key has the same timestamp."""
        around = Neighbours()
        oldest = max(0, timestamp - 2 * self.difference)
        for start, found in list(self.store.backward_fetch(key, oldest, timestamp + 1)):
            around.starts.add(start)
            end, newest = start + self.difference, found[1]
            if start == timestamp + 1:
                around.right_exists = True
            elif end > timestamp:
                around.right = around.right or found
                self.update(key, value, timestamp, headers, start, found)
            elif end == timestamp:
                around.left_exists = True
                self.update(key, value, timestamp, headers, start, found)
                if newest >= timestamp:
                    return None
                around.previous = newest
            else:
                around.left, around.previous = found, newest
                break
        return around

    def process_early(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """A record before `difference`: no window starts below 0, so [0, difference] stands for its left window."""
        around, combined = Neighbours(), None
        for start, found in list(self.store.fetch(key, 0, timestamp + 1)):
            around.starts.add(start)
            if start == 0:
                combined = found
                if found[1] < timestamp:
                    around.previous = found[1]
            elif start <= timestamp:
                around.right = found
                self.update(key, value, timestamp, headers, start, found)
            else:
                around.right_exists = True
        if around.right is None and combined is not None and combined[1] > timestamp:
            around.right = combined
        self.create_right(key, timestamp, headers, around)
        if around.previous is not None and around.previous + 1 not in around.starts:
            start = around.previous + 1
            self.update(key, value, timestamp, headers, start, (self.initialize(), timestamp), fresh=True)
        found = combined or (self.initialize(), timestamp)
        self.update(key, value, timestamp, headers, 0, found, fresh=combined is None)

    def create_right(self, key: Any, timestamp: int, headers: Headers, around: Neighbours) -> None:
        if around.right_exists or around.right is None or around.right[1] <= timestamp:
            return
        self.store.put(key, stamped(around.right), timestamp + 1)
        self.pass_on(key, timestamp + 1, None, around.right, timestamp, headers)

    def update(
        self,
        key: Any,
        value: Any,
        timestamp: int,
        headers: Headers,
        start: int,
        found: Aggregated,
        *,
        fresh: bool = False,
    ) -> None:
        """Adds the record to a window; `fresh` is true for a new window, which begins with `found`."""
        if start + self.difference < self.close_time:
            self.drop("late")
            return
        old, time = found
        new = self.add(key, value, old)
        time = timestamp if old is None else max(timestamp, time)
        self.store.put(key, None if new is None else stamped((new, time)), start)
        self.pass_on(key, start, None if fresh and self.true_old else old, (new, time), timestamp, headers)

    def pass_on(self, key: Any, start: int, old: Any, new: Aggregated, timestamp: int, headers: Headers) -> None:
        if self.forward is not None:
            windowed = Windowed(key, Window(start, start + self.difference))
            place = self.store.key_bytes(key, start)
            self.forward(place, windowed, new[0], old, new[1], timestamp, headers, True)


def sliding_aggregate(node: SlidingAggregate, env: Env, emit: Emit, *, true_old: bool) -> Emit:
    """With `true_old` a new window has no old value; Kafka Streams passes the first value instead."""
    sliding = Sliding(node, env, emit, true_old=true_old)
    close = emit_closed(node, env, sliding.store, emit) if node.on_close else None
    difference, grace, drop = node.windows.difference, node.windows.grace, env.drop
    observed = env.state.cell(f"{node.name}/stream time", -1)

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None:
            drop("null key or value")
            return
        if timestamp > observed.value:
            observed.value = timestamp
        sliding.close_time = close_time = observed.value - grace
        if timestamp + difference < close_time:
            drop("late")
            return
        if difference == 0:
            raise ValueError(f"{node.name}: sliding windows with a difference of 0 ms hold nothing; give at least 1")
        if timestamp < difference:
            sliding.process_early(key, value, timestamp, headers)
            return
        sliding.process(key, value, timestamp, headers)
        if close is not None:
            close(close_time, headers)

    return run


def emit_closed(node: SlidingAggregate, env: Env, store: WindowedValues, emit: Emit) -> Callable[[int, Headers], None]:
    closing, difference = Closing(node.name, env), node.windows.difference
    store.hold_back(0 if closing.last.value == NEVER_CLOSED else max(0, closing.last.value - difference))

    def run(close_time: int, headers: Headers) -> None:
        last = close_time - difference - 1
        if not closing.due(close_time) or last < 0:
            return
        first = 0 if closing.last.value == NEVER_CLOSED else max(0, closing.last.value - difference)
        for key, (value, timestamp) in store.by_time(first, last):
            emit(key, (value, None, True), timestamp, headers)
        closing.last.value = close_time
        store.hold_back(last + 1)

    closing.make_up(run)
    return run
