"""Traces the way of one record through the operators of tasks.

    tracer = Tracer()
    task = Task(…, TaskEnvironment(…, tracer=tracer))          # compiled with a wrapper around every node
    task.run(inputs with a row whose order is a TracedOrder)   # that row, and nothing else, is written down
    tracer.steps                                               # one for each call of a node

A row is traced if its order is a `TracedOrder`. Operators keep the order of a record while it waits in a cache or a
buffer, so a record that leaves them at the end of a batch is traced, too. Outputs are not marked: the host of the tasks
asks `take_outputs` which outputs the record caused, and marks the rows of the tasks that read these outputs.

A task without a tracer is compiled without wrappers: tracing costs nothing where it is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

from headrace.model.ids import TaskId
from headrace.model.partitioner import partition_of
from headrace.model.record import Headers
from headrace.model.windows import Window, Windowed, ends_of
from headrace.runtime.environment import CurrentRecord, Emit
from headrace.runtime.rows import Output
from headrace.state.keys import decode_duplicate, decode_session, decode_window
from headrace.state.spec import (
    BufferKind,
    KeyValueKind,
    LruKind,
    SessionKind,
    StoreSpec,
    SubscriptionKind,
    VersionedKind,
    WindowKind,
)
from headrace.topology import nodes as n
from headrace.topology.graph import Graph

# These nodes forward changes: (new value, old value, is it the latest version).
_TABLES = (
    n.TableSource, n.TableFilter, n.TableMapValues, n.TableTransformValues, n.TablePassThrough, n.Suppress,
    n.TableAggregate, n.TableReduce, n.TableJoin, n.TableJoinMerge, n.TableRekey, n.StreamAggregate, n.StreamReduce,
    n.WindowAggregate, n.SlidingAggregate, n.SessionAggregate, n.ResponseJoin,
)  # fmt: skip


class TracedOrder(tuple[Any, ...]):  # noqa: SLOT001 - it has an attribute
    """The order of a row that is traced. `origin` is the number of the step that wrote it, None for the record itself.

    >>> TracedOrder((5, "in", 0, 7)) == (5, "in", 0, 7)
    True
    """

    origin: int | None = None


def trace_order(order: tuple[Any, ...], origin: int | None = None) -> TracedOrder:
    """Returns an equal order that marks its row as traced."""
    traced = TracedOrder(order)
    traced.origin = origin
    return traced


class StoreAccess(NamedTuple):
    """A read or a write of a store by an operator: the key as its store has it, and the value; None deletes."""

    store: str
    what: Literal["read", "write"]
    key: Any
    value: Any
    is_buffer: bool = False  # an internal store of records that wait: key and value are its own bytes


class TracedOutput(NamedTuple):
    """A record that an operator wrote. `partition` is None if the number of partitions is not known."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers
    is_internal: bool


class Update(NamedTuple):
    """A change of a table, where the next operator gets the old value too."""

    new: Any
    old: Any


@dataclass(slots=True)
class TraceStep:
    """One call of a node with a record: what the node got, and what it did with it."""

    number: int
    task: TaskId
    node: str
    kind: str  # the class of the node, or "Punctuation"
    key: Any
    value: Any  # an `Update` where a table forwards a change
    timestamp: int
    headers: Headers
    parent: int | None  # the step that gave the record, or that wrote it into an internal topic
    at_batch_end: bool = False  # a cache or a buffer of the parent held the record back
    given: list[int] = field(default_factory=list[int])  # the steps of the nodes that it gave records to
    accesses: list[StoreAccess] = field(default_factory=list[StoreAccess])
    dropped: list[str] = field(default_factory=list[str])  # reasons
    outputs: list[TracedOutput] = field(default_factory=list[TracedOutput])
    error: str | None = None
    note: str | None = None


class Tracer:
    """The steps of one record, in all tasks that it reaches."""

    def __init__(self) -> None:
        self.steps: list[TraceStep] = []
        self.stack: list[TraceStep] = []
        self.giver: str | None = None  # the node that calls the next one
        self._last: dict[tuple[TaskId, str], TraceStep] = {}  # the last step of every node

    def of_task(
        self,
        task_id: TaskId,
        graph: Graph,
        here: CurrentRecord,
        outbox: list[Output],
        stores: Mapping[str, StoreSpec],
        internal_topics: frozenset[str],
    ) -> TaskTracer:
        return TaskTracer(self, task_id, graph, here, outbox, stores, internal_topics)

    def enter(self, step: TraceStep, origin: int | None) -> None:
        """Links a new step to the one that caused it."""
        top, giver = self.stack[-1] if self.stack else None, self.giver
        parent, self.giver = top, None
        if giver is not None and (top is None or top.node != giver):
            parent = self._last.get((step.task, giver), top)
            step.at_batch_end = parent is not None
        elif top is None and origin is not None:
            parent = self.steps[origin]
        if parent is not None:
            step.parent = parent.number
            parent.given.append(step.number)
        self.steps.append(step)
        self.stack.append(step)
        self._last[step.task, step.node] = step


