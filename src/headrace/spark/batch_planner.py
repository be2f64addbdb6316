"""Plans batches: which range of each partition a batch reads, and what each task does with it.

    Control ── Planner.plan_ends ──▶ ends of the ranges ── plan_orders ──▶ orders, by level and slot

`Control` is the state of the application after the last commit. With the real-time trigger the planner runs in the
driver. With the micro-batch trigger it runs in a process of Spark's, and the driver writes `Control` to a file for it.

A task that reads several partitions of the log aligns them by time itself. A task that also receives rows from other
tasks cannot: it must process every row it receives, and if one partition ran ahead of another, the rows of the other
would be late. So partitions that meet in such a task are planned together: none of them is read past the oldest record
that the batch leaves unread in another one. Offsets that retention removed before a task read them are counted as
dropped records and logged.
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
from headrace.spark.topics import find_reset, starts_by_policy
from headrace.spark.wire_format import Range


class Control(msgspec.Struct, frozen=True):
    """The state of the application after the last committed batch, as far as the planner needs it."""

    number: int  # of the last manifest
    positions: list[tuple[str, int, int]]  # topic, partition, next offset
    versions: list[tuple[int, int, int, str]]  # stage, partition, number, attempt
    carried: list[tuple[int, int]]  # tasks that have carried rows
    due: list[tuple[int, int, int]]  # stage, partition and time of the next wall-clock punctuation
    stream_time: int  # the largest of all tasks in this run
    damaged: list[tuple[int, int]]  # tasks whose state in the checkpoint is unreadable
    paused: bool = False  # no further batch begins
    wanted: bool = False  # a batch must run even if there is nothing to read
    commit_requested: bool = False  # by `context.commit()`: the next batch does not wait for the interval
    sizes: dict[str, int] = {}  # average bytes of a record, by topic, if the topic has been read


def write_control(path: Path, control: Control) -> None:
    """Replaces the control file atomically: the planner may be reading it."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(control))
    fresh.replace(path)


def read_control(path: Path) -> Control:
    return msgspec.json.decode(path.read_bytes(), type=Control)


def make_control(ledger: Ledger, damaged: Iterable[TaskId], stream_time: int) -> Control:
    """Returns the control of a ledger. `damaged` are the tasks whose state in the checkpoint is unreadable."""
    head = ((task, at.version) for task, at in ledger.tasks.items())
    return Control(
        number=ledger.number,
        positions=[(at.topic, at.partition, offset) for at, offset in sorted(ledger.positions.items())],
        versions=[(t.subtopology, t.partition, v.number, v.attempt) for t, v in head if v is not None],
        carried=[(rows.target.subtopology, rows.target.partition) for rows in ledger.carried],
        due=[(t.subtopology, t.partition, at.due) for t, at in ledger.tasks.items() if at.due is not None],
        stream_time=stream_time,
        damaged=[(task.subtopology, task.partition) for task in damaged],
    )


_log = logging.getLogger(__name__)


def read_range(log: Log, job: Job, range_: Range) -> Iterator[Chunk]:
    """Reads a range of the log.

    Raises `OvertakenError` if retention has removed the start: the batch is planned again, from where the reset policy
    says. With the policy "none" the log's own error is raised.
    """
    topic, partition, start, end, more, _ = range_
    try:
        yield from log.read(TopicPartition(topic, partition), start, end, topic_id=job.topics.get(topic), has_more=more)
    except OffsetOutOfRangeError as error:
        reset = find_reset(job.graph, job.config, topic)
        if reset == "none":
            error.add_note(
                "auto.offset.reset is none, so no position to continue from is known: set one with `headrace reset`."
            )
            raise
        raise OvertakenError(f"{error}. The application continues where auto.offset.reset ({reset}) says") from error


def count_lost_offsets(ranges: Sequence[Range], dropped: Mapping[str, int]) -> dict[str, int]:
    """Adds the lost offsets of the ranges to the dropped records, under the reason "retention", and logs them."""
    found = dict(dropped)
    for topic, partition, start, _, _, lost in ranges:
        if lost:
            at = TopicPartition(topic, partition)
            _log.warning("%s: retention removed %d offsets before they were read; going on at %d", at, lost, start)
            found["retention"] = found.get("retention", 0) + lost
    return found


