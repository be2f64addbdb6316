"""What operators can be told: how to keep a table, and when to emit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import Literal, Self

from headrace.model.windows import milliseconds
from headrace.topology.naming import valid_name
from headrace.topology.nodes import SerdeLike


class EmitStrategy(Enum):
    """When a window's result comes out."""

    ON_WINDOW_UPDATE = "update"  # with every change
    ON_WINDOW_CLOSE = "close"  # once, when no more records are taken


@dataclass(frozen=True, slots=True)
class Materialized:
    """How a table is kept. Without a name it only gives serdes and settings: a store, if needed, cannot be queried.

    >>> Materialized("counts", retention=timedelta(minutes=1)).retention
    60000
    """

    name: str | None = None
    key: SerdeLike | None = None
    value: SerdeLike | None = None
    kind: Literal["persistent", "memory"] | None = None  # None: the configuration decides
    logging: bool = True
    caching: bool = True
    retention: int | timedelta | None = None  # of windows
    history: int | timedelta | None = None  # makes the table a versioned one

    def __post_init__(self) -> None:
        if self.name is not None:
            valid_name(self.name)
        if self.kind not in (None, "persistent", "memory"):
            raise ValueError(
                f"the kind of a store is 'persistent', 'memory' or None for the configured one, not {self.kind!r}"
            )
        if self.retention is not None:
            object.__setattr__(self, "retention", milliseconds(self.retention, "the retention"))
        if self.history is not None:
            object.__setattr__(self, "history", milliseconds(self.history, "the history"))
            if self.name is None:
                raise ValueError("a versioned table needs a named store: Materialized(name, history=…)")
            if self.retention is not None:
                raise ValueError(
                    f"{self.name!r} has a history and a retention: a history is for tables, a retention for windows"
                )


@dataclass(frozen=True, slots=True)
class Buffer:
    """How much `suppress` may hold back, and what happens when it is full.

    >>> Buffer.max_records(10).shut_down_when_full()
    Buffer(records=10, bytes=None, emit_early=False, logging=True)
    """

    records: int | None
    bytes: int | None
    emit_early: bool
    logging: bool = True

    @classmethod
    def unbounded(cls) -> Self:
        return cls(None, None, emit_early=False)

    @classmethod
    def max_records(cls, n: int) -> Self:
        """At most n keys; when there are more the oldest comes out, unless told otherwise."""
        return cls(_at_least_zero(n, "max_records"), None, emit_early=True)

    @classmethod
    def max_bytes(cls, n: int) -> Self:
        """At most n bytes; when there are more the oldest comes out, unless told otherwise."""
        return cls(None, _at_least_zero(n, "max_bytes"), emit_early=True)

    def with_max_records(self, n: int) -> Self:
        return replace(self, records=_at_least_zero(n, "max_records"))

    def with_max_bytes(self, n: int) -> Self:
        return replace(self, bytes=_at_least_zero(n, "max_bytes"))

    def with_no_bound(self) -> Self:
        return replace(self, records=None, bytes=None, emit_early=False)

    def emit_early_when_full(self) -> Self:
        return replace(self, emit_early=True)

    def shut_down_when_full(self) -> Self:
        return replace(self, emit_early=False)

    def without_logging(self) -> Self:
        return replace(self, logging=False)


@dataclass(frozen=True, slots=True)
class Suppressed:
    """Which updates of a table to hold back.

    >>> Suppressed.until_time_limit(timedelta(seconds=5), Buffer.unbounded()).wait
    5000
    """

    wait: int | None  # None: until the window closes
    buffer: Buffer

    @classmethod
    def until_window_closes(cls, buffer: Buffer) -> Self:
        """One result per window, when it is final."""
        if buffer.emit_early:
            raise ValueError("a window's result cannot come out early: use Buffer.unbounded() or shut_down_when_full()")
        return cls(None, buffer)

    @classmethod
    def until_time_limit(cls, wait: int | timedelta, buffer: Buffer) -> Self:
        """At most one result per key and `wait`."""
        return cls(milliseconds(wait, "the time limit"), buffer)


def _at_least_zero(n: int, what: str) -> int:
    if n < 0:
        raise ValueError(f"{what} cannot be negative, as {n} is")
    return n
