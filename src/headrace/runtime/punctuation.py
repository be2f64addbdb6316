"""Schedules of processors, on stream time and on the wall clock; when they are due next is state."""

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
        """Moves on along the grid; what was missed is not made up for."""
        due = self.next.value
        self.next.value = due + max(1, (now - due) // self.interval + 1) * self.interval


class Punctuations:
    """All schedules of a task on one kind of time."""

    def __init__(self) -> None:
        self._heap = TimeHeap[Schedule]()
        self.due = NEVER  # when the next one is due; looked at after every record, so it is kept ready

    def add(self, schedule: Schedule) -> None:
        self._heap.push(schedule.next.value, schedule)
        self.due = self._heap.peek()[0]

    @property
    def order(self) -> bytes:
        """The schedules as the heap holds them: of those that are due together it says which goes first."""
        return "\0".join(schedule.name for schedule in self._heap.items()).encode()

    def arrange(self, order: bytes) -> None:
        """After a restart: the order of before, if these are the schedules of before."""
        known = {schedule.name: schedule for schedule in self._heap.items()}
        names = order.decode().split("\0")
        if known and sorted(names) == sorted(known):
            self._heap.arrange([(known[name].next.value, known[name]) for name in names])
            self.due = self._heap.peek()[0]

    def run(self, now: int) -> None:
        """Calls what is due; each schedule once, however long ago it was due."""
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