class TaskTracer:
    """Writes down what happens in one task. The compiler wraps nodes with it, the task tells it of drops."""

    def __init__(
        self,
        tracer: Tracer,
        task_id: TaskId,
        graph: Graph,
        here: CurrentRecord,
        outbox: list[Output],
        stores: Mapping[str, StoreSpec],
        internal_topics: frozenset[str],
    ) -> None:
        self._internal = internal_topics
        self._tracer, self._task, self._graph, self._here, self._outbox = tracer, task_id, graph, here, outbox
        self._stores = stores
        self._claimed = 0  # outputs before this place belong to steps that have ended, or to other records
        self._places: dict[int, int] = {}  # by place in the outbox: the step that wrote it

    # ------------------------------------------------------------------------------------------------ for the compiler
    def wrap(self, node: n.Node, run: Emit) -> Emit:
        """Returns the operator of a node, which writes a step for each call with a traced record."""
        here, kind = self._here, type(node).__name__

        def traced(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            order = here.order
            if not isinstance(order, TracedOrder):
                self._tracer.giver = None
                run(key, value, timestamp, headers)
                return
            with self._step(node.name, kind, order, key, self._show(value), timestamp, headers):
                run(key, value, timestamp, headers)

        return traced

    def give_from(self, node: str, emit: Emit) -> Emit:
        """Wraps `emit` to tell the tracer that `node` calls it: a cache lets records out when no step is open."""

        def give(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            self._tracer.giver = node
            emit(key, value, timestamp, headers)

        return give

    def wrap_punctuation(self, node: str, run: Callable[[int], None]) -> Callable[[int], None]:
        here = self._here

        def traced(timestamp: int) -> None:
            order = here.order
            if not isinstance(order, TracedOrder):
                run(timestamp)
                return
            with self._step(node, "Punctuation", order, None, None, timestamp, ()):
                run(timestamp)

        return traced

    @contextmanager
    def _step(
        self, node: str, kind: str, order: TracedOrder, key: Any, value: Any, timestamp: int, headers: Headers
    ) -> Generator[None]:
        tracer = self._tracer
        if tracer.stack:
            self._claim(tracer.stack[-1])
        else:
            self._claimed = len(self._outbox)
        step = TraceStep(len(tracer.steps), self._task, node, kind, key, value, timestamp, headers, None)
        tracer.enter(step, order.origin)
        try:
            yield
        except BaseException as error:
            if step.error is None and not step.given:
                step.error = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._claim(step)
            tracer.stack.pop()

    def _claim(self, step: TraceStep) -> None:
        """Gives a step the outputs that were written since the last call."""
        for place in range(self._claimed, len(self._outbox)):
            topic, partition, key, value, timestamp, headers, _ = self._outbox[place]
            self._places[place] = step.number
            internal = topic in self._internal
            step.outputs.append(TracedOutput(topic, partition, key, value, timestamp, headers, internal))
        self._claimed = len(self._outbox)

    def _show(self, value: Any) -> Any:
        giver = None if self._tracer.giver is None else self._graph.nodes.get(self._tracer.giver)
        changes = isinstance(giver, _TABLES) or (isinstance(giver, n.Source) and isinstance(giver.value, n.ChangeOf))
        if changes and type(value) is tuple:
            new, old, _ = cast("tuple[Any, Any, bool]", value)
            return Update(new, old) if isinstance(giver, n.Source) or getattr(giver, "send_old", False) else new
        return value  # pyright: ignore[reportUnknownVariableType] - a value of the user

    # ---------------------------------------------------------------------------------------------------- for the task
    def begin(self) -> None:
        """Begins a batch."""
        self._claimed, self._places = 0, {}

    def take_outputs(self) -> dict[int, int]:
        """Returns the places of traced records among the outputs of the batch, with the steps that wrote them."""
        return self._places

    def drop(self, node: str, reason: str) -> None:
        """Writes down that a node leaves the record out. A source may do so before the record has a step."""
        here = self._here
        if not isinstance(here.order, TracedOrder):
            return
        if self._tracer.stack:
            self._tracer.stack[-1].dropped.append(reason)
        elif here.row is not None:
            _, _, _, key, value, timestamp, headers, _ = here.row
            kind = type(self._graph.nodes[node]).__name__ if node in self._graph.nodes else "Store"
            with self._step(node, kind, here.order, key, value, timestamp, headers):
                self._tracer.steps[-1].dropped.append(reason)

    def fail(self, error: Exception) -> None:
        """Writes down the error of a record that a handler drops or sends to the dead letters."""
        if self._tracer.stack:
            self._tracer.stack[-1].error = f"{type(error).__name__}: {error}"

    def observe(self, table: str, what: Literal["read", "write"], place: bytes, value: Any) -> None:
        """Writes down a read or a write of a table, if an operator makes it for a traced record."""
        if not self._tracer.stack:
            return
        store, _, second = table.partition("/")
        if second == "times" or store not in self._stores:
            return
        spec = self._stores[store]
        is_buffer = isinstance(spec.kind, BufferKind | SubscriptionKind)
        access = StoreAccess(table, what, _decode_place(spec, second, place), value, is_buffer)
        accesses = self._tracer.stack[-1].accesses
        if access not in accesses:
            accesses.append(access)


def _decode_place(spec: StoreSpec, second: str, place: bytes) -> Any:
    """Returns the key of an entry as its store shows it; the bytes themselves for buffers."""
    if isinstance(spec.kind, BufferKind | SubscriptionKind) or spec.key is None:
        return place
    decode = spec.key.decode
    try:
        match spec.kind:
            case KeyValueKind() | LruKind():
                return decode(place)
            case WindowKind(retain_duplicates=duplicates, window_size=size):
                key, start = decode_duplicate(place)[:2] if duplicates else decode_window(place)
                return Windowed(decode(key), Window(start, ends_of(size)(start)))
            case SessionKind():
                key, start, end = decode_session(place)
                return Windowed(decode(key), Window(start, end))
            case VersionedKind():
                return decode(decode_window(place)[0] if second == "past" else place)
    except Exception:  # noqa: BLE001 -- a serde of the user's may raise anything, and a trace goes on
        return place


def find_partition(output: TracedOutput, count: int | None, own_partition: int) -> int | None:
    """Returns the partition that an output goes to: the chosen one, else by its key, else the task's own."""
    if output.partition is not None or count is None:
        return output.partition
    return own_partition % count if output.key is None else partition_of(output.key, count)
