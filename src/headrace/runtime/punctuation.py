"""Schedules of processors, on stream time and on the wall clock; the time of the next call is part of the state.

`TimeHeap` moves items exactly as Java's `PriorityQueue`, which orders items of equal time in Kafka Streams. Programs
see this order: which of two punctuations fires first, which of two topics is read first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from headrace.state.task_state import Cell

T = TypeVar("T")
NEVER = 2**63  # after all timestamps


class TimeHeap(Generic[T]):
    """A priority queue: items by time, smallest first.

    >>> heap = TimeHeap[str]()
    >>> heap.push(2, "b"); heap.push(1, "a"); heap.pop()
    (1, 'a')
    """

    def __init__(self) -> None:
        self._items: list[tuple[int, T]] = []

    def __len__(self) -> int:
        return len(self._items)

    def items(self) -> list[T]:
        """All items, in the order in which the heap holds them."""
        return [item for _, item in self._items]

    def arrange(self, items: list[tuple[int, T]]) -> None:
        """Restores an order that `items` returned."""
        self._items = items

    def peek(self) -> tuple[int, T]:
        return self._items[0]

    def push(self, time: int, item: T) -> None:
        items, at = self._items, len(self._items)
        items.append((time, item))
        while at > 0:
            parent = (at - 1) >> 1
            if time >= items[parent][0]:
                break
            items[at] = items[parent]
            at = parent
        items[at] = (time, item)

    def pop(self) -> tuple[int, T]:
        items = self._items
        first, last = items[0], items.pop()
        if items:
            self._sink(last)
        return first

    def _sink(self, moved: tuple[int, T]) -> None:
        """Moves `moved` from the root down to its place."""
        items, at, size = self._items, 0, len(self._items)
        while at < size >> 1:
            child = 2 * at + 1
            if child + 1 < size and items[child][0] > items[child + 1][0]:
                child += 1
            if moved[0] <= items[child][0]:
                break
            items[at] = items[child]
            at = child
        items[at] = moved


class Schedule:
    """A function that is called at every interval, until it is cancelled."""

    __slots__ = ("call", "cancelled", "interval", "name", "next")

    def __init__(self, name: str, interval: int, call: Callable[[int], None], next_time: Cell) -> None:
        self.name, self.interval, self.call = name, interval, call
        self.next, self.cancelled = next_time, False

    def cancel(self) -> None:
        self.cancelled = True

    def advance(self, now: int) -> None:
        """Moves by whole intervals to the first time after `now`; missed calls are not repeated."""
        due = self.next.value
        self.next.value = due + max(1, (now - due) // self.interval + 1) * self.interval


class Punctuations:
    """All schedules of a task on one kind of time."""

    def __init__(self) -> None:
        self._heap = TimeHeap[Schedule]()
        self.due = NEVER  # the time of the next call; kept up to date, because it is compared after every record

    def add(self, schedule: Schedule) -> None:
        self._heap.push(schedule.next.value, schedule)
        self.due = self._heap.peek()[0]

    @property
    def order(self) -> bytes:
        """The order of the heap, which decides which of several schedules with the same time is called first."""
        return "\0".join(schedule.name for schedule in self._heap.items()).encode()

    def arrange(self, order: bytes) -> None:
        """Restores the order from before a restart, if the schedules are the same."""
        known = {schedule.name: schedule for schedule in self._heap.items()}
        names = order.decode().split("\0")
        if known and sorted(names) == sorted(known):
            self._heap.arrange([(known[name].next.value, known[name]) for name in names])
            self.due = self._heap.peek()[0]

    def run(self, now: int) -> None:
        """Calls every schedule that is due, each once, however many intervals have passed."""
        heap = self._heap
        while len(heap) and heap.peek()[0] <= now:
            _, schedule = heap.pop()
            if schedule.cancelled:
                continue
            schedule.call(now)
            if not schedule.cancelled:
                schedule.advance(now)
                self.add(schedule)
        self.due = heap.peek()[0] if len(heap) else NEVER
