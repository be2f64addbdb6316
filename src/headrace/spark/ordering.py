"""What every task is to do in a batch."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.model.ids import TaskId
from headrace.spark import wire
from headrace.spark.control import Control
from headrace.spark.job import Job


def ordered(
    job: Job, control: Control, number: int, clock: int, ends: Iterable[tuple[str, int, int, int, bool]]
) -> dict[tuple[int, int], bytes]:
    """The orders of a batch, packed, by level and slot."""
    versions = {(stage, partition): (at, attempt) for stage, partition, at, attempt in control.versions}
    carried, ranges = set(control.carried), ranges_of(job, ends)
    by_place: dict[tuple[int, int], list[wire.Order]] = {}
    for task in job.all_tasks():
        order = wire.Order(*task, versions.get(task), ranges.get(task, []), task in carried)
        by_place.setdefault((job.level_of(task), job.slot_of(task)), []).append(order)
    seen = versions.get((job.global_stage, 0))
    return {
        (level, slot): wire.encode(wire.Orders(number, clock, level, orders, seen))
        for (level, slot), orders in by_place.items()
    }


def ranges_of(job: Job, ends: Iterable[tuple[str, int, int, int, bool]]) -> dict[TaskId, list[wire.Range]]:
    """Which task reads what of the log."""
    ranges: dict[TaskId, list[wire.Range]] = {}
    for topic, partition, first, last, more in ends:
        readers = [TaskId(number, partition) for number in job.plan.stages if job.reads(number, topic)]
        if topic in job.global_topics:
            readers.append(TaskId(job.global_stage, 0))
        for task in readers:
            ranges.setdefault(task, []).append(wire.Range(topic, partition, first, last, more))
    return ranges
