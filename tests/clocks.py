"""A clock for tests."""

from __future__ import annotations

from datetime import timedelta

from headrace.model.windows import milliseconds


class ManualClock:
    """A clock that stands still until it is moved.

    >>> clock = ManualClock(5)
    >>> clock.advance(10)
    15
    """

    def __init__(self, now: int = 0) -> None:
        self._now = now

    def now(self) -> int:
        return self._now

    def set(self, now: int) -> None:
        self._now = now

    def advance(self, duration: int | timedelta) -> int:
        """Moves the clock forward and returns the new time."""
        self._now += milliseconds(duration, "the advance of the clock")
        return self._now
