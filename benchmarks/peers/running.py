"""A system that runs: what is seen of it from outside, twenty times a second."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import NamedTuple, Self

from benchmarks.peers.processes import Processes
from benchmarks.peers.room import Place, Room

START_LIMIT = 300.0  # seconds until the first output
SETTLE = 60.0  # seconds at most until all partitions are seen to be read
SAMPLE = 0.05
LOOK = 0.5  # seconds between two looks at the group's offsets


class ProblemError(Exception):
    """A system did not do what it should."""


class Sample(NamedTuple):
    moment: float
    ends: list[int]  # of the partitions of the output, for who reads what is committed
    cpu: float  # seconds of all processes until then


class Running:
    """Takes samples in a thread, for as long as the block lasts."""

    def __init__(self, room: Room, processes: Processes) -> None:
        self.room, self.processes = room, processes
        self.samples: list[Sample] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self.sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE):
            self.sample()

    def sample(self) -> Sample:
        taken = Sample(time.monotonic(), self.room.output_ends(), self.processes.cpu_seconds())
        self.samples.append(taken)
        return taken

    def check(self) -> None:
        if said := self.processes.ended():
            raise ProblemError(f"failed: {said}")

    def first_output(self) -> float:
        """Seconds from the start to the first output."""
        while True:
            self.check()
            now, ends, _ = self.samples[-1]
            if any(ends):
                return now - self.processes.started
            if now - self.processes.started > START_LIMIT:
                raise ProblemError(f"failed: no output within {START_LIMIT:g} seconds")
            time.sleep(SAMPLE)

    def settle(self, ends: dict[Place, int]) -> None:
        """Until all that is there has been read, so that no partition is still to be assigned."""
        end = time.monotonic() + SETTLE
        while not self.room.has_consumed(ends) and time.monotonic() < end:
            self.check()
            time.sleep(LOOK)
        time.sleep(1.0)

    def quiet_since(self) -> float:
        """When the last output came, or the first sample was taken."""
        samples = self.samples.copy()
        last = samples[-1].ends
        return next((it.moment for it in reversed(samples) if it.ends != last), samples[0].moment)

    def when(self, offsets: list[int]) -> Sample:
        """The first sample in which this much output is there."""
        for it in self.samples.copy():
            if all(end >= offset for end, offset in zip(it.ends, offsets, strict=True)):
                return it
        return self.samples[-1]
