"""The context that the runtime gives to a user's processor: forward, stores, schedules, times and commits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any, TypeVar, overload

from headrace.errors import InvalidStateStoreError, StreamsError
from headrace.hints import explain_attributes
from headrace.model.ids import TaskId
from headrace.model.record import FixedKeyRecord, Record, RecordMetadata
from headrace.model.windows import milliseconds
from headrace.runtime.environment import Emit, Env, fan_out
from headrace.runtime.punctuation import Punctuations, Schedule
from headrace.state.read_only import open_view
from headrace.state.spec import StoreSpec, store_name
from headrace.topology.processor import Cancellable, Punctuation

S = TypeVar("S")


@explain_attributes(
    {
        "get_state_store": "store(name)",
        "state_store": "store(name)",
        "current_stream_time_ms": "stream_time",
        "current_system_time_ms": "wall_clock",
        "timestamp": "record.timestamp, or stream_time",
        "headers": "record.headers",
        "topic": "record_metadata.topic",
        "partition": "record_metadata.partition",
        "offset": "record_metadata.offset",
        "application_id": "the id that the Application was given",
    }
)
class Context:
    """The context of one processor: a `ProcessorContext` or, for a fixed key, a `FixedKeyProcessorContext`.

    `stores` are the stores connected to the processor. `read_only` are the global stores, which it may only read:
    every task reads the same global store, and only the processor that fills it sees all records of its topic.
    """

    def __init__(
        self,
        node: str,
        task_id: TaskId,
        env: Env,
        children: Mapping[str, Emit],
        stores: Collection[str],
        read_only: Mapping[str, StoreSpec],
        punctuations: Mapping[Punctuation, Punctuations],
        guard: Callable[[str, Callable[[int], None]], Callable[[int], None]],
    ) -> None:
        self.node, self.task_id = node, task_id
        self.started = False  # `init` is over
        self._env, self._children, self._punctuations = env, children, punctuations
        self._stores, self._read_only = stores, read_only
        self._to_all = fan_out(list(children.values()))
        self._schedules, self._guard = 0, guard

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """The topic, partition and offset of the current record; None in a punctuation."""
        return self._env.here.metadata

    @property
    def stream_time(self) -> int:
        """The largest timestamp that the task has seen, -1 before the first record."""
        return self._env.here.stream_time

    @property
    def wall_clock(self) -> int:
        """The time of the current batch, in milliseconds since the epoch."""
        return self._env.here.clock

    def forward(self, record: Record | FixedKeyRecord, to: str | None = None) -> None:
        """Send a record to all children, or to the child named `to`."""
        if not isinstance(record, (Record, FixedKeyRecord)):  # pyright: ignore[reportUnnecessaryIsInstance] - user code
            raise TypeError(f"{self.node} forwards a {type(record).__name__}; make it a Record(key, value, timestamp)")
        if to is None:
            emit = self._to_all
        elif to in self._children:
            emit = self._children[to]
        else:
            have = ", ".join(self._children) or "none"
            raise StreamsError(f"{self.node} has no child {to!r} to forward to (it has: {have})")
        emit(record.key, record.value, record.timestamp, record.headers)

    @overload
    def store(self, store: StoreSpec[S]) -> S: ...
    @overload
    def store(self, store: str) -> Any: ...
    def store(self, store: str | StoreSpec[Any]) -> Any:
        """A store that is connected to the processor, or a global store, which is read-only."""
        name = store_name(store)
        if name in self._stores:
            return self._env.store(name)
        if name in self._read_only:
            reason = "only the processor that fills this global store may write to it"
            return open_view(self._read_only[name], lambda: [self._env.store(name)], reason)
        have = ", ".join([*self._stores, *self._read_only]) or "none"
        raise InvalidStateStoreError(
            f"{self.node} has no store {name!r} (it has: {have}). "
            f"Connect it: topology.connect({self.node!r}, {name!r}), or name it in process(supplier, {name!r})."
        )

    def schedule(
        self,
        interval: int | timedelta,
        punctuation: Punctuation,
        f: Callable[[int], None],
        start: int | None = None,
    ) -> Cancellable:
        """Call `f(timestamp)` every `interval`, from `start` on if it is given."""
        every = milliseconds(interval, "the interval of a punctuation", at_least=1)
        if not isinstance(punctuation, Punctuation):  # pyright: ignore[reportUnnecessaryIsInstance] - user code
            raise TypeError(
                f"{self.node}: schedule(interval, punctuation, f) takes Punctuation.STREAM_TIME or "
                f"Punctuation.WALL_CLOCK, not {punctuation!r}"
            )
        if start is not None and start < 0:
            raise ValueError(f"{self.node}: a schedule cannot start at {start}, before the epoch")
        here = self._env.here
        stream = punctuation is Punctuation.STREAM_TIME
        now = here.stream_time if stream else here.clock
        first = start if start is not None else 0 if stream else now + every
        if start is not None and start < now:
            first = start + ((now - start) // every + 1) * every
        # Its number among the schedules of the processor identifies a schedule. A schedule made in `init` goes on after
        # a restart; a schedule made later begins again whenever it is made.
        self._schedules += 1
        name = f"{self.node}/schedule {self._schedules} {punctuation.value} {every}"
        due = self._env.state.cell(name, None)
        if self.started or due.value is None:
            due.value = first
        guarded = self._guard(self.node, f)

        def call(timestamp: int) -> None:
            row, here.row = here.row, None
            try:
                guarded(timestamp)
            finally:
                here.row = row

        schedule = Schedule(name, every, call, due)
        self._punctuations[punctuation].add(schedule)
        return schedule

    def commit(self) -> None:
        """Request a commit: the application commits as soon as it can, before the commit interval has passed."""
        self._env.here.commit_requested = True


class TransformerContext(Context):
    """The context of a value transformer, which returns its result and forwards nothing."""

    def forward(self, record: Record | FixedKeyRecord, to: str | None = None) -> None:
        """Raise an error: a value transformer cannot forward."""
        raise StreamsError(f"{self.node}: transform_values returns its result and cannot forward; use process for that")
