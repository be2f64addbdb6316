# pyright: basic
"""Runs a job as one Structured Streaming query."""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections.abc import Callable

import msgspec
from pyspark.sql import DataFrame, SparkSession

from headrace.checkpoint.coordinator import Coordinator
from headrace.checkpoint.receipt import Receipt, decode_receipt
from headrace.model.clock import SystemClock
from headrace.spark import wire_format
from headrace.spark.application_state import QueryStoppedError, new_folder
from headrace.spark.batch_planner import control_of, write_control
from headrace.spark.data_source import Source, level_function
from headrace.spark.delivery_job import SharedDelivery, collected, deliver_by_job
from headrace.spark.job import Job, ship
from headrace.spark.session import DISPOSABLE, own_session
from headrace.spark.stats import ApplicationStats

REMEMBERED = 120  # batches
GRACE = 8.0  # seconds that a running batch has to end, when the application is stopped


class MicroBatchQuery:
    """One query: level 0 runs in its source, each deeper level is a shuffle and a map, and every batch is committed."""

    def __init__(
        self, spark: SparkSession, job: Job, coordinator: Coordinator, totals: ApplicationStats, *, paused: bool = False
    ) -> None:
        self._coordinator, self._totals = coordinator, totals
        # Spark's own checkpoint is disposable: where to go on is in the manifests.
        self._folder = new_folder()
        self._control, job_path = self._folder / "control", self._folder / f"job-{secrets.token_hex(8)}"
        self._changed, self._failed = threading.Condition(), None
        self._paused, self._stopping, self._wanted = paused, False, False
        self._shares_time = job.config.stream_time_scope == "application"
        self._told = self._stream_time = -1
        self._commit_requested = False
        self.phases: dict[int, dict[str, float]] = {}  # ms, by batch
        self._ended: dict[int, float] = {}  # when batches were committed that are not delivered yet
        self._tell(anew=True)
        session = own_session(spark)
        ship(session, job, job_path)
        self.shares = SharedDelivery(job, lambda: job.slots, deliver_by_job(session, str(job_path)))
        session.dataSource.register(Source)
        frame = session.readStream.format("headrace").options(job=str(job_path), control=str(self._control)).load()
        for level in range(1, len(job.plan.levels)):
            tasks = level_function(str(job_path), level)
            frame = frame.repartitionById(job.slots, frame["slot"]).mapInArrow(tasks, wire_format.SCHEMA)
        writer = frame.writeStream.foreachBatch(self._commit).queryName(f"headrace {job.application}")
        self._query = writer.options(checkpointLocation=str(self._folder / "spark"), **DISPOSABLE).start()

    # ------------------------------------------------------------------------------------------------- batches
    def _tell(self, *, anew: bool) -> None:
        """Tells the process that plans batches where everything stands; `anew` only while no batch is committed."""
        if anew:
            self._standing = control_of(self._coordinator.ledger, self._coordinator.damaged_tasks, self._stream_time)
        idle, self._wanted = self._paused or self._stopping or self._failed is not None, self._coordinator.needs_batch
        told = msgspec.structs.replace(
            self._standing,
            paused=idle,
            wanted=self._wanted,
            commit_requested=self._commit_requested,
            sizes=dict(self._totals.sizes),
        )
        write_control(self._control, told)

    def _commit(self, frame: DataFrame, _: int) -> None:
        """Collects the receipts of a batch, and makes it happen.

        What goes wrong is kept for `check`: to Spark, which would print it all, every batch is fine.
        """
        began, called = time.perf_counter(), SystemClock().now()
        try:
            messages = collected(frame, "run a batch")
            receipts: list[Receipt] = [decode_receipt(raw) for raw in messages if isinstance(raw, bytes)]
            for batch in (message for message in messages if isinstance(message, wire_format.Batch)):
                ran = time.perf_counter()
                self._coordinator.commit(batch.number, batch.clock, receipts)
                self._ended[batch.number] = done = time.perf_counter()
                self._note(
                    batch.number, plan=called - batch.clock, run=1000 * (ran - began), commit=1000 * (done - ran)
                )
                tallies = [message for message in messages if isinstance(message, wire_format.Tally)]
                self._totals.add(receipts, tallies, batch.clock, SystemClock().now())
                self._told = self._stream_time
                self._stream_time = max([self._stream_time, *(receipt.stream_time for receipt in receipts)])
                self._commit_requested = any(isinstance(message, wire_format.CommitRequest) for message in messages)
        except Exception as error:  # noqa: BLE001
            self._failed = error
        with self._changed:
            self._tell(anew=True)
            self._changed.notify_all()

    def _note(self, number: int, **phases: float) -> None:
        """How many ms the phases of a batch took, of the last ones."""
        self.phases[number] = {**{name: max(0.0, took) for name, took in phases.items()}, **self.phases.get(number, {})}
        self.phases.pop(number - REMEMBERED, None)
        self._ended.pop(number - REMEMBERED, None)

    def note_delivery(self, number: int) -> None:
        """The log has a batch now; the next one is on its way meanwhile."""
        ended = self._ended.pop(number, None)
        took = 0.0 if ended is None else 1000 * (time.perf_counter() - ended)
        self.phases[number] = {**self.phases.get(number, {}), "deliver": took}

    @property
    def all_told(self) -> bool:
        """Whether no task has yet to hear of a later stream time."""
        return not self._shares_time or self._told == self._stream_time

    def wait(self, reached: Callable[[], bool], timeout: float) -> bool:
        """Whether something is so, now or after a batch, or after a while."""
        with self._changed:
            return reached() or (self._changed.wait(timeout) and reached())

    def check(self) -> None:
        """Raises what has stopped the query, if it has stopped."""
        if self._failed is not None:
            raise self._failed
        if not self._query.isActive and not self._stopping:
            error = self._query.exception()
            raise QueryStoppedError(f"Spark has stopped the query: {error}") from error

    # ------------------------------------------------------------------------------------------ pausing, stopping
    def pause(self, paused: bool) -> None:
        """No further batch begins while it is paused."""
        with self._changed:
            self._paused = paused
            self._tell(anew=False)

    def look(self) -> None:
        """Sees to it that a batch is planned if one is wanted now."""
        if self._coordinator.needs_batch != self._wanted:
            with self._changed:
                self._tell(anew=False)

    def stop(self, timeout: float | None = None) -> bool:
        """Lets the batch that is running end: Spark would throw away what it has done.

        A batch that takes longer than `timeout` seconds, or without one than 8, is cut off; then the answer is False.
        """
        with self._changed:
            self._stopping = True
            self._tell(anew=False)
        end = time.monotonic() + (GRACE if timeout is None else timeout)
        while (is_busy := self._busy()) and time.monotonic() < end:
            self.wait(lambda: False, 0.02)
        self._query.stop()
        return not is_busy

    def clear(self) -> None:
        """Lets those go who run tasks and deliver; they end when the job is gone."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _busy(self) -> bool:
        """Whether it begins, which Spark cannot interrupt without noise, or is in the middle of a batch."""
        status = self._query.status
        return self._query.isActive and (status["isTriggerActive"] or status["message"].startswith("Initializing"))
