# pyright: basic
"""Runs an application as one Structured Streaming query."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from headrace.commit.coordinator import Coordinator
from headrace.commit.receipt import Receipt, decode_receipt
from headrace.errors import StreamsError
from headrace.spark import wire
from headrace.spark.control import control_of, write_control
from headrace.spark.job import Job
from headrace.spark.source import Source, level_function

GRACE = 8.0  # seconds that a running batch has to end, when the application is stopped


class Host:
    """One query: level 0 runs in its source, each deeper level is a shuffle and a map, and every batch is committed."""

    def __init__(self, spark: SparkSession, job: Job, coordinator: Coordinator) -> None:
        self._coordinator, self._at_most = coordinator, job.config.batch_max_records
        # Spark's own checkpoint is disposable: where to go on is in the manifests.
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-"))
        self._control, job_path = self._folder / "control", self._folder / "job"
        job_path.write_bytes(cloudpickle.dumps(job))
        self._changed = threading.Condition()
        self._failed: Exception | None = None
        self._paused = False
        self._tell()
        spark.dataSource.register(Source)
        frame = spark.readStream.format("headrace").options(job=str(job_path), control=str(self._control)).load()
        for level in range(1, len(job.plan.levels)):
            tasks = level_function(str(job_path), level)
            frame = frame.repartitionById(job.slots, frame["slot"]).mapInArrow(tasks, wire.SCHEMA)
        writer = frame.writeStream.foreachBatch(self._commit)
        self._query = writer.option("checkpointLocation", str(self._folder / "spark")).start()

    def _tell(self) -> None:
        """Tells the process that plans batches where everything stands."""
        write_control(self._control, control_of(self._coordinator.ledger, self._at_most, paused=self._paused))

    def _commit(self, frame: DataFrame, _: int) -> None:
        """Collects the receipts of a batch, and makes it happen."""
        try:
            messages = [wire.decode(bytes(row["message"])) for row in frame.collect()]
            receipts: list[Receipt] = [decode_receipt(raw) for raw in messages if isinstance(raw, bytes)]
            (batch,) = (message for message in messages if isinstance(message, wire.Batch))
            self._coordinator.commit(batch.number, batch.clock, receipts)
            self._tell()
        except Exception as error:
            self._failed = error
            raise
        finally:
            with self._changed:
                self._changed.notify_all()

    def wait(self, reached: Callable[[], bool], timeout: float) -> bool:
        """Whether something is so, now or after a batch, or after a while."""
        with self._changed:
            return reached() or (self._changed.wait(timeout) and reached())

    def check(self) -> None:
        """Raises what has stopped the query, if it has stopped."""
        if self._failed is not None:
            raise StreamsError(f"a batch failed: {self._failed}") from self._failed
        if not self._query.isActive:
            raise StreamsError("the query has stopped") from self._query.exception()

    def stop(self) -> None:
        """Lets the batch that is running end: Spark would throw away what it has done."""
        self._paused = True
        self._tell()
        end = time.monotonic() + GRACE
        while self._query.isActive and self._query.status["isTriggerActive"] and time.monotonic() < end:
            self.wait(lambda: False, 0.02)
        self._query.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