def plan_orders(
    job: Job,
    control: Control,
    number: int,
    clock: int,
    ends: Iterable[tuple[str, int, int, int, bool]],
    slot_of: Callable[[TaskId], int] | None = None,
) -> dict[tuple[int, int], bytes]:
    """Returns the encoded orders of a batch by level and slot. `slot_of` replaces the job's own assignment of tasks."""
    slot_of = slot_of or job.slot_of
    versions = {(stage, partition): (at, attempt) for stage, partition, at, attempt in control.versions}
    positions = {(topic, partition): offset for topic, partition, offset in control.positions}
    carried, ranges = set(control.carried), find_ranges(job, ends, positions)
    shared = job.config.stream_time_scope == "application"
    due = {(stage, partition) for stage, partition, when in control.due if when <= clock}
    by_place: dict[tuple[int, int], list[wire_format.Order]] = {}
    for task in job.all_tasks():
        base = versions.get(task)
        first = base is None  # punctuations are scheduled at the start of the application, not at the first record
        order = wire_format.Order(
            *task, base, ranges.get(task, []), task in carried, first or shared or task in due, task in control.damaged
        )
        by_place.setdefault((job.level_of(task), slot_of(task)), []).append(order)
    seen = versions.get((job.global_stage, 0))
    return {
        (level, slot): wire_format.encode(
            wire_format.Orders(level, number, clock, orders, seen, control.stream_time if shared else -1)
        )
        for (level, slot), orders in by_place.items()
    }


def find_ranges(
    job: Job, ends: Iterable[tuple[str, int, int, int, bool]], positions: Mapping[tuple[str, int], int]
) -> dict[TaskId, list[wire_format.Range]]:
    """Returns the ranges of the log that each task reads. Several tasks may read the same partition."""
    ranges: dict[TaskId, list[wire_format.Range]] = {}
    for topic, partition, first, last, more in ends:
        readers = [TaskId(number, partition) for number in job.plan.stages if job.reads(number, topic)]
        if topic in job.global_topics:
            readers.append(TaskId(job.global_stage, 0))
        for task in readers:
            lost = max(0, first - positions.get((topic, partition), first))
            ranges.setdefault(task, []).append(wire_format.Range(topic, partition, first, last, more, lost))
    return ranges


PATIENCE = 100  # ms that the planner waits at most before it looks again
MICRO_BATCH_INTERVAL = 100  # ms, if `commit.interval.ms` is not set


def shortest_interval(job: Job) -> float:
    """Returns the least number of seconds between the starts of two batches."""
    interval = job.config.commit_interval_ms
    if interval is None:
        interval = 0 if job.config.processing_trigger == "real-time" else MICRO_BATCH_INTERVAL
    return interval / 1000


REFRESH = 1.0  # seconds
AT_FIRST = 20_000  # records of a partition, until their size is known
# Topic, partition, first offset, the offset after the last, and whether the log has more records.
Ends = tuple[str, int, int, int, bool]


