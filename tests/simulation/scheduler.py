"""A seeded scheduler: processes and threads that run one at a time, in virtual time.

A thread is a greenlet. It gives way where it waits: for time, for a condition, for storage, log or network. Every wait
has a random length, so the seed decides which thread comes first. Nothing else does: two runs of a seed are equal.

    scheduler = Scheduler(seed)
    process = scheduler.process("driver")
    process.start("main", run)                 # like a thread of an operating system's process
    scheduler.run(until=lambda: False)

A process can be killed at any wait. Its threads end there, and what they try to do on their way out fails.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from hashlib import blake2b
from itertools import count
from random import Random
from typing import Any, Self

from greenlet import getcurrent, greenlet


class Killed(BaseException):
    """The process has ended. No thread of it does anything any more."""


class StuckError(AssertionError):
    """Nothing is left to happen, or too much has happened."""


class Scheduler:
    """Runs threads in virtual time, which is in seconds. `trace` has what happened."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.random = Random(seed)  # noqa: S311 - it must repeat
        self.now = 0.0
        self.trace: list[str] | None = [] if keep_trace else None
        self._digest = blake2b(digest_size=16)
        self._queue: list[tuple[float, int, SimulatedThread | Callable[[], None]]] = []
        self._order, self.events = count(), 0
        self._hub = greenlet(self._loop)
        self._is_over: Callable[[], bool] = lambda: False
        self.processes: list[Process] = []
        self.failures: list[BaseException] = []

    def process(self, name: str, host: str = "host") -> Process:
        process = Process(self, name, host, len(self.processes))
        self.processes.append(process)
        return process

    def note(self, what: str) -> None:
        """Adds an event to the trace."""
        line = f"{self.now:.6f} {what}"
        self._digest.update(line.encode() + b"\n")
        if self.trace is not None:
            self.trace.append(line)

    @property
    def digest(self) -> str:
        """Of the whole trace."""
        return self._digest.hexdigest()

    # ------------------------------------------------------------------------------------------------------------ time
    def at(self, when: float, what: SimulatedThread | Callable[[], None]) -> None:
        """Has a thread continue, or a function called by the scheduler itself, which must not wait."""
        order = next(self._order)
        if isinstance(what, SimulatedThread):
            what.turn = order
        heapq.heappush(self._queue, (when, order, what))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.at(self.now + seconds, call)

    def run(self, is_over: Callable[[], bool], *, most_events: int, until: float) -> None:
        """Runs until a condition holds, which is looked at after every event."""
        self._is_over, self._most, self._until = is_over, most_events, until
        self._hub.switch()
        for process in self.processes:
            process.kill()
        if self.failures:
            raise self.failures[0]

    def _loop(self) -> None:
        while not self._is_over() and not self.failures:
            if not self._queue:
                raise StuckError("nothing is left to happen: every thread waits for another one")
            when, order, what = heapq.heappop(self._queue)
            self.events += 1
            if self.events > self._most or when > self._until:
                raise StuckError(f"no end after {self.events} events and {when:.0f} simulated seconds")
            self.now = max(self.now, when)
            if not isinstance(what, SimulatedThread):
                what()
            elif what.turn == order and not what.is_over:
                if what.process.paused_until > self.now:
                    what.wake(what.process.paused_until)
                else:
                    what.greenlet.switch()

    @property
    def current(self) -> SimulatedThread:
        thread = getcurrent()
        assert isinstance(thread, _Greenlet), "only a simulated thread can wait"
        return thread.thread


class _Greenlet(greenlet):
    thread: SimulatedThread


class SimulatedThread:
    """A thread of a simulated process."""

    def __init__(self, process: Process, name: str, run: Callable[[], None]) -> None:
        self.process, self.name, self._run = process, name, run
        self.is_over, self.turn = False, -1
        self.greenlet = _Greenlet(self._main, parent=process.scheduler._hub)
        self.greenlet.thread = self
        self._ended = SimulatedCondition(process.scheduler)
        self.wake(process.scheduler.now)

    def _main(self) -> None:
        try:
            self._run()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - the run raises it
            if not self.process.is_dead:
                self.process.scheduler.failures.append(error)
        self.is_over = True
        self._ended.wake_all()

    def wake(self, when: float) -> None:
        """Has it continue at a time. A later call replaces an earlier one."""
        self.process.scheduler.at(when, self)

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait_for(lambda: self.is_over, timeout)

    def kill(self) -> None:
        if not self.is_over and self.greenlet is not getcurrent():
            if self.greenlet.dead or not self.greenlet:
                self.is_over = True  # it never began
            else:
                self.greenlet.throw(Killed)


