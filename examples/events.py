"""What the data generators of the examples make: endless events, the same ones for the same seed."""

from typing import Any, NamedTuple

from headrace.serde import Serde

START = 1_767_225_600_000  # 1 January 2026, 00:00 UTC: when the time of most generators begins

Topics = dict[str, tuple[Serde, Serde]]  # the serdes of the keys and the values of topics


class Event(NamedTuple):
    """A record that is about to be written to a topic."""

    topic: str
    key: Any
    value: Any
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()
