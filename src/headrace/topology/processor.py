"""The Processor API: what a user's processor looks like, and the context that it is given.

A processor that inherits from `Processor` or `FixedKeyProcessor` gets an `init` and a `close` that do nothing. The
runtime accepts any object with a `process(record)` method.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from typing import Any, Protocol, overload

from typing_extensions import TypeVar

from headrace.hints import RenamedMembers, explain_names
from headrace.model.ids import TaskId
from headrace.model.record import FixedKeyRecord, Record, RecordMetadata
from headrace.state.spec import StoreSpec

S = TypeVar("S")
KIn_contra = TypeVar("KIn_contra", contravariant=True, default=Any)
VIn_contra = TypeVar("VIn_contra", contravariant=True, default=Any)
KOut_co = TypeVar("KOut_co", covariant=True, default=Any)
VOut_co = TypeVar("VOut_co", covariant=True, default=Any)
KOut_contra = TypeVar("KOut_contra", contravariant=True, default=Any)
VOut_contra = TypeVar("VOut_contra", contravariant=True, default=Any)
K = TypeVar("K", default=Any)


@explain_names({"WALL_CLOCK_TIME": "Punctuation.WALL_CLOCK", "EVENT_TIME": "Punctuation.STREAM_TIME"})
class Punctuation(Enum, metaclass=RenamedMembers):
    """The clock that a schedule follows.

    >>> [punctuation.name for punctuation in Punctuation]
    ['STREAM_TIME', 'WALL_CLOCK']
    """

    STREAM_TIME = "stream_time"  # advances with the timestamps of records
    WALL_CLOCK = "wall_clock"  # advances by itself


class Cancellable(Protocol):
    """A schedule that can be stopped: what `context.schedule(...)` returns."""

    def cancel(self) -> None:
        """Stop the schedule; its function is not called any more."""
        ...


class _Context(Protocol):
    """The parts of a context that do not depend on the kind of processor."""

    @property
    def task_id(self) -> TaskId:
        """The sub-topology and the partition that the processor works on."""
        ...

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """The topic, partition and offset of the current record; None in a punctuation."""
        ...

    @property
    def stream_time(self) -> int:
        """The largest timestamp that the task has seen, -1 before the first record."""
        ...

    @property
    def wall_clock(self) -> int:
        """The time of the current batch, in milliseconds since the epoch."""
        ...

    @overload
    def store(self, store: StoreSpec[S]) -> S: ...
    @overload
    def store(self, store: str) -> Any: ...
    def store(self, store: str | StoreSpec[Any]) -> Any:
        """A store that is connected to the processor, or a global store, which is read-only."""
        ...

    def schedule(
        self, interval: int | timedelta, punctuation: Punctuation, f: Callable[[int], None], start: int | None = None
    ) -> Cancellable:
        """Call `f(timestamp)` every `interval`, from `start` on if it is given."""
        ...

    def commit(self) -> None:
        """Request a commit: the application commits as soon as it can, before the commit interval has passed."""
        ...


class ProcessorContext(_Context, Protocol[KOut_contra, VOut_contra]):
    """What a processor can ask for: it forwards `Record[KOut, VOut]`, opens stores, and schedules functions.

    >>> from headrace import Topology, serde
    >>> from headrace.testing import TopologyTestDriver
    >>> class Length(Processor[str, str, str, int]):
    ...     def init(self, context: ProcessorContext[str, int]) -> None:
    ...         self.context = context
    ...     def process(self, record: Record[str, str]) -> None:
    ...         self.context.forward(record.with_value(len(record.value)))
    >>> topology = Topology().add_source("in", "words", value=serde.STRING).add_processor("length", Length, "in")
    >>> topology = topology.add_sink("out", "lengths", "length", value=serde.LONG)
    >>> with TopologyTestDriver(topology) as driver:
    ...     driver.input_topic("words", value=serde.STRING).pipe("hello")
    ...     driver.output_topic("lengths", value=serde.LONG).read_values()
    [5]
    """

    def forward(self, record: Record[KOut_contra, VOut_contra], to: str | None = None) -> None:
        """Send a record to all children, or to the child named `to`."""
        ...


class FixedKeyProcessorContext(_Context, Protocol[KOut_contra, VOut_contra]):
    """The context of a `FixedKeyProcessor`: it forwards records that keep their key."""

    def forward(self, record: FixedKeyRecord[KOut_contra, VOut_contra], to: str | None = None) -> None:
        """Send a record to all children, or to the child named `to`."""
        ...


class Processor(Protocol[KIn_contra, VIn_contra, KOut_co, VOut_co]):
    """Gets every record of its parents and forwards `Record[KOut, VOut]`. Only `process` must be written.

    >>> from headrace import StreamsBuilder, serde
    >>> from headrace.testing import TopologyTestDriver
    >>> class Twice(Processor[str, str, str, str]):
    ...     def init(self, context: ProcessorContext[str, str]) -> None:
    ...         self.context = context
    ...     def process(self, record: Record[str, str]) -> None:
    ...         for _ in range(2):
    ...             self.context.forward(record)
    >>> builder = StreamsBuilder()
    >>> builder.stream("in", value=serde.STRING).process(Twice).to("out", value=serde.STRING)
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input_topic("in", value=serde.STRING).pipe("a")
    ...     driver.output_topic("out", value=serde.STRING).read_values()
    ['a', 'a']
    """

    def init(self, context: ProcessorContext[KOut_co, VOut_co]) -> None:
        """Called once for each task, before the first record."""

    def process(self, record: Record[KIn_contra, VIn_contra]) -> None:
        """Called for each record."""
        ...

    def close(self) -> None:
        """Called once, after the last record."""


class FixedKeyProcessor(Protocol[K, VIn_contra, VOut_co]):
    """A processor that cannot change keys, for `process_values`. Only `process` must be written.

    >>> from headrace import StreamsBuilder, serde
    >>> from headrace.testing import TopologyTestDriver
    >>> class Upper(FixedKeyProcessor[str, str, str]):
    ...     def init(self, context: FixedKeyProcessorContext[str, str]) -> None:
    ...         self.context = context
    ...     def process(self, record: FixedKeyRecord[str, str]) -> None:
    ...         self.context.forward(record.with_value(record.value.upper()))
    >>> builder = StreamsBuilder()
    >>> builder.stream("in", value=serde.STRING).process_values(Upper).to("out", value=serde.STRING)
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input_topic("in", value=serde.STRING).pipe("a")
    ...     driver.output_topic("out", value=serde.STRING).read_values()
    ['A']
    """

    def init(self, context: FixedKeyProcessorContext[K, VOut_co]) -> None:
        """Called once for each task, before the first record."""

    def process(self, record: FixedKeyRecord[K, VIn_contra]) -> None:
        """Called for each record."""
        ...

    def close(self) -> None:
        """Called once, after the last record."""
