"""Commits the receipts of a batch, for both triggers, and keeps what the next batch and a report need."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from headrace.checkpoint.coordinator import Coordinator
from headrace.checkpoint.receipt import Receipt, decode_receipt
from headrace.model.clock import Clock, SystemClock
from headrace.spark import wire_format
from headrace.spark.batch_planner import Control, make_control
from headrace.spark.job import Job, decode_failure
from headrace.spark.stats import ApplicationStats

REMEMBERED = 120  # batches whose phases are kept


class BatchCommits:
    """Commits batches. `commit` and `record_delivery` are called in different threads."""

    def __init__(
        self,
        job: Job,
        coordinator: Coordinator,
        stats: ApplicationStats,
        *,
        clock: Clock | None = None,
        seconds: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._coordinator, self._stats, self._clock, self._seconds = coordinator, stats, clock or SystemClock(), seconds
        self._shares_time = job.config.stream_time_scope == "application"
        self._stream_time = self._sent_stream_time = -1
        self._recorded = coordinator.ledger.number  # the last batch that the statistics and the stream time include
        self._committed_at: dict[int, float] = {}  # of batches that are not delivered yet
        self.commit_requested = False
        self.phases: dict[int, dict[str, float]] = {}  # ms, by batch

    def commit(self, number: int, clock: int, messages: Sequence[wire_format.Message | bytes]) -> None:
        """Commits a batch, by the messages of its tasks. Raises the error of a task that has failed."""
        for message in messages:
            if isinstance(message, wire_format.Failed):
                raise decode_failure(message)
        receipts: list[Receipt] = [decode_receipt(raw) for raw in messages if isinstance(raw, bytes)]
        self._coordinator.commit(number, clock, receipts)
        self._committed_at[number] = self._seconds()
        tallies = [message for message in messages if isinstance(message, wire_format.Tally)]
        self._stats.add(receipts, tallies, clock, self._clock.now())
        sent = self._stream_time
        self._stream_time = max([sent, *(receipt.stream_time for receipt in receipts)])
        self._sent_stream_time = sent
        self.commit_requested = any(isinstance(message, wire_format.CommitRequest) for message in messages)
        self._recorded = number  # last: another thread must not find the stream times equal too early

    def record_phases(self, number: int, **phases: float) -> None:
        """Keeps how many ms the phases of a batch took."""
        self.phases[number] = {**{name: max(0.0, took) for name, took in phases.items()}, **self.phases.get(number, {})}
        self.phases.pop(number - REMEMBERED, None)
        self._committed_at.pop(number - REMEMBERED, None)

    def record_delivery(self, number: int) -> None:
        """Keeps how long the delivery of a batch took, once the log has its outputs. The next batch runs meanwhile."""
        committed = self._committed_at.pop(number, None)
        took = 0.0 if committed is None else 1000 * (self._seconds() - committed)
        self.phases[number] = {**self.phases.get(number, {}), "deliver": took}

    @property
    def has_sent_stream_time(self) -> bool:
        """True when a batch has sent the current stream time to every task, and the last batch is in the statistics."""
        if self._recorded < self._coordinator.ledger.number:
            return False
        return not self._shares_time or self._sent_stream_time == self._stream_time

    def control(self) -> Control:
        """What the planner needs for the next batch. No commit may run meanwhile."""
        coordinator = self._coordinator
        control = make_control(coordinator.ledger, coordinator.damaged_tasks, self._stream_time)
        return msgspec.structs.replace(control, wanted=coordinator.needs_batch, sizes=dict(self._stats.sizes))
