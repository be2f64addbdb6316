"""A host in one process: it runs the tasks of a topology batch by batch, and can be killed at any step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from headrace.checkpoint.backfill_checkpoint import Backfill
from headrace.checkpoint.carry_over import find_migrations
from headrace.checkpoint.change_plan import align_fingerprint
from headrace.checkpoint.compaction import CompactionPolicy
from headrace.checkpoint.coordinator import CommitHooks, CommitOptions, Coordinator
from headrace.checkpoint.files import read_blob, read_delta
from headrace.checkpoint.fingerprint import compute_fingerprint, mark_old_values
from headrace.checkpoint.ledger import read_ledger
from headrace.checkpoint.outbox import decode_rows
from headrace.checkpoint.ownership import LeaseHolder
from headrace.checkpoint.receipt import Receipt, complete_receipt, decode_receipt, encode_receipt, new_attempt
from headrace.checkpoint.recovery import read_fingerprint
from headrace.checkpoint.rescale import Divider
from headrace.checkpoint.restore import READY, LmdbEngineProvider, MemoryEngineProvider, restore
from headrace.checkpoint.sink_delivery import find_sinks
from headrace.checkpoint.steps import RANGES_PLANNED, TASK_RUN, AtStep, ignore_step, step
from headrace.checkpoint.storage import Storage
from headrace.config import Config
from headrace.model.ids import TaskId, TopicPartition
from headrace.model.partitioner import partition_of
from headrace.runtime.partitioning import lay_out_state, route_records
from headrace.runtime.rows import Inputs, PartitionBatch, Row, batch_rows, read_batches
from headrace.runtime.serdes import resolved, serdes_of
from headrace.runtime.task import Task, TaskEnvironment
from headrace.state.delta import Delta
from headrace.state.engine import MemoryEngine
from headrace.state.migration import find_migration, list_of_new
from headrace.state.task_state import PREFIX, table_prefix
from headrace.topology.subtopologies import hold_counts, partition_counts, plan, route_sources, task_counts
from tests.checkpoint.programs import CONFIG, Program
from tests.clocks import ManualClock

# Everything happens often, and nothing beside the batches: a killer must meet the same steps in every run.
EAGER = CommitOptions(
    max_undelivered=0,
    background=False,
    marker_timeout_ms=0,
    keep=3,
    purge_every=2,
    purge_delay_ms=0,
    compaction=CompactionPolicy(max_deltas=3, min_bytes=100, max_age=6),
)
ME = LeaseHolder("here", "this machine", 1, "now")


class Killed(BaseException):
    """The end of a process."""


class Killer:
    """Kills when a moment comes for the nth time, for each n in `times`."""

    def __init__(self, moment: str, *times: int) -> None:
        self.moment, self.times, self.seen, self.landed = moment, times, 0, 0

    def __call__(self, moment: str) -> None:
        if moment == self.moment:
            self.seen += 1
            if self.seen in self.times:
                self.landed += 1
                raise Killed(moment)


@dataclass(kw_only=True)
class Ground:
    """What outlives a process: the log, the checkpoint, local state, if it is on disk, and time."""

    log: Any
    storage: Storage
    state: Path | None = None
    boot: str = "this one"  # of the machine
    clock: ManualClock = field(default_factory=lambda: ManualClock(1_000))


class Cluster:
    """One life of a host."""

    def __init__(
        self, ground: Ground, program: Program, *, limit: int = 2, inline: int = 1 << 20,
        options: CommitOptions = EAGER, at_step: AtStep = ignore_step, config: Config = CONFIG,
        backfill: Callable[[Cluster], Backfill] | None = None, migrates_all: bool = False,
    ) -> None:  # fmt: skip
        self.ground, self.limit, self.inline, self.at_step, self.config = ground, limit, inline, at_step, config
        self.storage, self.log = ground.storage, ground.log
        self.graph = program.build().graph()
        self.plan = plan(self.graph)
        topics = [topic for stage in self.plan.stages.values() for topic in stage.topics]
        before = align_fingerprint(read_fingerprint(self.storage), self.graph, self.plan, config)
        old = {shape.number: shape.tasks for shape in before.groups if shape.stores} if before else {}
        known = {topic: self.log.topic(topic).partitions for topic in topics}
        self.known = known = known | hold_counts(self.graph, self.plan, known, old)
        internal = partition_counts(self.graph, self.plan, known, before.partitions if before else None)
        self.tasks = task_counts(self.plan, known, internal)
        self.prefix = f"{config.application_id}-"
        self.counts = {self.prefix + topic: count for topic, count in internal.items()}
        self.homes: dict[TaskId, Any] = {}
        self.open: dict[TaskId, Task] = {}
        self.restored: list[str] = []
        self.layouts = {number: lay_out_state(self.graph, stage, config) for number, stage in self.plan.stages.items()}
        self.fingerprint = fingerprint = compute_fingerprint(
            self.graph, self.plan, config, tasks=self.tasks, partitions=internal, before=before
        )
        self.plan = route_sources(self.plan, fingerprint.routed)
        self.tasks |= {reader: self.tasks[number] for reader, number in self.plan.readers.items()}
        self.sources = {topic: stage.number for stage in self.plan.stages.values() for topic in stage.topics}
        self.coordinator = Coordinator.open(
            self.storage, self.log, config.application_id or "", fingerprint,
            topics={topic: self.log.topic(topic).id for topic in self.sources},
            migrations=find_migrations(self.graph, config),
            positions={at: extent.earliest for at, extent in self._extents().items()},
            divider=Divider(layout_of=self.layouts.__getitem__),
            backfill=None if backfill is None else backfill(self),
            migrates_all=migrates_all,
            sinks=find_sinks(self.graph, config),
            options=options,
            hooks=CommitHooks(clock=ground.clock, process=ME, has_exited=lambda *_: True, at_step=at_step),
        )  # fmt: skip
        self.checkpoint = self.coordinator.ledger.checkpoint
        self.graph = mark_old_values(self.graph, self.coordinator.ledger.fingerprint)

    # ---------------------------------------------------------------------------------------------------- batches
    def run(self, batches: int = 1_000) -> int:
        """Runs batches until nothing is left to do, or so many; says how many it ran."""
        return next((done for done in range(batches) if not self.run_batch()), batches)

    def run_batch(self) -> bool:
        ledger, number = self.coordinator.ledger, self.coordinator.number
        with step(RANGES_PLANNED, self.at_step):
            ranges = self._ranges()
        clock = self.ground.clock.now()
        due = {task for task, at in ledger.tasks.items() if at.due is not None and at.due <= clock}
        due |= {rows.target for rows in ledger.carried}
        if not ranges and not due:
            return False
        inbox = defaultdict[TaskId, list[tuple]](list)
        receipts = []
        for level, stages in enumerate(self.plan.levels):
            for task in [TaskId(stage, part) for stage in stages for part in range(self.tasks[stage])]:
                own = {at: span for at, span in ranges.items() if (self.sources[at.topic], at.partition) == task}
                if own or task in inbox or task in due:
                    base = ledger.head(task).version
                    receipt = Receipt(task=task, level=level, number=number, attempt=new_attempt(), base=base)
                    run = self._run_reader if task.subtopology in self.plan.readers else self._run_task
                    receipt = run(receipt, own, inbox, clock)
                    receipts.append(decode_receipt(encode_receipt(receipt)))
        self.coordinator.commit(number, clock, receipts[::-1])  # they come back in any order
        return True

    def _ranges(self) -> dict[TopicPartition, tuple[int, int]]:
        found = {}
        for at, extent in self._extents().items():
            start = self.coordinator.ledger.positions[at]
            end = min(extent.end, self.coordinator.ledger.stops.get(at, extent.end))
            if start < end:
                found[at] = (start, min(end, start + self.limit))
        return self._align(found)

    def _align(self, found: dict[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, tuple[int, int]]:
        """As `batch_planner` does it: records of one key in two partitions of a grown topic go by their times."""
        routed = {at for at in found if self.sources[at.topic] in self.plan.readers}
        extents = self._extents()
        times = {at: self._times(at, found[at][1], found[at][1] + 1) for at in routed if found[at][1] < extents[at].end}
        if not times:
            return found
        slowest = min(times, key=lambda at: times[at])
        for at in routed - {slowest}:
            start, end = found[at]
            earlier = [time < times[slowest][0] for time in self._times(at, start, end)]
            found[at] = (start, start + (earlier.index(False) if False in earlier else len(earlier)))
        return {at: span for at, span in found.items() if span[0] < span[1]}

    def _times(self, at: TopicPartition, start: int, end: int) -> list[int]:
        return [row[3] for chunk in self.log.read(at, start, end) for row in chunk.rows()]

    def _extents(self):
        extents = self.log.extents(list(self.sources))
        return {at: extent for at, extent in extents.items() if at.partition < self.known[at.topic]}

    def _run_reader(self, receipt: Receipt, own, inbox, clock: int) -> Receipt:
        """Sends the records to the tasks that have their keys."""
        stage, sent = self.plan.readers[receipt.task.subtopology], defaultdict[TaskId, int](int)
        for at, (start, end) in own.items():
            choose = self.layouts[stage].chooser(at.topic, self.tasks[stage], at.partition)
            for batch in read_batches(at, self.log.read(at, start, end)):
                for partition, part in route_records(batch, choose, at.partition).items():
                    target = TaskId(stage, partition)
                    sent[target] += len(part)
                    for sequence, row in enumerate(part.rows()):
                        inbox[target].append((row[7], receipt.task, sequence, receipt.attempt, row))
        receipt = replace(receipt, positions={at: end for at, (_, end) in own.items()}, sent=sent)
        delta = Delta(receipt.version, ())
        return complete_receipt(
            self.storage, receipt, delta, [], {}, self._partitions, inline=self.inline, at_step=self.at_step
        )

    def _partitions(self, topic: str) -> int | None:
        if topic in self.counts:
            return self.counts[topic]
        return self.log.topic(topic).partitions if topic in self.log.topics() else None

    def _run_task(self, receipt: Receipt, own, inbox, clock: int) -> Receipt:
        task = self._task(receipt)
        arrived = sorted(inbox.pop(receipt.task, []), key=lambda entry: entry[:3])
        consumed = defaultdict[str, int](int)
        for _, _, _, sender, _ in arrived:
            consumed[sender] += 1
        rows = [*self._log_rows(own), *(entry[4] for entry in arrived)]
        rows.sort(key=lambda row: row[7])
        with step(TASK_RUN, self.at_step):
            inputs = Inputs(received=batch_rows(rows), carried=self._carried_to(receipt.task))
            result = task.run(inputs, clock=clock, version=receipt.version)
        outputs, carried, sent = self._routed(receipt, result.outputs, inbox)
        whole = receipt.task in self.coordinator.damaged_tasks
        delta = Delta(receipt.version, tuple(task.state.engine.scan(b"", None))) if whole else result.delta
        positions = {at: end for at, (_, end) in own.items()}
        receipt = replace(
            receipt, whole=whole, positions=positions, dropped=result.dropped, drops=result.drops, due=task.next_tick,
            sent=sent, consumed=consumed,
        )  # fmt: skip
        return complete_receipt(
            self.storage, receipt, delta, outputs, carried, self._partitions, inline=self.inline, at_step=self.at_step
        )

    def _log_rows(self, own) -> list[Row]:
        return [
            (at.topic, at.partition, offset, key, value, time, headers, (time, at.topic, at.partition, offset))
            for at, (start, end) in own.items()
            for chunk in self.log.read(at, start, end)
            for offset, key, value, time, headers in chunk.rows()
        ]

    def _carried_to(self, task: TaskId) -> list[PartitionBatch]:
        blobs = [rows.blob for rows in self.coordinator.ledger.carried_to(task)]
        return [batch for blob in blobs for batch in decode_rows(read_blob(self.storage, blob, "carried rows"))]

    def _routed(self, receipt: Receipt, outputs, inbox):
        """Records for the log, rows for the next batch, and how many went to tasks of this one."""
        own, sent = [], defaultdict[TaskId, int](int)
        carried = defaultdict[TaskId, list[Row]](list)
        for sequence, output in enumerate(outputs):
            topic, partition, key, value, time, headers, order = output
            if topic not in self.counts:
                own.append(output)
                continue
            if partition is None:
                partition = partition_of(key, self.counts[topic]) or 0
            row = (topic, partition, order[-1], key, value, time, headers, order)
            for edge in self.plan.edges:
                if (self.prefix + edge.topic, edge.origin) == (topic, receipt.task.subtopology):
                    target = TaskId(edge.target, partition)
                    if edge.back:
                        carried[target].append(row)
                    else:
                        inbox[target].append((order, receipt.task, sequence, receipt.attempt, row))
                        sent[target] += 1
        return own, {target: batch_rows(rows) for target, rows in carried.items()}, sent

    # ------------------------------------------------------------------------------------------------------ state
    def _task(self, receipt: Receipt) -> Task:
        task = receipt.task
        found = restore(
            self._home(task), receipt.base,
            lambda: read_ledger(self.storage, receipt.number - 1).head(task).chain,
            partial(read_delta, self.storage, task),
        )  # fmt: skip
        self.restored.append(found.how)
        if found.how != READY or task not in self.open:
            around = TaskEnvironment(self.config, {}, self._partitions)
            nodes = self.plan.stages[task.subtopology].nodes
            clock = self.coordinator.ledger.clock or self.ground.clock.now()  # the time that the state is of
            self.open[task] = Task(task, self.graph, nodes, found.engine, around, clock=clock)
        return self.open[task]

    def _home(self, task: TaskId):
        if task not in self.homes:
            place = self.ground.state
            self.homes[task] = (
                MemoryEngineProvider()
                if place is None
                else LmdbEngineProvider(
                    place / str(task), self.checkpoint, task, map_size=1 << 20, boot=self.ground.boot
                )
            )
        return self.homes[task]

    def stores(self) -> dict[TaskId, list[tuple[bytes, bytes]]]:
        """The state of every task, in its new form where values are migrated when they are read."""
        return {task: self._as_read(rows) for task, rows in self.raw_stores().items()}

    def _as_read(self, rows: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        found = dict(rows)
        for name, spec in self.graph.stores.items():
            if spec.has_old_values:
                migration = find_migration(resolved(spec, serdes_of(self.config)))
                assert migration is not None
                for table in (name, f"{name}/past"):
                    prefix, listed = table_prefix(table), table_prefix(list_of_new(table, name))
                    part = table.removeprefix(name).removeprefix("/")
                    found |= {
                        key: migration.migrate(part, value)
                        for key, value in rows
                        if key.startswith(prefix) and listed + key[PREFIX:] not in found
                    }
                    found = {key: value for key, value in found.items() if not key.startswith(listed)}
        return list(found.items())

    def raw_stores(self) -> dict[TaskId, list[tuple[bytes, bytes]]]:
        """The state of every task as the checkpoint has it, which is what engines hold that are at its version."""
        ledger = read_ledger(self.storage, self.coordinator.number - 1)
        found = {}
        for task, head in sorted(ledger.tasks.items()):
            load = partial(read_delta, self.storage, task)
            engine = restore(MemoryEngineProvider(), head.version, lambda chain=head.chain: chain, load).engine
            assert isinstance(engine, MemoryEngine)
            found[task] = list(engine.scan(b"", None))
            live = self.open[task].state.engine if task in self.open else engine
            assert live.version != head.version or list(live.scan(b"", None)) == found[task]
        return found

    # -------------------------------------------------------------------------------------------------------- ends
    def kill(self) -> None:
        """What only was in memory is gone."""
        self.coordinator.abandon()
        self._close_homes()

    def close(self) -> None:
        self.coordinator.close()
        self._close_homes()

    def _close_homes(self) -> None:
        for home in self.homes.values():
            if isinstance(home, LmdbEngineProvider):
                home.close()


def run_to_end(ground: Ground, program: Program, killer: AtStep = ignore_step, **options: Any) -> Cluster:
    """Runs a program to its end, in as many lives as it takes; every life cuts its batches differently."""
    for limit in (2, 3, 1, 2, 4, 2, 2):
        cluster = None
        try:
            cluster = Cluster(ground, program, **{"limit": limit, "at_step": killer} | options)
            cluster.run()
            cluster.coordinator.drain()
            cluster.coordinator._cleaner._executor.drain()
        except Killed:
            if cluster is not None:
                cluster.kill()
        else:
            return cluster
    raise AssertionError("it was killed too often")


def outputs(log: Any) -> dict[tuple[str, int], list[tuple]]:
    """All that was written, by partition."""
    partitions = [TopicPartition("out", part) for part in range(log.topic("out").partitions)]
    return {at: [row for chunk in log.read(at, 0) for row in chunk.rows()] for at in partitions}


def eager(**changes: Any) -> CommitOptions:
    return replace(EAGER, **changes)
