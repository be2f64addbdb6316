"""Warnings about a Kafka cluster in the program's log: one line, then at most one every ten seconds.

While brokers are away, every client of a process reconnects many times a second, and logs each failure. All clients log
through `ClientLog`, waiting requests log through `warn`, and both share one `RateLimit` for each cluster. Slots log
these warnings at DEBUG level: the driver has clients of the same cluster, and warns (`leave_to_driver`).
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from functools import cache

INTERVAL = 10.0  # seconds
_LOGGER = logging.getLogger("headrace.log.kafka")
_PLACE = re.compile(r"^(?:\[thrd:[^\]]*\]: )?(?:\S+/(?:bootstrap|\d+): )?")
_COUNTS = re.compile(r" \(after \d+ms in state \w+(?:, \d+ identical error\(s\) suppressed)?\)$")
_CONNECTION = frozenset(("FAIL", "ERROR", "REQTMOUT", "TXNERR", "COORD"))
_BEGINNING = "GETPID"  # a request that is repeated while a broker starts; a broker that is away logs FAIL


class RateLimit:
    """Admits a line, then none for `INTERVAL` seconds. With the next line it returns how many were left out.

    >>> times = iter([0, 1, 2, 12])
    >>> limit = RateLimit(lambda: next(times))
    >>> [limit.admit() for _ in range(4)]
    [0, None, None, 2]
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._lock = seconds, threading.Lock()
        self._next, self._left_out = float("-inf"), 0

    def admit(self) -> int | None:
        """Returns how many lines were left out before this one, or None if this one is left out."""
        with self._lock:
            now = self._seconds()
            if now < self._next:
                self._left_out += 1
                return None
            left_out, self._left_out, self._next = self._left_out, 0, now + INTERVAL
            return left_out


@cache
def limit_of(servers: str) -> RateLimit:
    """The limit of a cluster in this process."""
    return RateLimit()


_is_left_to_driver = False


def leave_to_driver() -> None:
    """Makes this process, a slot, log warnings about clusters at DEBUG level only."""
    global _is_left_to_driver  # noqa: PLW0603 - of the process
    _is_left_to_driver = True


def warn(servers: str, text: str) -> None:
    """Writes a warning about a cluster, if the limit allows one."""
    if _is_left_to_driver:
        _LOGGER.debug("%s", text)
        return
    left_out = limit_of(servers).admit()
    if left_out is not None:
        _LOGGER.warning("%s%s", text, f" ({left_out} more lines in between)" if left_out else "")


class ClientLog:
    """The logger of a client of the library, which calls `log` with (level, format, facility, client, text)."""

    def __init__(self, servers: str) -> None:
        self._servers = servers

    def log(self, level: int, form: str, *words: str) -> None:
        facility, text = (words[0], words[-1]) if words else ("", form)
        if level < logging.WARNING or facility == _BEGINNING:
            _LOGGER.log(logging.DEBUG if facility == _BEGINNING else level, form, *words)
        elif facility in _CONNECTION:
            warn(self._servers, f"Kafka at {self._servers} does not answer: {explain(text)}. Trying again")
        else:
            warn(self._servers, f"Kafka's client at {self._servers}: {facility} {text}")


def explain(text: str) -> str:
    """Shortens a line of the library to the reason.

    >>> explain("[thrd:h:1/bootstrap]: h:1/bootstrap: Connect to h:1 failed: Refused (after 0ms in state CONNECT)")
    'Connect to h:1 failed: Refused'
    """
    return _COUNTS.sub("", _PLACE.sub("", text)).rstrip(".")
