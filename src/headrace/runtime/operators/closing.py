"""When the results of closed windows come out: with `EmitStrategy.ON_WINDOW_CLOSE`, once for every window."""

from __future__ import annotations

from headrace.runtime.env import Env

NEVER = -1


class Closing:
    """The moments at which to look for closed windows: the close time has moved on, and the interval has passed."""

    __slots__ = ("here", "interval", "last", "next")

    def __init__(self, name: str, env: Env) -> None:
        self.here, self.interval = env.here, env.emit_interval
        self.next = env.state.cell(f"{name}/next emission", 0)  # wall clock
        self.last = env.state.cell(f"{name}/last close", NEVER)  # the close time of the last emission

    def due(self, close_time: int) -> bool:
        clock = self.here.clock
        if clock < self.next.value:
            return False
        self.next.value = clock + self.interval
        return self.last.value == NEVER or self.last.value < close_time
