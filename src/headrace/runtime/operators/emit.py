"""How operators emit: the function that forwards a record, and the schedule of `EmitStrategy.ON_WINDOW_CLOSE`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.model.record import Headers
from headrace.runtime.environment import Env, Postponed

# (key, value, timestamp, headers). Positional arguments, no record object: a hop costs a function call and no more.
Emit = Callable[[Any, Any, int, Headers], None]


def nowhere(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
    """The emit function of a node without children."""


def fan_out(children: Sequence[Emit]) -> Emit:
    """One call for all children, in their order."""
    match children:
        case []:
            return nowhere
        case [only]:
            return only
        case [first, second]:

            def both(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
                first(key, value, timestamp, headers)
                second(key, value, timestamp, headers)

            return both
        case _:
            every = tuple(children)

            def all_of_them(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
                for child in every:
                    child(key, value, timestamp, headers)

            return all_of_them


NEVER = -1


class Closing:
    """Decides when to look for closed windows: the close time has moved, and the emit interval has passed."""

    __slots__ = ("env", "here", "interval", "last", "name", "next", "postponed")

    def __init__(self, name: str, env: Env) -> None:
        self.name, self.env, self.here, self.interval = name, env, env.here, env.emit_interval
        self.next = env.state.cell(f"{name}/next emission", 0)  # wall clock
        self.last = env.state.cell(f"{name}/last close", NEVER)  # the close time of the last emission
        self.postponed = env.state.cell(f"{name}/postponed close", NEVER)  # the close time that came too early

    def due(self, close_time: int) -> bool:
        clock = self.here.clock
        if clock < self.next.value:
            if close_time > self.last.value:
                self.postponed.value = close_time
            return False
        self.next.value, self.postponed.value = clock + self.interval, NEVER
        return self.last.value == NEVER or self.last.value < close_time

    def make_up(self, emit: Callable[[int, Headers], None]) -> None:
        """Registers the postponed emission to run by the wall clock, if no record triggers it before."""
        due, postponed = self.next, self.postponed
        self.env.postponed.append(
            Postponed(
                self.name,
                lambda: None if postponed.value == NEVER else due.value,
                lambda: emit(postponed.value, ()),
            )
        )