class Process:
    """A process of the operating system: threads that share memory, and end together. It implements `Threads`."""

    def __init__(self, scheduler: Scheduler, name: str, host: str, number: int) -> None:
        self.scheduler, self.name, self.host, self.number = scheduler, name, host, number
        self.is_dead, self.paused_until = False, 0.0
        self.parent: Process | None = None  # the driver of a slot
        self.outlives_parent = False  # it does not learn soon that its parent has ended
        self.threads: list[SimulatedThread] = []
        self.at_exit: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return self.name

    def check(self) -> None:
        """Raises if the process is dead: what a thread does while it unwinds has no effect."""
        if self.is_dead:
            raise Killed

    def kill(self) -> None:
        """Ends the process. Only the scheduler may call it; a thread calls `exit`."""
        if not self.is_dead:
            self.is_dead = True
            for thread in self.threads:
                thread.kill()
            for call in self.at_exit:
                call()

    def exit(self) -> None:
        """Ends the process of the thread that calls it."""
        self.scheduler.after(0.0, self.kill)
        self.wait(None)

    def wait(self, seconds: float | None) -> None:
        """Waits for some time, or until it is woken."""
        self.check()
        scheduler = self.scheduler
        thread = scheduler.current
        if seconds is None:
            thread.turn = -1  # a turn that was due is void
        else:
            thread.wake(scheduler.now + seconds)
        scheduler._hub.switch()
        self.check()

    # --------------------------------------------------------------------------------------------- the protocol Threads
    def start(self, name: str, run: Callable[[], None]) -> SimulatedThread:
        self.check()
        thread = SimulatedThread(self, name, run)
        self.threads.append(thread)
        return thread

    def condition(self) -> SimulatedCondition:
        return SimulatedCondition(self.scheduler)

    def lock(self) -> SimulatedCondition:
        return SimulatedCondition(self.scheduler)

    def map(self, call: Callable[[Any], Any], items: Iterable[Any], most: int) -> list[Any]:
        given = list(items)
        results: list[Any] = [None] * len(given)
        errors: list[BaseException] = []

        def run(at: int, item: Any) -> None:
            try:
                results[at] = call(item)
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)

        threads = [self.start("pool", lambda at=at, item=item: run(at, item)) for at, item in enumerate(given)]
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results

    def seconds(self) -> float:
        self.check()
        return self.scheduler.now

    def sleep(self, seconds: float) -> None:
        self.wait(seconds)


class SimulatedCondition:
    """A condition with a lock that its holder may take again."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._holder: SimulatedThread | None = None
        self._depth = 0
        self._waiting: list[SimulatedThread] = []

    def __enter__(self) -> Self:
        thread = self._scheduler.current
        thread.process.check()
        while self._holder not in (None, thread):
            self._wait(None)
        self._holder, self._depth = thread, self._depth + 1
        return self

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = None
            self.wake_all()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = None if timeout is None else self._scheduler.now + timeout
        while not (found := predicate()) and (end is None or self._scheduler.now < end):
            holder, depth, self._holder, self._depth = self._holder, self._depth, None, 0
            self._wait(None if end is None else end - self._scheduler.now)
            while holder is not None and self._holder not in (None, holder):
                self._wait(None)
            self._holder, self._depth = holder, depth
        return found

    def notify_all(self) -> None:
        self.wake_all()

    def wake_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            if not thread.is_over:
                thread.wake(self._scheduler.now)

    def _wait(self, seconds: float | None) -> None:
        thread = self._scheduler.current
        self._waiting.append(thread)
        try:
            thread.process.wait(seconds)
        finally:
            if thread in self._waiting:
                self._waiting.remove(thread)
