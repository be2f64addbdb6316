# pyright: basic
"""A Spark data source whose partitions are the tasks of level 0 with their ranges of the log."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from headrace.checkpoint.steps import RANGES_PLANNED, step
from headrace.log.open import open_log
from headrace.model.clock import SystemClock
from headrace.spark import wire_format
from headrace.spark.batch_planner import Planner, ordered, read_control, shortest_interval
from headrace.spark.job import Job, load_job
from headrace.spark.slot_runner import run_slot
from headrace.spark.wire_format import record_batch, rows_of


class Slot(InputPartition):
    """Orders for the tasks of level 0 in one slot; in the first one also those for all deeper levels."""

    def __init__(self, job: str, slot: int, orders: bytes, deeper: list[tuple[int, bytes]]) -> None:
        self.job, self.slot, self.orders, self.deeper = job, slot, orders, deeper


class Reader(DataSourceStreamReader):
    """Plans batches, in a process of its own, and runs level 0, in the workers.

    An offset is {n, clock, ends}: the number of the batch, its clock, and what to read of each partition of the log.
    """

    def __init__(self, job: str, control: str) -> None:
        self._job_path, self._control = job, Path(control)
        self._last: dict[str, Any] | None = None
        self._planned = 0.0
        self._opened: tuple[Job, Planner] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"n": read_control(self._control).number, "clock": 0, "ends": []}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """The next batch if there is anything to do, now or in a moment, else the last one again."""
        job, planner = self._open()
        # A processor that calls `context.commit()` has the next batch, and its commit, begin without the interval.
        requested = read_control(self._control).commit_requested
        soonest = self._planned + (0.0 if requested else shortest_interval(job))
        planner.pause(soonest - time.monotonic())
        if not self._plans(job, planner, soonest):
            planner.wait(read_control(self._control))
            self._plans(job, planner, soonest)
        return self._last or start or self.initialOffset()

    def _plans(self, job: Job, planner: Planner, soonest: float) -> bool:
        """Whether there is a next batch, which is not to be before some moment."""
        control, clock = read_control(self._control), SystemClock().now()
        if control.paused or time.monotonic() < soonest:
            return False
        ends = planner.ends(control)
        if not ends and not planner.must_run(control, clock):
            return False
        with step(RANGES_PLANNED, job.at_step):
            self._last = {"n": control.number + 1, "clock": clock, "ends": ends}
            self._planned = time.monotonic()
            planner.planned(control)
        return True

    def _open(self) -> tuple[Job, Planner]:
        if self._opened is None:
            # Ctrl-C goes to all processes of a terminal; this one is needed until the last batch is committed.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            job = load_job(self._job_path)
            self._opened = job, Planner(job, open_log(job.log, job.config.client_settings))
        return self._opened

    def partitions(self, start: Any, end: Any) -> list[Slot]:
        (job, _), control = self._open(), read_control(self._control)
        if end["n"] != control.number + 1:  # Spark runs a batch at the start, though there is nothing to do
            return [Slot(self._job_path, slot, b"", []) for slot in range(job.slots)]
        messages = ordered(job, control, end["n"], end["clock"], end["ends"])
        deeper = [(slot, raw) for (level, slot), raw in messages.items() if level > 0]
        deeper.append((0, wire_format.encode(wire_format.Batch(end["n"], end["clock"]))))
        slots = range(job.slots)
        return [Slot(self._job_path, slot, messages.get((0, slot), b""), [] if slot else deeper) for slot in slots]

    def read(self, partition: Slot) -> Iterator[pa.RecordBatch]:
        rows = list(partition.deeper)
        if partition.orders:
            rows += run_slot(partition.job, partition.slot, partition.orders, [])
        yield record_batch(rows)

    def commit(self, end: Any) -> None:
        """What is committed is in the manifests."""


class Source(DataSource):
    """What `format("headrace")` means."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> str:
        return wire_format.SCHEMA

    def streamReader(self, schema: Any) -> Reader:  # noqa: N802
        return Reader(self.options["job"], self.options["control"])


def level_function(job: str, level: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What runs the tasks of a level that live in one Spark partition; messages for others pass."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        passed: list[tuple[int, bytes]] = []
        orders: list[tuple[int, bytes]] = []
        rows: list[bytes] = []
        for slot, raw in rows_of(batches):
            if wire_format.level_of(raw) != level:
                passed.append((slot, raw))
            elif wire_format.is_orders(raw):
                orders.append((slot, raw))
            else:
                rows.append(raw)
        for slot, raw in orders:  # of one slot; after a part of a stage was run again perhaps twice
            passed += run_slot(job, slot, raw, rows)
        yield record_batch(passed)

    return run
