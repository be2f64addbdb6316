"""The control file: what the driver tells the process that plans batches.

Ranges of the log of which retention has removed something before it was read: never passed over in silence.

What every task is to do in a batch.

Which records come next: the ranges of the log for a batch.

A task that reads several partitions of the log keeps them in the order of time by itself. One that gets rows from other
tasks cannot: what it was sent it must take, and if one partition ran ahead of another, the rows of the other would be
late. So partitions that meet in such a task are planned together: none of them is read past the first record that
another one has to leave for later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from headrace.checkpoint.ledger import Ledger
from headrace.errors import OffsetOutOfRangeError
from headrace.log.protocol import Chunk, Extent, Log
from headrace.model.clock import SystemClock
from headrace.model.ids import TaskId, TopicPartition
from headrace.spark import wire_format
from headrace.spark.application_state import OvertakenError
from headrace.spark.job import Job
from headrace.spark.topics import reset_of, starts_by_policy
from headrace.spark.wire_format import Range


class Control(msgspec.Struct, frozen=True):
    """Where everything stands after the last batch that was committed."""

    number: int  # of the last manifest
    positions: list[tuple[str, int, int]]  # topic, partition, next offset
    versions: list[tuple[int, int, int, str]]  # stage, partition, number, attempt
    carried: list[tuple[int, int]]  # tasks for which rows wait
    due: list[tuple[int, int, int]]  # tasks for which the wall clock has work, and when
    stream_time: int  # the latest of any task in this run
    spoilt: list[tuple[int, int]]  # tasks whose state cannot be read any more from the checkpoint
    paused: bool = False  # no further batch
    wanted: bool = False  # a batch, though there may be nothing to read
    commit_requested: bool = (
        False  # a processor called `context.commit()`: the next batch does not wait for the interval
    )
    sizes: dict[str, int] = {}  # bytes of a record, by topic, as far as there have been any


def write_control(path: Path, control: Control) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(control))
    fresh.replace(path)


def read_control(path: Path) -> Control:
    return msgspec.json.decode(path.read_bytes(), type=Control)


def control_of(ledger: Ledger, spoilt: Iterable[TaskId], stream_time: int) -> Control:
    head = ((task, at.version) for task, at in ledger.tasks.items())
    return Control(
        number=ledger.number,
        positions=[(at.topic, at.partition, offset) for at, offset in sorted(ledger.positions.items())],
        versions=[(t.subtopology, t.partition, v.number, v.attempt) for t, v in head if v is not None],
        carried=[(rows.target.subtopology, rows.target.partition) for rows in ledger.carried],
        due=[(t.subtopology, t.partition, at.due) for t, at in ledger.tasks.items() if at.due is not None],
        stream_time=stream_time,
        spoilt=[(task.subtopology, task.partition) for task in spoilt],
    )


_log = logging.getLogger(__name__)


def chunks_of(log: Log, job: Job, range_: Range) -> Iterator[Chunk]:
    """What is in a range; if it is not there any more, where to go on is planned anew, or it is an error."""
    topic, partition, start, end, more, _ = range_
    try:
        yield from log.read(TopicPartition(topic, partition), start, end, topic_id=job.topics.get(topic), has_more=more)
    except OffsetOutOfRangeError as error:
        reset = reset_of(job.graph, job.config, topic)
        if reset == "none":
            error.add_note("auto.offset.reset is none, so nothing says where to go on: `headrace reset` can.")
            raise
        raise OvertakenError(f"{error}. It goes on where auto.offset.reset ({reset}) says") from error


def with_lost(ranges: Sequence[Range], dropped: Mapping[str, int]) -> dict[str, int]:
    """What was left out by reason, with the offsets that were gone before anybody read them."""
    found = dict(dropped)
    for topic, partition, start, _, _, lost in ranges:
        if lost:
            at = TopicPartition(topic, partition)
            _log.warning("%s: retention removed %d offsets before they were read; going on at %d", at, lost, start)
            found["retention"] = found.get("retention", 0) + lost
    return found


def ordered(
    job: Job,
    control: Control,
    number: int,
    clock: int,
    ends: Iterable[tuple[str, int, int, int, bool]],
    slot_of: Callable[[TaskId], int] | None = None,
) -> dict[tuple[int, int], bytes]:
    """The orders of a batch, packed, by level and slot; without `slot_of` the slots are those that the job says."""
    slot_of = slot_of or job.slot_of
    versions = {(stage, partition): (at, attempt) for stage, partition, at, attempt in control.versions}
    positions = {(topic, partition): offset for topic, partition, offset in control.positions}
    carried, ranges = set(control.carried), ranges_of(job, ends, positions)
    shared = job.config.stream_time_scope == "application"
    due = {(stage, partition) for stage, partition, when in control.due if when <= clock}
    by_place: dict[tuple[int, int], list[wire_format.Order]] = {}
    for task in job.all_tasks():
        base = versions.get(task)
        first = base is None  # schedules begin with the application, not with the first record
        order = wire_format.Order(
            *task, base, ranges.get(task, []), task in carried, first or shared or task in due, task in control.spoilt
        )
        by_place.setdefault((job.level_of(task), slot_of(task)), []).append(order)
    seen = versions.get((job.global_stage, 0))
    return {
        (level, slot): wire_format.encode(
            wire_format.Orders(level, number, clock, orders, seen, control.stream_time if shared else -1)
        )
        for (level, slot), orders in by_place.items()
    }


def ranges_of(
    job: Job, ends: Iterable[tuple[str, int, int, int, bool]], positions: Mapping[tuple[str, int], int]
) -> dict[TaskId, list[wire_format.Range]]:
    """Which task reads what of the log."""
    ranges: dict[TaskId, list[wire_format.Range]] = {}
    for topic, partition, first, last, more in ends:
        readers = [TaskId(number, partition) for number in job.plan.stages if job.reads(number, topic)]
        if topic in job.global_topics:
            readers.append(TaskId(job.global_stage, 0))
        for task in readers:
            lost = max(0, first - positions.get((topic, partition), first))
            ranges.setdefault(task, []).append(wire_format.Range(topic, partition, first, last, more, lost))
    return ranges


PATIENCE = 100  # ms
MICRO_BATCH_INTERVAL = 100  # ms, where no commit interval is set


def shortest_interval(job: Job) -> float:
    """The seconds from the beginning of a batch to that of the next one, at least."""
    interval = job.config.commit_interval_ms
    if interval is None:
        interval = 0 if job.config.processing_trigger == "real-time" else MICRO_BATCH_INTERVAL
    return interval / 1000


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
