# pyright: basic
"""A Spark data source whose partitions are the tasks of level 0 with their ranges of the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from headrace.commit.steps import RANGES_PLANNED, step
from headrace.log.open import open_log
from headrace.model.ids import TaskId
from headrace.spark import wire
from headrace.spark.arrow import record_batch, rows_of
from headrace.spark.control import Control, read_control
from headrace.spark.job import Job
from headrace.spark.ordering import ordered
from headrace.spark.worker import workshop


def load_job(path: str) -> Job:
    return cloudpickle.loads(Path(path).read_bytes())


class Slot(InputPartition):
    """Orders for the tasks of level 0 in one slot; in the first one also those for all deeper levels."""

    def __init__(self, job: str, orders: bytes, deeper: list[tuple[int, bytes]]) -> None:
        self.job, self.orders, self.deeper = job, orders, deeper


class Reader(DataSourceStreamReader):
    """Plans batches, in a process of its own, and runs level 0, in the workers.

    An offset is {n, clock, ends}: the number of the batch, its clock, and what to read of each partition of the log.
    """

    def __init__(self, job: str, control: str) -> None:
        self._job_path, self._control = job, Path(control)
        self._last: dict[str, Any] | None = None
        self._opened: tuple[Job, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"n": read_control(self._control).number, "clock": 0, "ends": []}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """The next batch if there is anything to do, else the last one again."""
        control, clock = read_control(self._control), time.time_ns() // 1_000_000
        ends = list(self._ends(control))
        due = bool(ends or control.carried or (control.due is not None and control.due <= clock))
        if due and not control.paused:
            with step(RANGES_PLANNED, self._open()[0].at_step):
                self._last = {"n": control.number + 1, "clock": clock, "ends": ends}
        return self._last or start or self.initialOffset()

    def _ends(self, control: Control) -> Iterator[tuple[str, int, int, int, bool]]:
        """What there is to read: topic, partition, first and last offset, and whether there is more."""
        _, log = self._open()
        topics = sorted({topic for topic, _, _ in control.positions})
        extents = log.extents(topics) if topics else {}
        ends = {(at.topic, at.partition): extent.end for at, extent in extents.items()}
        for topic, partition, position in control.positions:
            last = ends.get((topic, partition), position)
            end = min(last, position + control.at_most)
            if end > position:
                yield topic, partition, position, end, last > end

    def _open(self) -> tuple[Job, Any]:
        if self._opened is None:
            job = load_job(self._job_path)
            self._opened = job, open_log(job.log)
        return self._opened

    def partitions(self, start: Any, end: Any) -> list[Slot]:
        job, _ = self._open()
        messages = ordered(job, read_control(self._control), end["n"], end["clock"], end["ends"])
        deeper = [(slot, raw) for (level, slot), raw in messages.items() if level > 0]
        deeper.append((0, wire.encode(wire.Batch(end["n"], end["clock"]))))
        slots = range(job.slots)
        return [Slot(self._job_path, messages.get((0, slot), b""), deeper if slot == 0 else []) for slot in slots]

    def read(self, partition: Slot) -> Iterator[pa.RecordBatch]:
        shop, rows = workshop(partition.job, load_job), list(partition.deeper)
        if partition.orders:
            orders = wire.decode_orders(partition.orders)
            for order in orders.orders:
                rows += shop.perform(orders, order, [])
        yield record_batch(rows)

    def commit(self, end: Any) -> None:
        """What is committed is in the manifests."""


class Source(DataSource):
    """What `format("headrace")` means."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> str:
        return wire.SCHEMA

    def streamReader(self, schema: Any) -> Reader:  # noqa: N802
        return Reader(self.options["job"], self.options["control"])


def level_function(job: str, level: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What runs the tasks of a level that live in one Spark partition; messages for others pass."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        shop = workshop(job, load_job)
        passed: list[tuple[int, bytes]] = []
        orders: list[wire.Orders] = []
        rows: dict[TaskId, list[wire.Rows]] = {}
        for slot, raw in rows_of(batches):
            match wire.decode(raw):
                case wire.Orders(level=found) as some if found == level:
                    orders.append(some)
                case wire.Rows(level=found) as some if found == level:
                    rows.setdefault(TaskId(some.stage, some.partition), []).append(some)
                case _:
                    passed.append((slot, raw))
        for some in orders:
            for order in some.orders:
                passed += shop.perform(some, order, rows.get(TaskId(order.stage, order.partition), []))
        yield record_batch(passed)

    return run
