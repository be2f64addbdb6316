"""The context that a processor gets: forward, stores, schedules, times."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any

from headrace.errors import InvalidStateStoreError, StreamsError
from headrace.model.ids import TaskId
from headrace.model.record import FixedKeyRecord, Record, RecordMetadata
from headrace.model.windows import milliseconds
from headrace.runtime.environment import Env
from headrace.runtime.operators.emit import Emit, fan_out
from headrace.runtime.punctuation import Punctuations, Schedule
from headrace.state.read_only import ReadOnly
from headrace.topology.processor import Cancellable, Punctuation


class Context:
    """The `ProcessorContext` of one processor."""

    def __init__(
        self,
        node: str,
        task_id: TaskId,
        env: Env,
        children: Mapping[str, Emit],
        stores: Collection[str],
        read_only: Collection[str],
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
        return self._env.here.metadata

    @property
    def stream_time(self) -> int:
        return self._env.here.stream_time

    @property
    def wall_clock(self) -> int:
        return self._env.here.clock

    def forward(self, record: Record | FixedKeyRecord, to: str | None = None) -> None:
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

    def store(self, name: str) -> Any:
        if name in self._stores:
            return self._env.store(name)
        if name in self._read_only:
            return ReadOnly(self._env.store(name), "only the processor that fills this global store may write to it")
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
        every = milliseconds(interval, "the interval of a punctuation", at_least=1)
        if start is not None and start < 0:
            raise ValueError(f"{self.node}: a schedule cannot start at {start}, before the epoch")
        here = self._env.here
        stream = punctuation is Punctuation.STREAM_TIME
        now = here.stream_time if stream else here.clock
        first = start if start is not None else 0 if stream else now + every
        if start is not None and start < now:
            first = start + ((now - start) // every + 1) * every
        # A schedule is identified by its rank among the processor's schedules. Those of `init` are restored after a
        # restart; a schedule that is made later starts from the time at which it is made.
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
        self._env.here.commit_requested = True


class TransformerContext(Context):
    """The context of a value transformer, which returns its results and forwards nothing."""

    def forward(self, record: Record | FixedKeyRecord, to: str | None = None) -> None:
        raise StreamsError(f"{self.node}: transform_values returns its result and cannot forward; use process for that")
