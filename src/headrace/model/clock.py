"""Clocks: what time it is, in milliseconds since the epoch."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of the current time."""

    def now(self) -> int: ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000
