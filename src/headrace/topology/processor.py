"""What a user's processor looks like, and what it is given."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from typing import Any, Protocol

from headrace.model.record import FixedKeyRecord, Record, RecordMetadata


class Punctuation(Enum):
    """Which clock a schedule follows."""

    STREAM_TIME = "stream_time"  # advances with the timestamps of records
    WALL_CLOCK = "wall_clock"  # advances by itself


class Cancellable(Protocol):
    """A schedule that can be stopped."""

    def cancel(self) -> None: ...


class ProcessorContext(Protocol):
    """What a processor may ask of the topology it lives in."""

    @property
    def task_id(self) -> Any: ...

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Where the current record was read; None in a punctuation."""
        ...

    @property
    def stream_time(self) -> int: ...

    @property
    def wall_clock(self) -> int: ...

    def forward(self, record: Any, to: str | None = None) -> None:
        """Hand a record to all children, or to the one named."""
        ...

    def store(self, name: str) -> Any:
        """A store that is connected to the processor, or a global one."""
        ...

    def schedule(
        self, interval: int | timedelta, punctuation: Punctuation, f: Callable[[int], None], start: int | None = None
    ) -> Cancellable:
        """Call `f(timestamp)` every interval."""
        ...

    def commit(self) -> None:
        """Ask for a commit soon."""
        ...


class Processor(Protocol):
    """Gets every record of its parents. Only `process` is needed."""

    def init(self, context: ProcessorContext) -> None: ...

    def process(self, record: Record) -> None: ...

    def close(self) -> None: ...


class FixedKeyProcessor(Protocol):
    """A processor that cannot change keys."""

    def init(self, context: ProcessorContext) -> None: ...

    def process(self, record: FixedKeyRecord) -> None: ...

    def close(self) -> None: ...
