"""Threads, locks and pauses, as an argument of the classes that use them.

Production passes `SystemThreads`. The simulation passes threads that a seeded scheduler runs one at a time, in virtual
time: the seed decides which thread runs next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


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
