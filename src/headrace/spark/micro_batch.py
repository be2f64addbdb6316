"""The micro-batch trigger: a job runs as one Structured Streaming query.

    source: planner and level 0 ──▶ shuffle by slot, level 1 ──▶ … ──▶ foreachBatch: commits the receipts

The planner runs in a process of Spark's (`data_source`); after every commit the driver writes its control file.
Spark's own checkpoint is a temporary folder: the manifests say where an application continues.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from headrace.checkpoint.coordinator import Coordinator
from headrace.model.clock import SystemClock
from headrace.spark import wire_format
from headrace.spark.application_state import QueryStoppedError, make_query_folder
from headrace.spark.batch_commits import BatchCommits
from headrace.spark.batch_planner import write_control
from headrace.spark.data_source import Source, level_function
from headrace.spark.delivery_job import SharedDelivery, collect_messages, deliver_by_job
from headrace.spark.job import Job, ship_job
from headrace.spark.session import DISPOSABLE, own_session
from headrace.spark.slot_process import socket_folder
from headrace.spark.stats import ApplicationStats

GRACE = 8.0  # seconds that a running batch has to end, when the application is stopped


class MicroBatchQuery:
    """One query: level 0 runs in its source, each deeper level is a shuffle and a map, `_commit` commits a batch."""

    def __init__(
        self, spark: SparkSession, job: Job, coordinator: Coordinator, stats: ApplicationStats, *, paused: bool = False
    ) -> None:
        self._coordinator, self._commits = coordinator, BatchCommits(job, coordinator, stats)
        self._folder = make_query_folder()
        self._control = self._folder / "control"
        self._changed, self._failed = threading.Condition(), None
        self._paused, self._stopping, self._wanted, self._has_started = paused, False, False, False
        self._write_control(refresh=True)
        session = own_session(spark)
        self._job_path = ship_job(session, job, self._folder)
        self.shares = SharedDelivery(job, lambda: job.slots, deliver_by_job(session, self._job_path))
        session.dataSource.register(Source)
        frame: Any = (
            session.readStream.format("headrace").options(job=self._job_path, control=str(self._control)).load()
        )
        for level in range(1, len(job.plan.levels)):
            tasks = level_function(self._job_path, level)
            frame = frame.repartitionById(job.slots, frame["slot"]).mapInArrow(tasks, wire_format.SCHEMA)
        writer = frame.writeStream.foreachBatch(self._commit).queryName(f"headrace {job.application}")
        # With `file:`, because the default file system of a cluster may be one that other users and hosts share.
        self._query = writer.options(checkpointLocation=f"file:{self._folder}/spark", **DISPOSABLE).start()

    # ------------------------------------------------------------------------------------------------- batches
    def _write_control(self, *, refresh: bool) -> None:
        """Writes the planner's control file. `refresh` reads the ledger again; no commit may run meanwhile."""
        if refresh:
            self._committed = self._commits.control()
        idle, self._wanted = self._paused or self._stopping or self._failed is not None, self._coordinator.needs_batch
        control = msgspec.structs.replace(
            self._committed,
            paused=idle,
            wanted=self._wanted,
            commit_requested=self._commits.commit_requested,
        )
        write_control(self._control, control)

    def _commit(self, frame: DataFrame, _: int) -> None:
        """Collects the receipts of a batch and commits it.

        An error is kept for `check` instead of raised, because Spark would print it with its whole plan.
        """
        began, called = time.perf_counter(), SystemClock().now()
        try:
            messages = collect_messages(frame, "run a batch")
            for batch in (message for message in messages if isinstance(message, wire_format.Batch)):
                ran = time.perf_counter()
                self._commits.commit(batch.number, batch.clock, messages)
                self._commits.record_phases(
                    batch.number,
                    plan=called - batch.clock,
                    run=1000 * (ran - began),
                    commit=1000 * (time.perf_counter() - ran),
                )
        except Exception as error:  # noqa: BLE001
            self._failed = error
        with self._changed:
            self._write_control(refresh=True)
            self._changed.notify_all()

    def record_delivery(self, number: int) -> None:
        """Keeps how long the delivery of a batch took, once the log has its outputs. The next batch runs meanwhile."""
        self._commits.record_delivery(number)

    @property
    def has_sent_stream_time(self) -> bool:
        """True when every task has been told the current stream time."""
        return self._commits.has_sent_stream_time

    def wait(self, reached: Callable[[], bool], timeout: float) -> bool:
        """Waits for a condition, which is checked now and after every batch; True if it holds."""
        with self._changed:
            return reached() or (self._changed.wait(timeout) and reached())

    @property
    def is_ready(self) -> bool:
        """True once Spark has started the query. Afterwards Spark, which may be gone, is not asked again."""
        if not self._has_started:
            self._has_started = not self._query.status["message"].startswith("Initializing")
        return self._has_started

    def observed(self) -> dict[str, Any]:
        """What a report says about the phases of batches."""
        return {"phases": dict(self._commits.phases)}

    def check(self) -> None:
        """Raises the error that has stopped the query, if it has stopped."""
        if self._failed is not None:
            raise self._failed
        if not self._query.isActive and not self._stopping:
            error = self._query.exception()
            reason = str(error).partition("\n=== Streaming Query ===")[0]  # Spark adds offsets and its plan
            raise QueryStoppedError(f"Spark has stopped the query: {reason}") from error

    # ------------------------------------------------------------------------------------------ pausing, stopping
    def pause(self, paused: bool) -> None:
        """Pauses or resumes: no further batch begins while the query is paused."""
        with self._changed:
            self._paused = paused
            self._write_control(refresh=False)

    def look(self) -> None:
        """Requests a batch from the planner if the coordinator needs one."""
        if self._coordinator.needs_batch != self._wanted:
            with self._changed:
                self._write_control(refresh=False)

    def stop(self, timeout: float | None = None) -> bool:
        """Stops the query after the running batch, whose results Spark would discard otherwise.

        A batch that takes longer than `timeout` seconds, by default 8, is cancelled, and the method returns False.
        """
        with self._changed:
            self._stopping = True
            self._write_control(refresh=False)
        end = time.monotonic() + (GRACE if timeout is None else timeout)
        while (is_busy := self._busy()) and time.monotonic() < end:
            self.wait(lambda: False, 0.02)
        self._query.stop()
        return not is_busy

    def clear(self) -> None:
        """Removes the folder and the sockets. The slot processes end when the file of their job is gone."""
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.rmtree(socket_folder(self._job_path), ignore_errors=True)

    def _busy(self) -> bool:
        """True during a batch, and while the query starts: stopping it then makes Spark log errors."""
        status = self._query.status
        return self._query.isActive and (status["isTriggerActive"] or status["message"].startswith("Initializing"))