class Planner:
    """Plans batches of at most `batch.max.records` records and `batch.max.bytes` bytes of each partition."""

    def __init__(self, job: Job, log: Log, seconds: Callable[[], float] = time.monotonic) -> None:
        self._log, self._job, self._seconds = log, job, seconds
        # Tasks that wait for records, because only some of their partitions have any, and since when.
        self._waiting: dict[TaskId, float] = {}
        self._most_records, self._most_bytes = job.config.batch_max_records, job.config.batch_max_bytes
        self._meeting, self._sent_stream_time = find_meeting_stages(job), -1
        self._topics: list[str] = []
        self._extents: dict[TopicPartition, Extent] = {}
        self._new: list[TopicPartition] = []  # the new partitions of topics that have grown
        self._refresh = 0.0  # when the earliest offsets are read again
        # As in Kafka Streams, global tables are read up to their ends at the start before any other topic.
        self._global_ends = {
            at: min(extent.end, job.stops.get(at, extent.end))
            for at, extent in log.extents(sorted(job.global_topics)).items()
        }

    def plan_ends(self, control: Control) -> list[Ends]:
        """Returns the ranges that the next batch reads; an empty list if there is nothing to read."""
        if self._job.changelogs and not control.versions:
            return []  # the first batch only fills the stores from changelogs
        extents = self._read_extents(sorted({topic for topic, _, _ in control.positions}))
        stops = self._job.stops
        last = {at: min(extent.end, stops.get(at, extent.end)) for at, extent in extents.items()}
        positions = {TopicPartition(topic, partition): offset for topic, partition, offset in control.positions}
        self._global_ends = {at: end for at, end in self._global_ends.items() if positions.get(at, end) < end}
        if self._global_ends:
            positions = {at: offset for at, offset in positions.items() if at in self._global_ends}
        overtaken = self._find_resets(positions, extents)
        positions |= overtaken
        ends = {
            at: min(last.get(at, offset), offset + self._max_records(control.sizes.get(at.topic)))
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

    def _read_extents(self, topics: list[str]) -> dict[TopicPartition, Extent]:
        """Returns the extents of topics. Their ends are current, the earliest offsets may be a second old.

        A producer that learns that a topic has grown goes on in a new partition. The ends of new partitions are read
        before the ends of old ones. So a batch that has records of the producer in a new partition also has all
        records that the producer wrote to an old partition before.
        """
        now = self._seconds()
        if topics != self._topics:
            self._new = [at for at in self._log.extents(topics) if self._is_new(at)] if self._job.grown_from else []
        new = self._log.ends(self._new) if self._new else {}
        if topics != self._topics or now >= self._refresh:
            self._topics, self._refresh = topics, now + REFRESH
            self._extents = self._log.extents(topics) if topics else {}
        else:
            ends = self._log.ends(list(self._extents))
            self._extents = {at: extent._replace(end=ends[at]) for at, extent in self._extents.items()}
        self._extents |= {at: self._extents[at]._replace(end=end) for at, end in new.items() if at in self._extents}
        return self._extents

    def _is_new(self, at: TopicPartition) -> bool:
        """True for a partition that a topic got while the application had state."""
        stages = self._job.plan.readers.items()
        return any(at.partition >= self._job.grown_from[n] for r, n in stages if self._job.reads(r, at.topic))

    def _hold_back(self, positions: Mapping[TopicPartition, int], ends: dict[TopicPartition, int]) -> None:
        """Makes a task wait for its partitions that have no records, up to `max.task.idle.ms`."""
        patience, now = self._job.config.max_task_idle_ms / 1000, self._seconds()
        tasks: dict[TaskId, list[TopicPartition]] = {}
        for at in positions if patience > 0 else ():
            for stage in self._job.plan.stages:
                if self._job.reads(stage, at.topic):
                    tasks.setdefault(TaskId(stage, at.partition), []).append(at)
        for task, places in tasks.items():
            full = [at for at in places if ends[at] > positions[at]]
            if len(full) in {0, len(places)}:
                self._waiting.pop(task, None)
            elif now - self._waiting.setdefault(task, now) < patience:
                ends |= {at: positions[at] for at in full}

    def _max_records(self, size: int | None) -> int:
        """Returns how many records of a partition a batch reads. `size` is their average bytes, None if unknown."""
        fitting = AT_FIRST if size is None else self._most_bytes // max(1, size)
        return max(1, min(self._most_records, fitting))

    def _find_resets(
        self, positions: Mapping[TopicPartition, int], extents: Mapping[TopicPartition, Extent]
    ) -> dict[TopicPartition, int]:
        """Returns new positions for partitions whose next records retention has removed, by their reset policies.

        With the policy "none" a partition keeps its position, and reading it is an error.
        """
        lost = {at: extents[at] for at, offset in positions.items() if at in extents and offset < extents[at].earliest}
        return starts_by_policy(self._log, self._job.graph, self._job.config, lost) if lost else {}

    def must_run(self, control: Control, clock: int) -> bool:
        """True if a batch must run even if there is nothing to read."""
        begins = (self._job.has_processors or self._job.changelogs) and len(control.versions) < len(
            self._job.all_tasks()
        )
        due = any(when <= clock for _, _, when in control.due)
        later = self._job.config.stream_time_scope == "application" and control.stream_time > self._sent_stream_time
        return bool(begins or due or later or control.carried or control.damaged or control.wanted)

    def mark_planned(self, control: Control) -> None:
        """Remembers the stream time that the planned batch sends to all tasks."""
        self._sent_stream_time = control.stream_time

    def wait(self, control: Control) -> None:
        """Waits until there is something to do, at most `PATIENCE`: without this wait Spark polls every 10 ms."""
        clock = SystemClock().now()
        if self._waiting:
            self.pause(PATIENCE / 5000)  # there are records to read, but a task still waits for others
        elif not self.must_run(control, clock):
            left = min([PATIENCE, *(when - clock for _, _, when in control.due)])
            positions = {TopicPartition(topic, at): offset for topic, at, offset in control.positions}
            stops = self._job.stops
            self._log.wait({at: offset for at, offset in positions.items() if offset < stops.get(at, offset + 1)}, left)

    def pause(self, seconds: float) -> None:
        """Sleeps, at most `PATIENCE`, so that the application still stops promptly."""
        if seconds > 0:
            time.sleep(min(seconds, PATIENCE / 1000))

    def _align(
        self, group: Mapping[TopicPartition, int], last: Mapping[TopicPartition, int], ends: dict[TopicPartition, int]
    ) -> None:
        """Shortens the ranges of a group of partitions to the time of the oldest record that stays unread."""
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
        return 0  # compaction has removed the record


def find_meeting_stages(job: Job) -> list[set[int]]:
    """Returns, for each stage that receives rows from other stages, the stages whose topics meet in it."""
    return [find_feeding_stages(job, number) for number, stage in job.plan.stages.items() if stage.inputs]


def find_feeding_stages(job: Job, number: int) -> set[int]:
    """Returns a stage and all stages whose rows reach it."""
    stages, found, to_do = job.plan.stages, set[int](), [number]
    while to_do:
        some = to_do.pop()
        if some not in found:
            found.add(some)
            inputs = set(stages[some].inputs)
            to_do += [writer for writer, stage in stages.items() if inputs & set(stage.outputs)]
    return found
