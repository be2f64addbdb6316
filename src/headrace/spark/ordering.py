"""What every task is to do in a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.model.ids import TaskId
from headrace.spark import wire
from headrace.spark.control import Control
from headrace.spark.job import Job


def ordered(
    job: Job, control: Control, number: int, clock: int, ends: Iterable[tuple[str, int, int, int, bool]]
) -> dict[tuple[int, int], bytes]:
    """The orders of a batch, packed, by level and slot."""
    versions = {(stage, partition): (at, attempt) for stage, partition, at, attempt in control.versions}
    positions = {(topic, partition): offset for topic, partition, offset in control.positions}
    carried, ranges = set(control.carried), ranges_of(job, ends, positions)
    shared = job.config.stream_time_scope == "application"
    due = {(stage, partition) for stage, partition, when in control.due if when <= clock}
    by_place: dict[tuple[int, int], list[wire.Order]] = {}
    for task in job.all_tasks():
        base = versions.get(task)
        first = base is None  # schedules begin with the application, not with the first record
        order = wire.Order(
            *task, base, ranges.get(task, []), task in carried, first or shared or task in due, task in control.spoilt
        )
        by_place.setdefault((job.level_of(task), job.slot_of(task)), []).append(order)
    seen = versions.get((job.global_stage, 0))
    return {
        (level, slot): wire.encode(
            wire.Orders(level, number, clock, orders, seen, control.stream_time if shared else -1)
        )
        for (level, slot), orders in by_place.items()
    }


def ranges_of(
    job: Job, ends: Iterable[tuple[str, int, int, int, bool]], positions: Mapping[tuple[str, int], int]
) -> dict[TaskId, list[wire.Range]]:
    """Which task reads what of the log."""
    ranges: dict[TaskId, list[wire.Range]] = {}
    for topic, partition, first, last, more in ends:
        readers = [TaskId(number, partition) for number in job.plan.stages if job.reads(number, topic)]
        if topic in job.global_topics:
            readers.append(TaskId(job.global_stage, 0))
        for task in readers:
            lost = max(0, first - positions.get((topic, partition), first))
            ranges.setdefault(task, []).append(wire.Range(topic, partition, first, last, more, lost))
    return ranges
