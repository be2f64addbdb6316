"""Which batch comes next, when it begins, and how often it is tried: the loop of the real-time trigger.

    waits ──plan──▶ planned ──orders to the slots──▶ running ──results of all slots──▶ commit ──▶ waits
                      ▲                                 │
                      └──── pause, plan again ◀── abort ◀┘  a slot is lost, or cannot run it

A batch begins when records have arrived, the previous batch is committed, and the log will have taken the outputs of
all batches before by the time that it is committed; if `commit.interval.ms` is set, at most once in this interval. A
batch whose slots are lost is planned again, as another `BatchAttempt`: without a manifest it never happened.

`BatchLoop` is a state machine, and so is `BatchAttempt`. They start no threads and open no sockets. The loop is given
its clocks; it never waits, but says what to wait for. `RealTimeEngine` connects it to the world, and the simulation to
a simulated one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from headrace.checkpoint.steps import RANGES_PLANNED, step
from headrace.errors import StageRerunError, StreamsError
from headrace.model.clock import Clock
from headrace.model.ids import TaskId
from headrace.runtime.failures import Place
from headrace.spark import wire_format
from headrace.spark.application_state import QueryStoppedError
from headrace.spark.batch_commits import BatchCommits
from headrace.spark.batch_planner import Control, Ends, Planner, plan_orders, shortest_interval
from headrace.spark.job import Job
from headrace.spark.record_watch import KILLED
from headrace.spark.slot_messages import AbortBatch, AtRecord, BatchBroken, BatchDone, RunBatch, ToSlot

_log = logging.getLogger(__name__)
MAX_LOSSES = 2  # lost slots in one batch, before slots must report every call of a node
MAX_ATTEMPTS = 8  # at one batch, before the application starts again
LONGEST_PAUSE = 5.0  # seconds between two attempts
WEIGHT = 0.2  # of the last batch in the average time of a batch
UNTIL_MESSAGE = 1e9  # seconds
SHORTEST_WAIT = 1e-4  # seconds; the rest of a wait, after rounding, must not become another one
LAYOUT_POLL = 0.1  # seconds between two looks at slots that are expected


class Slots(Protocol):
    """What the loop needs of the slots."""

    @property
    def layout(self) -> Mapping[int, int]:
        """The registrations of the slots that take part in batches, by slot."""
        ...

    def lay_out(self, tasks: list[TaskId]) -> Mapping[TaskId, int] | None:
        """Returns which slot runs which task in the next batch; None while slots are expected."""
        ...

    def is_live(self, registration: int) -> bool:
        """Whether the process of a registration still serves its slot."""
        ...

    def send(self, registration: int, message: ToSlot) -> None:
        """Sends a message to a slot; does nothing if the slot is gone."""
        ...

    def replace_unreached(self, reporter: int, peer: int, attempt: int) -> None:
        """Records that a slot could not send rows to another in an attempt."""
        ...


class Wait(NamedTuple):
    """What the loop waits for: a message of a slot, for at most `seconds`; or records, in `BatchLoop.await_records`."""

    seconds: float
    for_records: bool = False


@dataclass
class _Batch:
    """A batch that is planned, and not committed yet. Times are seconds."""

    control: Control
    clock: int
    ends: list[Ends]
    began: float
    ordered: float = 0.0  # when the slots got their orders
    retry_at: float = 0.0
    failures: int = 0
    losses: int = 0  # attempts in which a slot was lost
    suspects: dict[Place, str] = field(default_factory=dict[Place, str])  # calls that have ended a process, and why

    @property
    def number(self) -> int:
        return self.control.number + 1


@dataclass
class BatchAttempt:
    """One attempt at a batch: which slots take part, which results have come back, and how it ended.

    `slots` has the registration of each slot that takes part, by slot. An attempt has a number, which its orders, rows
    and results carry; messages with another number are ignored. The attempt succeeds when all slots have returned their
    results. It is broken as soon as one slot is lost or cannot run it: then nothing of it is committed.

    >>> attempt = BatchAttempt(3, {0: 11, 1: 12})
    >>> attempt.finish(11, BatchDone(3, [b"receipt"], [1.0], [0.0]))
    >>> attempt.is_over
    False
    >>> attempt.lose(12)
    >>> attempt.is_over, attempt.broken
    (True, 'slot 1 was lost')
    """

    number: int
    slots: Mapping[int, int]
    results: dict[int, BatchDone] = field(default_factory=dict[int, BatchDone])
    broken: str | None = None  # why the batch has to be planned again
    at: dict[int, AtRecord] = field(default_factory=dict[int, AtRecord])  # the last reports, by registration
    suspect: AtRecord | None = None  # the call in which a slot was lost
    is_lost: bool = False  # a slot was lost

    def finish(self, registration: int, done: BatchDone) -> None:
        """Takes the results of a slot that has run all of its levels."""
        slot = self._slot(registration)
        if done.attempt == self.number and slot is not None:
            self.results[slot] = done

    def fail(self, registration: int, message: BatchBroken) -> None:
        """Breaks the attempt, because a slot could not run it."""
        slot = self._slot(registration)
        if message.attempt == self.number and slot is not None and not self.is_over:
            self.broken = message.reason

    def report(self, registration: int, message: AtRecord) -> None:
        """Remembers that a slot is about to call a node."""
        if message.attempt == self.number:
            self.at[registration] = message

    def lose(self, registration: int) -> None:
        """Breaks the attempt, because a slot is gone, unless the slot has returned its results."""
        slot = self._slot(registration)
        if slot is not None and slot not in self.results and self.broken is None:
            self.broken, self.is_lost = f"slot {slot} was lost", True
            self.suspect = self.at.get(registration)

    @property
    def is_over(self) -> bool:
        return self.broken is not None or self.results.keys() == self.slots.keys()

    @property
    def messages(self) -> list[bytes]:
        """The messages that the slots have returned."""
        return [raw for slot in sorted(self.results) for raw in self.results[slot].messages]

    @property
    def level_times(self) -> list[float]:
        """The ms that every level took, in the slot where it took longest."""
        return [max(some) for some in zip(*(done.levels for done in self.results.values()), strict=True)]

    @property
    def exchange_time(self) -> float:
        """The ms that the slots waited for rows of others, in the slot that waited longest."""
        return max((sum(done.waits) for done in self.results.values()), default=0.0)

    def _slot(self, registration: int) -> int | None:
        return next((slot for slot, number in self.slots.items() if number == registration), None)


class BatchLoop:
    """Plans batches, has the slots run them, and commits them; all calls must come from one thread.

        while True:
            wait = loop.advance()
            ... wait, and pass every message of a slot to loop.handle(registration, message)

    `seconds` is a clock that never goes back; `clock` tells the time of day. `estimate_wait` is that of the
    coordinator. `on_commit` is called after every batch.
    """

    def __init__(
        self,
        job: Job,
        planner: Planner,
        commits: BatchCommits,
        slots: Slots,
        *,
        clock: Clock,
        seconds: Callable[[], float],
        estimate_wait: Callable[[float], float],
        on_commit: Callable[[int], None],
    ) -> None:
        self._job, self._planner, self._commits, self._slots = job, planner, commits, slots
        self._clock, self._seconds, self._estimate_wait, self._on_commit = clock, seconds, estimate_wait, on_commit
        self._tasks = job.all_tasks()
        self._batch: _Batch | None = None
        self._idle: Control | None = None  # where the last plan found nothing to do
        self._attempt: BatchAttempt | None = None
        self._attempts = 0
        self._begin_at = 0.0  # the earliest time of the next batch
        self._batch_time = 0.0  # seconds that a batch takes on average until it is committed
        self._has_backlog = False  # True if the log had more records than the last batch could take
        self.is_ready = False  # True once the slots are there

    @property
    def is_running(self) -> bool:
        """True while slots run an attempt at a batch."""
        return self._attempt is not None

    # -------------------------------------------------------------------------------------------------- what slots say
    def handle(self, registration: int, message: BatchDone | BatchBroken | AtRecord | None) -> None:
        """Takes a message of a slot about the attempt that runs; None says that the slot is lost."""
        attempt = self._attempt
        if attempt is None:
            return
        match message:
            case BatchDone():
                attempt.finish(registration, message)
            case BatchBroken():
                attempt.fail(registration, message)
                if message.peer is not None:
                    self._slots.replace_unreached(registration, message.peer, message.attempt)
            case AtRecord():
                attempt.report(registration, message)
            case None:
                attempt.lose(registration)

    # ---------------------------------------------------------------------------------------------------------- batches
    def advance(self) -> Wait:
        """Does what can be done now, and returns what to wait for."""
        if self._batch is not None and self._attempt is not None:
            return self._end(self._batch, self._attempt) if self._attempt.is_over else Wait(UNTIL_MESSAGE)
        now, batch = self._seconds(), self._batch
        left = self._hold_back(now) if batch is None else batch.retry_at - now
        if left > SHORTEST_WAIT:
            return Wait(left)
        if self._slots.lay_out(self._tasks) is None:
            return Wait(LAYOUT_POLL)
        self.is_ready = True
        if batch is None:
            self._batch = batch = self._plan()
        elif batch.failures:
            self._plan_again(batch)
        if batch is None:
            return Wait(0.0, for_records=True)
        with step(RANGES_PLANNED, self._job.at_step):
            self._planner.mark_planned(batch.control)
        places = self._slots.lay_out(self._tasks)  # a slot may have been lost meanwhile
        if places is None:
            return Wait(LAYOUT_POLL)
        self._begin(batch, places)
        return Wait(UNTIL_MESSAGE)

    def await_records(self) -> None:
        """Waits until the log has records, or something else is to be done; not for long."""
        if self._idle is not None:
            with planning():
                self._planner.wait(self._idle)

    def _hold_back(self, now: float) -> float:
        """Returns for how many seconds no batch should begin."""
        left = 0.0 if self._commits.commit_requested else self._begin_at - now
        if not self._has_backlog:  # else every batch is as large as it may be, and waiting would only cost time
            left = max(left, self._estimate_wait(self._batch_time))
        return left

    def _plan(self) -> _Batch | None:
        """Plans the next batch; None if there is nothing to do."""
        began, control, clock = self._seconds(), self._commits.control(), self._clock.now()
        with planning():
            ends = self._planner.plan_ends(control)
            if not ends and not self._planner.must_run(control, clock):
                self._idle = control
                return None
        self._begin_at = self._seconds() + shortest_interval(self._job)
        self._has_backlog = any(has_more for *_, has_more in ends)
        return _Batch(control, clock, ends, began)

    def _plan_again(self, batch: _Batch) -> None:
        batch.control = self._commits.control()
        with planning():
            batch.ends = self._planner.plan_ends(batch.control)

    def _begin(self, batch: _Batch, places: Mapping[TaskId, int]) -> None:
        """Sends the orders of a batch to the slots that take part in it."""
        batch.ordered = self._seconds()
        orders = plan_orders(self._job, batch.control, batch.number, batch.clock, batch.ends, places.__getitem__)
        layout, levels = self._slots.layout, range(len(self._job.plan.levels))
        slots = {slot: layout[slot] for slot in sorted({slot for _, slot in orders})}
        is_watched = batch.losses >= MAX_LOSSES or bool(batch.suspects)
        self._attempts += 1
        self._attempt = attempt = BatchAttempt(self._attempts, slots)
        for slot, registration in slots.items():
            given = [orders.get((level, slot), b"") for level in levels]
            message = RunBatch(attempt.number, list(slots), given, is_watched, [*batch.suspects.items()])
            self._slots.send(registration, message)
        for registration in slots.values():  # a slot may have been lost before there was an attempt
            if not self._slots.is_live(registration):
                attempt.lose(registration)

    def _end(self, batch: _Batch, attempt: BatchAttempt) -> Wait:
        """Commits the batch if all slots have run it, and else tries it again later."""
        self._attempt, reason = None, attempt.broken
        if reason is None:
            try:
                self._commit(batch, attempt)
            except StageRerunError as error:
                reason = str(error)
            else:
                self._batch = None
                return Wait(0.0)
        self._abort(batch, attempt, reason)
        return Wait(0.0)

    def _commit(self, batch: _Batch, attempt: BatchAttempt) -> None:
        ran = self._seconds()
        self._commits.commit(batch.number, batch.clock, [wire_format.decode(raw) for raw in attempt.messages])
        done = self._seconds()
        self._batch_time += WEIGHT * (done - batch.began - self._batch_time)
        levels = {f"level {level}": took for level, took in enumerate(attempt.level_times)}
        self._commits.record_phases(
            batch.number,
            plan=1000 * (batch.ordered - batch.began),
            run=1000 * (ran - batch.ordered),
            exchange=attempt.exchange_time,
            commit=1000 * (done - ran),
            **(levels if len(levels) > 1 else {}),
        )
        self._on_commit(batch.number)

    def _abort(self, batch: _Batch, attempt: BatchAttempt, reason: str) -> None:
        _log.info("batch %d is planned again: %s", batch.number, reason.strip().partition("\n")[0])
        for registration in attempt.slots.values():
            self._slots.send(registration, AbortBatch(attempt.number))
        batch.failures += 1
        batch.losses += attempt.is_lost
        if attempt.suspect is not None:
            place, reason = attempt.suspect.place, attempt.suspect.reason or KILLED.format(count=batch.losses)
            _log.warning("slot lost in batch %d: %s: %s", batch.number, place, reason)
            batch.suspects[place] = reason
        if batch.failures == MAX_ATTEMPTS:
            what = f"batch {batch.number} could not be run in {MAX_ATTEMPTS} attempts: {reason}"
            raise QueryStoppedError(what, summary=what.partition("\n")[0])  # a traceback may quote a record
        if batch.failures > 1:  # a slot may be lost again and again, or the log may be away
            batch.retry_at = self._seconds() + min(0.1 * 2**batch.failures, LONGEST_PAUSE)


@contextmanager
def planning() -> Generator[None]:
    """Makes an error of planning one after which the application starts again.

    A broker that restarts may give no offsets, and a topic may have been deleted: a start waits for the broker, and
    explains that the topic is missing.
    """
    try:
        yield
    except StreamsError as error:
        raise QueryStoppedError(f"the next batch could not be planned: {error}") from error
