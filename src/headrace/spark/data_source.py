"""The Spark data source of the micro-batch trigger: it plans batches and runs the tasks of level 0.

    Reader.latestOffset ──▶ partitions: one per slot, with orders ──▶ read: runs level 0 ──▶ level_function, per level

Spark calls `latestOffset` and `partitions` in a Python process of its own, and `read` in its workers. Spark's offsets
are not kept: the manifests decide which records are read, through the control file.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from headrace.checkpoint.steps import RANGES_PLANNED, step
from headrace.log.open import open_log
from headrace.model.clock import SystemClock
from headrace.spark import wire_format
from headrace.spark.batch_planner import Planner, plan_orders, read_control, shortest_interval
from headrace.spark.job import Job, load_job
from headrace.spark.slot_runner import run_slot
from headrace.spark.wire_format import RecordBatch, make_record_batch, read_messages


class SlotPartition(InputPartition):
    """Orders for the tasks of level 0 in one slot. Slot 0 also has the orders for all deeper levels."""

    def __init__(self, job: str, slot: int, orders: bytes, deeper: list[tuple[int, bytes]]) -> None:
        self.job, self.slot, self.orders, self.deeper = job, slot, orders, deeper


class Reader(DataSourceStreamReader):
    """Plans batches in its own process, and runs level 0 in the workers.

    An offset is {n, clock, ends}: the number of the batch, its clock, and the ranges of the log that it reads.
    """

    def __init__(self, job: str, control: str) -> None:
        self._job_path, self._control = job, Path(control)
        self._last: dict[str, Any] | None = None
        self._planned = 0.0
        self._opened: tuple[Job, Planner] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"n": read_control(self._control).number, "clock": 0, "ends": []}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """Returns the next batch if there is something to do now or within `PATIENCE`, else the last one again."""
        job, planner = self._open()
        # After `context.commit()` the next batch, and with it the commit, begins without waiting for the interval.
        requested = read_control(self._control).commit_requested
        soonest = self._planned + (0.0 if requested else shortest_interval(job))
        planner.pause(soonest - time.monotonic())
        if not self._plan_batch(job, planner, soonest):
            planner.wait(read_control(self._control))
            self._plan_batch(job, planner, soonest)
        return self._last or start or self.initialOffset()

    def _plan_batch(self, job: Job, planner: Planner, soonest: float) -> bool:
        """Plans the next batch, unless it is before `soonest`; True if there is one."""
        control, clock = read_control(self._control), SystemClock().now()
        if control.paused or time.monotonic() < soonest:
            return False
        ends = planner.plan_ends(control)
        if not ends and not planner.must_run(control, clock):
            return False
        with step(RANGES_PLANNED, job.at_step):
            self._last = {"n": control.number + 1, "clock": clock, "ends": ends}
            self._planned = time.monotonic()
            planner.mark_planned(control)
        return True

    def _open(self) -> tuple[Job, Planner]:
        if self._opened is None:
            # Ctrl-C reaches all processes of a terminal, but the planner must live until the last batch is committed.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            job = load_job(self._job_path)
            self._opened = job, Planner(job, open_log(job.log, job.config.client_settings))
        return self._opened

    def partitions(self, start: Any, end: Any) -> list[SlotPartition]:
        (job, _), control = self._open(), read_control(self._control)
        if end["n"] != control.number + 1:  # Spark runs an empty batch at the start
            return [SlotPartition(self._job_path, slot, b"", []) for slot in range(job.slots)]
        messages = plan_orders(job, control, end["n"], end["clock"], end["ends"])
        deeper = [(slot, raw) for (level, slot), raw in messages.items() if level > 0]
        deeper.append((0, wire_format.encode(wire_format.Batch(end["n"], end["clock"]))))
        slots = range(job.slots)
        return [
            SlotPartition(self._job_path, slot, messages.get((0, slot), b""), [] if slot else deeper) for slot in slots
        ]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        assert isinstance(partition, SlotPartition)  # noqa: S101 - of `partitions`
        rows = list(partition.deeper)
        if partition.orders:
            rows += run_slot(partition.job, partition.slot, partition.orders, [])
        yield make_record_batch(rows)

    def commit(self, end: Any) -> None:
        """Does nothing: batches are committed by manifests."""


class Source(DataSource):
    """The source that Spark knows as `format("headrace")`."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> str:
        return wire_format.SCHEMA

    def streamReader(self, schema: Any) -> Reader:  # noqa: N802
        return Reader(self.options["job"], self.options["control"])


def level_function(job: str, level: int) -> Callable[[Iterator[RecordBatch]], Iterator[RecordBatch]]:
    """Returns the function that runs the tasks of a level in one Spark partition. It passes on all other messages."""

    def run(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        passed: list[tuple[int, bytes]] = []
        orders: list[tuple[int, bytes]] = []
        rows: list[bytes] = []
        for slot, raw in read_messages(batches):
            if wire_format.level_of(raw) != level:
                passed.append((slot, raw))
            elif wire_format.is_orders(raw):
                orders.append((slot, raw))
            else:
                rows.append(raw)
        for slot, raw in orders:  # all of one slot; more than one if Spark has rerun a part of the stage
            passed += run_slot(job, slot, raw, rows)
        yield make_record_batch(passed)

    return run
