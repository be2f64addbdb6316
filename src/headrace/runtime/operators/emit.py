"""What an operator calls to pass a record on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.model.record import Headers

# (key, value, timestamp, headers). Positional arguments, no record object: a hop costs a function call and no more.
Emit = Callable[[Any, Any, int, Headers], None]


def nowhere(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
    """What a node without children passes its records to."""


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
