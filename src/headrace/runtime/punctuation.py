"""Schedules of processors, on stream time and on the wall clock; the time of the next call is part of the state."""

from __future__ import annotations

from collections.abc import Callable

from headrace.runtime.time_heap import TimeHeap
from headrace.state.task_state import Cell

NEVER = 2**63  # after all timestamps


class Schedule:
    """A function that is called at every interval, until it is cancelled."""

    __slots__ = ("call", "cancelled", "interval", "name", "next")

    def __init__(self, name: str, interval: int, call: Callable[[int], None], next_time: Cell) -> None:
        self.name, self.interval, self.call = name, interval, call
        self.next, self.cancelled = next_time, False

    def cancel(self) -> None:
        self.cancelled = True

    def advance(self, now: int) -> None:
        """Moves to the next time of the grid after now; missed calls are not repeated."""
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
