"""Threads, locks and pauses, as an argument of the classes that use them; and an executor that runs calls in order.

Production passes `SystemThreads`. The simulation passes threads that a seeded scheduler runs one at a time, in virtual
time: the seed decides which thread runs next.

Delivery and compaction run in a `SerialExecutor`: they overlap the next batches, in order, and back-pressure comes from
`submit`. A caller that would rather prepare its next call later than have it wait in the queue asks `estimate_wait`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
_WEIGHT = 0.2  # of the last call in the average time of a call


class Condition(AbstractContextManager[Any], Protocol):
    """What `threading.Condition` offers, as far as it is used."""

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Waits until the predicate holds, at most `timeout` seconds. Returns its last value."""
        ...

    def notify_all(self) -> None: ...


class Thread(Protocol):
    """A thread that was started."""

    def join(self, timeout: float | None = None) -> None: ...


class Threads(Protocol):
    """Starts threads and makes what they wait for."""

    def start(self, name: str, run: Callable[[], None]) -> Thread:
        """Starts a daemon thread."""
        ...

    def condition(self) -> Condition: ...

    def lock(self) -> AbstractContextManager[Any]:
        """Returns a lock that a thread may take again while it holds it."""
        ...

    def map(self, call: Callable[[Item], Result], items: Iterable[Item], most: int) -> list[Result]:
        """Calls a function with each item, `most` of them at a time."""
        ...

    def seconds(self) -> float:
        """Returns the time of a clock that never goes back."""
        ...

    def sleep(self, seconds: float) -> None: ...


class SystemThreads:
    """The threads of the operating system.

    >>> SystemThreads().map(str.upper, ["a", "b"], 2)
    ['A', 'B']
    """

    def start(self, name: str, run: Callable[[], None]) -> Thread:
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def condition(self) -> Condition:
        return threading.Condition()

    def lock(self) -> AbstractContextManager[Any]:
        return threading.RLock()

    def map(self, call: Callable[[Item], Result], items: Iterable[Item], most: int) -> list[Result]:
        with ThreadPoolExecutor(most) as pool:
            return list(pool.map(call, items))

    def seconds(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM_THREADS = SystemThreads()


class SerialExecutor:
    """Runs submitted calls in a thread of its own, one after the other. At most `capacity` are queued or running.

    With capacity 0 there is no thread: `submit` runs the call itself. After a call has failed, no other call runs, and
    `submit`, `check` and `drain` raise its error.
    """

    def __init__(self, name: str, capacity: int, threads: Threads = SYSTEM_THREADS) -> None:
        self._capacity, self._queue, self._busy, self._open = capacity, deque[Callable[[], object]](), 0, True
        self._error: BaseException | None = None
        self._seconds = threads.seconds
        self._began, self._average = 0.0, 0.0  # when the running call began, and how many seconds calls take
        self._changed = threads.condition()
        self._thread = threads.start(name, self._run) if capacity else None

    @property
    def is_idle(self) -> bool:
        with self._changed:
            return not self._queue and not self._busy

    def submit(self, call: Callable[[], object]) -> None:
        """Queues a call. Blocks while the queue is full."""
        if not self._capacity:
            call()
            return
        with self._changed:
            self._changed.wait_for(lambda: self._error or len(self._queue) + self._busy < self._capacity)
            self._queue.append(call)
            self._changed.notify_all()
        self.check()

    def estimate_wait(self, lead: float) -> float:
        """Estimates in how many seconds to begin preparing the next call, which takes `lead` seconds to prepare.

        The call is then ready when the running one ends. While another call is queued, it is never time to begin.
        """
        with self._changed:
            if not self._queue and not self._busy:
                return 0.0
            left = max(0.0, self._began + self._average - self._seconds()) if self._busy else 0.0
            queued = self._average * len(self._queue)
            return left + queued if queued else max(0.0, left - lead)

    def check(self) -> None:
        """Raises the error of a failed call."""
        if self._error is not None:
            raise self._error

    def drain(self, timeout: float | None = None) -> bool:
        """Waits until every call has run. Returns False if `timeout` seconds were not enough."""
        is_done = True
        if self._capacity:
            with self._changed:
                done = self._changed.wait_for(lambda: self._error or not (self._queue or self._busy), timeout)
                is_done = bool(done)
        self.check()
        return is_done

    def stop(self, timeout: float | None = None) -> None:
        """Drops queued calls. Waits `timeout` seconds, or without limit, for the running one."""
        with self._changed:
            self._open = False
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or not self._open)
                if not self._open or self._error:
                    return
                call, self._busy, self._began = self._queue.popleft(), 1, self._seconds()
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - submit, check and drain raise it
                self._error = error
            with self._changed:
                took = self._seconds() - self._began
                self._average += (took - self._average) * (_WEIGHT if self._average else 1.0)
                self._busy = 0
                self._changed.notify_all()
