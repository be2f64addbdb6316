"""What the operators of a task share: the current record, the time, the state, how they emit, and the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from headrace.model.ids import TopicPartition
from headrace.model.record import Headers, RecordMetadata
from headrace.runtime.rows import CountOutput, Order, Output, Row
from headrace.state.delta import Delta
from headrace.state.task_state import TaskState

# (key, value, timestamp, headers). Positional arguments, no record object: a hop costs a function call and no more.
Emit = Callable[[Any, Any, int, Headers], None]


SLICE = 200  # records in a column: their objects fit into the CPU's cache; with 10,000, a record takes twice as long


class Columns(NamedTuple):
    """Records that are emitted at once, `SLICE` at most."""

    keys: Sequence[Any]
    values: Sequence[Any]
    timestamps: Sequence[int]
    headers: Sequence[Headers]
    orders: Sequence[Order]


# Returns False, and does nothing, if the records must be emitted one by one.
EmitColumns = Callable[[Columns], bool]


class DroppedRecord(NamedTuple):
    """A record that an operator left out: where it was read, and why it was dropped.

    `node` is the operator, or `STORE`. Topic and offset are those of the record that the task read; behind a
    repartition the topic is internal, and the offset is -1, because the log does not have the record.
    """

    reason: str
    node: str
    topic: str
    partition: int
    offset: int
    key: bytes | None  # cut off after `KEY_BYTES`
    timestamp: int
    stream_time: int  # of the task, when the record came
    clock: int  # of the batch


STORE = "a store"  # the node of a record that a store rejected because it had expired there
KEY_BYTES = 100
KEPT_DROPS = 10  # dropped records that are kept for each reason: the first of a batch, the last of a checkpoint


class Result(NamedTuple):
    """The result of a task's batch: records to be written, and the changes of the state."""

    outputs: list[Output]
    counts: list[CountOutput]  # for tasks of later levels: numbers of records instead of records
    delta: Delta
    dropped: dict[str, int]  # dropped records, by reason
    positions: dict[TopicPartition, int]  # the offset up to which each input was consumed
    commit_requested: bool = False  # a processor called `context.commit()`
    drops: tuple[DroppedRecord, ...] = ()  # the first records of each reason


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
    drop_in: Callable[[str, str], None]  # counts a dropped record, by node and reason
    drop: Callable[[str], None]  # the same for one node: `of_node` binds it
    lookup: Callable[[str], Lookup]  # by the name of a table's node
    caching: bool  # tables forward the last value of a key once a batch
    headers_format: bool  # `dsl.store.format` is HEADERS
    emit_interval: int  # wall-clock milliseconds between emissions of closed windows and unmatched records
    flushers: dict[str, Callable[[], bool]] = field(
        default_factory=dict[str, Callable[[], bool]]
    )  # by store: flushes its cache
    postponed: list[Postponed] = field(default_factory=list[Postponed])
    caches: dict[str, Any] = field(default_factory=dict[str, Any])  # by store: its cache
    to_sink: EmitColumns | None = None  # to the sink below the node's table, if only `to_stream` lies between

    def of_node(self, name: str, to_sink: EmitColumns | None = None) -> Env:
        """Returns this environment for one operator: the records that it drops are counted under its name."""
        return replace(self, drop=partial(self.drop_in, name), to_sink=to_sink)


# ------------------------------------------------------------------------------------------------------------ emitting
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


NEVER_CLOSED = -1


class Closing:
    """Decides when to look for closed windows: the close time has moved, and the emit interval has passed."""

    __slots__ = ("env", "here", "interval", "last", "name", "next", "postponed")

    def __init__(self, name: str, env: Env) -> None:
        self.name, self.env, self.here, self.interval = name, env, env.here, env.emit_interval
        self.next = env.state.cell(f"{name}/next emission", 0)  # wall clock
        self.last = env.state.cell(f"{name}/last close", NEVER_CLOSED)  # the close time of the last emission
        self.postponed = env.state.cell(f"{name}/postponed close", NEVER_CLOSED)  # held back by the interval

    def due(self, close_time: int) -> bool:
        clock = self.here.clock
        if clock < self.next.value:
            if close_time > self.last.value:
                self.postponed.value = close_time
            return False
        self.next.value, self.postponed.value = clock + self.interval, NEVER_CLOSED
        return self.last.value == NEVER_CLOSED or self.last.value < close_time

    def make_up(self, emit: Callable[[int, Headers], None]) -> None:
        """Registers the postponed emission to run by the wall clock, if no record triggers it before."""
        due, postponed = self.next, self.postponed
        self.env.postponed.append(
            Postponed(
                self.name,
                lambda: None if postponed.value == NEVER_CLOSED else due.value,
                lambda: emit(postponed.value, ()),
            )
        )
