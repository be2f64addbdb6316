"""What the operators of a task share: the current record, the time, the state, and the result of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.model.ids import TopicPartition
from headrace.model.record import RecordMetadata
from headrace.runtime.rows import CountOutput, Order, Output, Row
from headrace.state.delta import Delta
from headrace.state.task_state import TaskState


class Result(NamedTuple):
    """The result of a task's batch: records to be written, and the changes of the state."""

    outputs: list[Output]
    counts: list[CountOutput]  # for tasks of later levels: numbers of records instead of records
    delta: Delta
    dropped: dict[str, int]  # dropped records, by reason
    positions: dict[TopicPartition, int]  # the offset up to which each input was consumed
    commit_requested: bool = False  # a processor called `context.commit()`


class CurrentRecord:
    """The record that the task processes now: where it was read, and the stream time and clock of the task."""

    __slots__ = ("clock", "commit_requested", "order", "row", "stream_time")

    def now(self) -> int:
        return self.clock

    def __init__(self) -> None:
        self.row: Row | None = None  # None while a punctuation runs
        self.order: Order = ()  # the place of the input record in its batch; outputs inherit it
        self.stream_time = -1
        self.clock = 0
        self.commit_requested = False  # by a processor, since the last commit

    @property
    def metadata(self) -> RecordMetadata | None:
        return None if self.row is None else RecordMetadata(self.row[0], self.row[1], self.row[2])

    @metadata.setter
    def metadata(self, metadata: RecordMetadata | None) -> None:
        if metadata is None:
            self.row = None
        else:
            self.row = (metadata.topic, metadata.partition, metadata.offset, None, None, -1, (), self.order)


class Lookup(NamedTuple):
    """How to look a key up in a table, stored or not: (value, timestamp), or None."""

    get: Callable[[Any], tuple[Any, int] | None]
    as_of: Callable[[Any, int], tuple[Any, int] | None] | None = None  # of a versioned table


class Postponed(NamedTuple):
    """An emission that waits for the wall clock: `due` returns its time or None, `emit` runs it."""

    node: str
    due: Callable[[], int | None]
    emit: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Env:
    """What every operator gets when it is compiled."""

    state: TaskState
    store: Callable[[str], Any]  # a store of this task, or a global one
    here: CurrentRecord
    drop: Callable[[str], None]  # counts a dropped record, by reason
    lookup: Callable[[str], Lookup]  # by the name of a table's node
    caching: bool  # tables forward the last value of a key once a batch
    headers_format: bool  # `dsl.store.format` is HEADERS
    emit_interval: int  # wall-clock milliseconds between emissions of closed windows and unmatched records
    flushers: dict[str, Callable[[], bool]] = field(
        default_factory=dict[str, Callable[[], bool]]
    )  # by store: flushes its cache
    postponed: list[Postponed] = field(default_factory=list[Postponed])
    caches: dict[str, Any] = field(default_factory=dict[str, Any])  # by store: its cache
