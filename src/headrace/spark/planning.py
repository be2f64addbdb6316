"""Which records come next: the ranges of the log for a batch.

A task that reads several partitions of the log keeps them in the order of time by itself. One that gets rows from other
tasks cannot: what it was sent it must take, and if one partition ran ahead of another, the rows of the other would be
late. So partitions that meet in such a task are planned together: none of them is read past the first record that
another one has to leave for later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from headrace.log.protocol import Extent, Log
from headrace.model.clock import SystemClock
from headrace.model.ids import TaskId, TopicPartition
from headrace.spark.control import Control
from headrace.spark.job import Job
from headrace.spark.topics import starts_by_policy

PATIENCE = 100  # ms
AT_FIRST = 20_000  # records, until it is known how large they are
# Topic, partition, first offset and the one after the last, and whether the log holds more.
Ends = tuple[str, int, int, int, bool]


class Planner:
    """Plans batches of at most so many records of a partition."""

    def __init__(self, job: Job, log: Log, seconds: Callable[[], float] = time.monotonic) -> None:
        self._log, self._job, self._seconds = log, job, seconds
        self._lacking: dict[
            TaskId, float
        ] = {}  # tasks of which some partitions have records and others have none, since
        self._most_records, self._most_bytes = job.config.batch_max_records, job.config.batch_max_bytes
        self._meeting, self._told = meeting_stages(job), -1
        # Global tables are read up to where they are at the start before anything else, as in Kafka Streams.
        self._first = {at: extent.end for at, extent in log.extents(sorted(job.global_topics)).items()}

    def ends(self, control: Control) -> list[Ends]:
        """What there is to read."""
        if self._job.changelogs and not control.versions:
            return []  # a batch that fills stores does nothing else: what it puts is what others had seen before
        topics = sorted({topic for topic, _, _ in control.positions})
        extents = self._log.extents(topics) if topics else {}
        last = {at: extent.end for at, extent in extents.items()}
        positions = {TopicPartition(topic, partition): offset for topic, partition, offset in control.positions}
        self._first = {at: end for at, end in self._first.items() if positions.get(at, end) < end}
        if self._first:
            positions = {at: offset for at, offset in positions.items() if at in self._first}
        overtaken = self._overtaken(positions, extents)
        positions |= overtaken
        ends = {
            at: min(last.get(at, offset), offset + self._at_most(control.sizes.get(at.topic)))
            for at, offset in positions.items()
        }
        self._hold_back(positions, ends)
        for stages in self._meeting:
            group = {at: end for at, end in ends.items() if any(self._job.reads(stage, at.topic) for stage in stages)}
            self._align(group, last, ends)
        return [
            (at.topic, at.partition, offset, max(ends[at], offset), last[at] > ends[at])
            for at, offset in positions.items()
            if ends[at] > offset or at in overtaken
        ]

    def _hold_back(self, positions: Mapping[TopicPartition, int], ends: dict[TopicPartition, int]) -> None:
        """Lets a task that reads several partitions wait for those without records: `max.task.idle.ms`, at most."""
        patience, now = self._job.config.max_task_idle_ms / 1000, self._seconds()
        tasks: dict[TaskId, list[TopicPartition]] = {}
        for at in positions if patience > 0 else ():
            for stage in self._job.plan.stages:
                if self._job.reads(stage, at.topic):
                    tasks.setdefault(TaskId(stage, at.partition), []).append(at)
        for task, places in tasks.items():
            full = [at for at in places if ends[at] > positions[at]]
            if len(full) in {0, len(places)}:
                self._lacking.pop(task, None)
            elif now - self._lacking.setdefault(task, now) < patience:
                ends |= {at: positions[at] for at in full}

    def _at_most(self, size: int | None) -> int:
        """How many records of a partition a batch reads, if they have that many bytes; None: nobody knows yet."""
        fitting = AT_FIRST if size is None else self._most_bytes // max(1, size)
        return max(1, min(self._most_records, fitting))

    def _overtaken(
        self, positions: Mapping[TopicPartition, int], extents: Mapping[TopicPartition, Extent]
    ) -> dict[TopicPartition, int]:
        """Where to go on with partitions whose next records retention has removed, if a reset policy says where.

        Otherwise they are left as they are, so that to read them is an error.
        """
        lost = {at: extents[at] for at, offset in positions.items() if at in extents and offset < extents[at].earliest}
        return starts_by_policy(self._log, self._job.graph, self._job.config, lost) if lost else {}

    def must_run(self, control: Control, clock: int) -> bool:
        """Whether there is something to do besides reading."""
        begins = (self._job.has_processors or self._job.changelogs) and len(control.versions) < len(
            self._job.all_tasks()
        )
        due = any(when <= clock for _, _, when in control.due)
        later = self._job.config.stream_time_scope == "application" and control.stream_time > self._told
        return bool(begins or due or later or control.carried or control.spoilt or control.wanted)

    def planned(self, control: Control) -> None:
        """All tasks are told what the control file says."""
        self._told = control.stream_time

    def wait(self, control: Control) -> None:
        """Until there is something to do, or for a moment: Spark would ask every 10 ms."""
        clock = SystemClock().now()
        if self._lacking:
            self.pause(PATIENCE / 5000)  # there is something to read, but not yet
        elif not self.must_run(control, clock):
            left = min([PATIENCE, *(when - clock for _, _, when in control.due)])
            self._log.wait({TopicPartition(topic, at): offset for topic, at, offset in control.positions}, left)

    def pause(self, seconds: float) -> None:
        """Waits, but never so long that whoever stops the application would notice."""
        if seconds > 0:
            time.sleep(min(seconds, PATIENCE / 1000))

    def _align(
        self, group: Mapping[TopicPartition, int], last: Mapping[TopicPartition, int], ends: dict[TopicPartition, int]
    ) -> None:
        """Lets nobody in a group read past the oldest record that is left for later."""
        left = {at: end for at, end in group.items() if last.get(at, end) > end}
        times = {at: self._time_at(at, end) for at, end in left.items()}
        if not times:
            return
        slowest = min(times, key=lambda at: times[at])
        others = {at: times[slowest] for at in group if at != slowest}
        for at, offset in self._log.offsets_for_times(others).items():
            if offset is not None:
                ends[at] = min(ends[at], offset)

    def _time_at(self, at: TopicPartition, offset: int) -> int:
        for chunk in self._log.read(at, offset, offset + 1):
            for _, _, _, timestamp, _ in chunk.rows():
                return timestamp
        return 0  # compaction has removed it


def meeting_stages(job: Job) -> list[set[int]]:
    """Stages whose topics meet in one that gets rows from other stages, for each such one."""
    return [feeding(job, number) for number, stage in job.plan.stages.items() if stage.inputs]


def feeding(job: Job, number: int) -> set[int]:
    """A stage and all that lead to it."""
    stages, found, to_do = job.plan.stages, set[int](), [number]
    while to_do:
        some = to_do.pop()
        if some not in found:
            found.add(some)
            inputs = set(stages[some].inputs)
            to_do += [writer for writer, stage in stages.items() if inputs & set(stage.outputs)]
    return found
