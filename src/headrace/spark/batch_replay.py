# pyright: basic
"""Runs batches of a checkpoint again in this process, without any effect; traces one record through them.

    with Replay(setup) as replay:
        replay.run(38)                         # batch 38 again; compares it with what was committed
        replay.trace("orders", 2, 4711)        # the way of one record, in the batch that processed it

The tasks, their input and their state are those of the batch: `SlotRunner` runs them with the ranges, the clock, the
carried rows and the versions that manifests N - 1 and N name. State is restored into a temporary directory. Nothing is
written: not to the log, not to sinks, not to the checkpoint, and not to the local state of the application. Only the
functions of the program run again; the functions of `foreach` and `peek` run only with `side_effects`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from headrace.checkpoint.change_plan import plan_changes
from headrace.checkpoint.files import read_blob, read_delta
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.ledger import Ledger, manifest_numbers, read_ledger, read_manifest
from headrace.checkpoint.local_copies import LocalCopies
from headrace.checkpoint.manifest import Manifest
from headrace.checkpoint.outbox import Section, decode_outbox, decode_rows, read_records
from headrace.checkpoint.receipt import Receipt, decode_receipt
from headrace.checkpoint.storage import Storage, open_storage
from headrace.errors import (
    BatchNotKeptError,
    CheckpointCorruptedError,
    OffsetOutOfRangeError,
    ProcessingError,
    SerializationError,
    StorageError,
    StreamsError,
    UnknownTopicError,
)
from headrace.log.open import open_log
from headrace.log.protocol import Closeable
from headrace.model.ids import TaskId, TopicPartition
from headrace.query.traces import Trace
from headrace.runtime.environment import Result
from headrace.runtime.failures import Place
from headrace.runtime.rows import Input, PartitionBatch
from headrace.runtime.task import Task, TaskEnvironment
from headrace.runtime.tracing import Tracer, find_partition, trace_order
from headrace.spark import wire_format
from headrace.spark.batch_planner import Control, Ends, make_control, plan_orders
from headrace.spark.job import Job, Setup
from headrace.spark.job_planner import plan_job
from headrace.spark.record_watch import RecordWatch
from headrace.spark.slot_runner import SlotRunner
from headrace.spark.topics import topics_read
from headrace.state.delta import decode_delta
from headrace.state.task_state import PREFIX, table_prefix, tables_of_store
from headrace.topology.nodes import Foreach, Peek

_INLINE = 1 << 62  # bytes: every result stays in its receipt, so that nothing is written to a file
_ROUNDS = 10  # batches that a trace follows carried rows through
_SHOWN = 20  # differences of each kind that a report has

Record = tuple[bytes | None, bytes | None, int, Any]  # key, value, timestamp, headers


class ReadOnlyStorage:
    """A checkpoint that cannot be written to."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.read, self.names, self.describe = storage.read, storage.names, storage.describe

    def create(self, name: str, data: bytes) -> bool:
        raise StorageError(f"{name} is not written: a replay has no effect on {self.describe()}")

    def delete(self, name: str) -> None:
        raise StorageError(f"{name} is not deleted: a replay has no effect on {self.describe()}")


# ------------------------------------------------------------------------------------------------------------- reports
class Difference(NamedTuple):
    """A difference between a replay and the committed batch. A value of None: only the other one has something here."""

    task: str
    what: str  # "output", "state", "dropped", "carried" or "position"
    where: str  # a topic and partition, a store, a reason
    committed: Any
    replayed: Any


@dataclass(frozen=True)
class BatchReport:
    """What a replayed batch did, and how it differs from the batch that was committed."""

    batch: int
    clock: int
    tasks: Sequence[Mapping[str, Any]]  # one row for each task that ran
    differences: Sequence[Difference]
    not_compared: Sequence[str] = ()  # sentences: what could not be compared, and why
    skipped: Sequence[str] = ()  # nodes whose functions were not called

    @property
    def is_same(self) -> bool:
        return not self.differences

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data, for JSON."""
        return {
            "batch": self.batch,
            "clock": self.clock,
            "same": self.is_same,
            "tasks": [dict(row) for row in self.tasks],
            "differences": [difference._asdict() for difference in self.differences],
            "not_compared": list(self.not_compared),
            "skipped": list(self.skipped),
        }


@dataclass
class Attempt:
    """What one run of a batch did."""

    receipts: dict[TaskId, Receipt] = field(default_factory=dict)
    results: dict[TaskId, Result] = field(default_factory=dict)
    read: Counter[TaskId] = field(default_factory=Counter)


# ----------------------------------------------------------------------------------------------------------- replaying
class Replay(Closeable):
    """Runs committed batches of an application again. It only reads: the application may be running meanwhile.

    `side_effects` calls the functions of `foreach` and `peek` too. `watch` is called before every call of an operator
    that runs functions of the user.
    """

    def __init__(
        self, setup: Setup, *, side_effects: bool = False, watch: Callable[[Place], None] | None = None
    ) -> None:
        self._setup, self.side_effects, self.watch = setup, side_effects, watch
        self.storage = ReadOnlyStorage(open_storage(setup.checkpoint))
        self._folder = TemporaryDirectory(prefix="headrace-replay-")
        self._log = open_log(setup.log, setup.config.client_settings)
        try:
            self.last = self._find_last()
            self.job = self._plan()
        except BaseException:
            self.close()
            raise
        self._copies = 0

    def close(self) -> None:
        self._log.close()
        self._folder.cleanup()

    def _find_last(self) -> int:
        numbers = manifest_numbers(self.storage)
        if not numbers:
            raise StreamsError(f"{self.storage.describe()} has no batch yet: run the application first")
        return numbers[-1]

    def _plan(self) -> Job:
        setup, log = self._setup, self._log
        topics = topics_read(setup.graph, setup.application_id, log.topics())
        planned = plan_job(setup, log, self.storage, topics)
        ledger = read_ledger(self.storage, self.last)
        if ledger.application != setup.application_id:
            raise StreamsError(
                f"{self.storage.describe()} is the checkpoint of {ledger.application!r}, not of "
                f"{setup.application_id!r}: name its application"
            )
        plan = plan_changes(ledger, planned.fingerprint)
        changed = [change for change in plan.changes if change.action not in ("kept", "new")]
        if changed or any(
            change.subject in ("sub-topology", "store") for change in plan.changes if change.action == "new"
        ):
            raise StreamsError(
                "the program has another topology than the one that wrote the checkpoint, so it cannot run its batches "
                "again: `headrace plan` shows the differences. Functions may differ, operators and stores may not"
            )
        self._fingerprint = ledger.fingerprint
        config = replace(setup.config, receipt_max_bytes=_INLINE)
        return replace(planned.job.with_checkpoint(ledger, 1), config=config)

    def _not_kept(self, batch: int) -> BatchNotKeptError:
        kept, keep = manifest_numbers(self.storage), self._setup.config.checkpoint_keep_batches
        text = (
            f"batch {batch} cannot run again: its files are gone. The checkpoint has batches {kept[0] + 1} to "
            f"{kept[-1]}; it keeps at least checkpoint.keep.batches, which is {keep}. Set it to more to keep later ones"
        )
        return BatchNotKeptError(batch, kept[-1], text)

    def check_batch(self, number: int) -> tuple[Ledger, Ledger, Manifest]:
        """Returns the checkpoint before and after a batch, and its manifest. Raises if the batch cannot run again."""
        if number > self.last:
            text = f"batch {number} has not happened yet: the last one is {self.last}"
            raise BatchNotKeptError(number, self.last, text)
        try:
            after = read_ledger(self.storage, number)
            before = read_ledger(self.storage, number - 1) if number else Ledger()
        except CheckpointCorruptedError as error:
            raise self._not_kept(number) from error
        if _shape_of(after.fingerprint) != _shape_of(self._fingerprint):
            raise StreamsError(
                f"the topology or the number of its tasks has changed since batch {number}, so it cannot run again"
            )
        manifest = read_manifest(self.storage, number)[0]
        if manifest.epoch != before.epoch:
            raise StreamsError(
                f"manifest {number} is no batch: with it an instance took over the checkpoint, or a command such as "
                "`headrace reset` changed it. No task ran"
            )
        return before, after, manifest

    # --------------------------------------------------------------------------------------------------- a batch again
    def run(self, number: int) -> BatchReport:
        """Runs a batch again, and compares what it does with what was committed."""
        before, after, manifest = self.check_batch(number)
        runner = self._open_runner(None)
        try:
            attempt = self._run_again(runner, before, after)
        except CheckpointCorruptedError as error:  # the running application has purged files meanwhile
            raise self._not_kept(number) from error
        finally:
            runner.close()
        return self._compare(attempt, before, after, manifest)

    def _open_runner(self, tracer: Tracer | None, at: TopicPartition | None = None, offset: int = -1) -> ReplayRunner:
        self._copies += 1
        copies = LocalCopies(f"{self._folder.name}/{self._copies}", self.job.checkpoint_id, locks=False)
        log = open_log(self._setup.log, self._setup.config.client_settings)  # the runner closes it
        return ReplayRunner(self, copies, log, tracer, at, offset)

    def _run_again(self, runner: ReplayRunner, before: Ledger, after: Ledger) -> Attempt:
        """Runs the tasks that ran in a batch, with the input that they had."""
        number = after.number
        ran = {task for task, head in after.tasks.items() if head.version and head.version.number == number}
        control = make_control(before, (), self._find_stream_time(runner, before, number, after.clock))
        job = replace(self.job, changelogs=dict(before.changelogs))
        runner.job = job
        orders = plan_orders(job, control, number, after.clock, self._find_ends(before, after))
        return self._run_levels(runner, orders, ran)

    def _find_stream_time(self, runner: ReplayRunner, before: Ledger, number: int, clock: int) -> int:
        """The stream time that all tasks saw, if the application shares one: the largest in their states."""
        if self.job.config.stream_time_scope != "application":
            return -1
        orders = wire_format.Orders(0, number, clock, [], None, -1)
        heads = [(task, head.version) for task, head in before.tasks.items() if head.version is not None]
        mine = set(self.job.all_tasks())
        return max([-1, *(runner.open_task(task, at, orders).here.stream_time for task, at in heads if task in mine)])

    def _find_ends(self, before: Ledger, after: Ledger) -> list[Ends]:
        """The ranges of the log that a batch read: from the positions before it to those after it."""
        moved = {at: (start, after.positions[at]) for at, start in before.positions.items() if at in after.positions}
        moved = {at: (start, end) for at, (start, end) in moved.items() if end > start}
        extents = self._log.extents(sorted({at.topic for at in moved}))
        gone = {at: extents[at].earliest - start for at, (start, _) in moved.items() if extents[at].earliest > start}
        lost = after.dropped.get("retention", 0) - before.dropped.get("retention", 0)
        if gone and sum(gone.values()) != lost:
            at, (start, end) = next((at, moved[at]) for at in gone)
            raise OffsetOutOfRangeError(
                f"batch {after.number} read {at} from offset {start} to {end}, but the log begins at "
                f"{extents[at].earliest} now: retention has removed records of the batch, and it cannot run again",
                at=at, earliest=extents[at].earliest, end=extents[at].end,
            )  # fmt: skip
        return [
            (at.topic, at.partition, start + gone.get(at, 0), end, False) for at, (start, end) in sorted(moved.items())
        ]

    def _run_levels(
        self, runner: ReplayRunner, orders: Mapping[tuple[int, int], bytes], ran: Iterable[TaskId]
    ) -> Attempt:
        """Runs tasks level by level, those of `ran` and those that get rows, and passes rows on to later levels."""
        attempt, ran = Attempt(), set(ran)
        rows: dict[TaskId, list[wire_format.Rows]] = {}
        runner.attempt = attempt
        for _, raw in sorted(orders.items()):
            decoded = wire_format.decode_orders(raw)
            for order in decoded.orders:
                task = TaskId(order.stage, order.partition)
                if (task not in ran and task not in rows) or not runner.wants(task, order, rows.get(task, [])):
                    continue
                attempt.read[task] += sum(range_.end - range_.start for range_ in order.ranges)
                for _, message in runner.run_task(decoded, order, rows.get(task, [])):
                    if message.startswith(wire_format.RECEIPT):
                        attempt.receipts[task] = decode_receipt(message[len(wire_format.RECEIPT) :])
                    elif wire_format.level_of(message) is not None:
                        some = wire_format.decode_rows(message)
                        rows.setdefault(TaskId(some.stage, some.partition), []).append(some)
        return attempt

    # ------------------------------------------------------------------------------------------------------ comparison
    def _compare(self, attempt: Attempt, before: Ledger, after: Ledger, manifest: Manifest) -> BatchReport:
        found: list[Difference] = []
        not_compared: list[str] = []
        outboxes = {outbox.origin: outbox.blob for outbox in manifest.outboxes}
        ran = {task for task, head in after.tasks.items() if head.version and head.version.number == after.number}
        rows: list[dict[str, Any]] = []
        for task in sorted({*attempt.receipts, *ran}):
            receipt = attempt.receipts.get(task)
            outputs = _read_outbox(None if receipt is None else receipt.outbox)
            differences: list[Difference] = []
            try:
                blob = outboxes.get(task)
                raw = None if blob is None else read_blob(self.storage, blob, f"the outbox of task {task}")
                differences += _compare_outputs(task, _read_outbox(raw), outputs)
            except CheckpointCorruptedError as error:
                not_compared.append(f"the outputs of task {task}: {error}")
            if receipt is not None and not receipt.whole:
                differences += self._compare_state(task, receipt, after, not_compared)
                differences += _compare_positions(task, receipt, before, after)
            found += differences
            rows.append(
                {
                    "task": str(task),
                    "read": attempt.read[task],
                    "received": 0 if receipt is None else sum(receipt.consumed.values()),
                    "sent": 0 if receipt is None else sum(receipt.sent.values()),
                    "written": sum(map(len, outputs.values())),
                    "state": 0 if receipt is None else receipt.entries,
                    "dropped": 0 if receipt is None else sum(receipt.dropped.values()),
                    "differences": len(differences),
                }
            )
        found += _compare_drops(attempt, before, after)
        found += self._compare_carried(attempt, before, manifest, not_compared)
        called = () if self.side_effects else _find_skipped(self.job)
        return BatchReport(after.number, after.clock, rows, found, not_compared, called)

    def _compare_state(
        self, task: TaskId, receipt: Receipt, after: Ledger, not_compared: list[str]
    ) -> Iterator[Difference]:
        chain = after.head(task).chain
        delta = next((delta for delta in chain if delta.number == after.number), None)
        if delta is None:
            yield Difference(str(task), "state", "", None, f"{receipt.entries} entries: the task did not run in it")
            return
        try:
            committed = dict(read_delta(self.storage, task, delta).changes)
        except CheckpointCorruptedError as error:
            not_compared.append(f"the state of task {task}: {error}")
            return
        replayed = dict(decode_delta(bytes(receipt.delta)).changes)  # pyright: ignore[reportArgumentType] - inline
        names = {table_prefix(table): table for store in self.job.graph.stores for table in tables_of_store(store)}
        different = [
            key for key in {**committed, **replayed} if committed.get(key, _ABSENT) != replayed.get(key, _ABSENT)
        ]
        for key in different[:_SHOWN]:
            store = names.get(key[:PREFIX], "(the task's own)")
            where = f"{store}: {show_bytes(key[PREFIX:])}"
            yield Difference(str(task), "state", where, show_bytes(committed.get(key)), show_bytes(replayed.get(key)))
        if len(different) > _SHOWN:
            yield Difference(str(task), "state", f"{len(different) - _SHOWN} more entries", None, None)

    def _compare_carried(
        self, attempt: Attempt, before: Ledger, manifest: Manifest, not_compared: list[str]
    ) -> Iterator[Difference]:
        new = [rows for rows in manifest.carried if rows not in before.carried]
        for rows in new:
            receipt = attempt.receipts.get(rows.origin)
            ours = b"" if receipt is None else receipt.carried.get(rows.target, b"")
            try:
                theirs = read_blob(self.storage, rows.blob, f"rows for task {rows.target}")
            except CheckpointCorruptedError as error:
                not_compared.append(f"rows from task {rows.origin} to {rows.target}: {error}")
                continue
            if theirs != ours:
                counts = [sum(map(len, decode_rows(raw))) if raw else 0 for raw in (theirs, bytes(ours))]  # pyright: ignore[reportArgumentType]
                yield Difference(str(rows.origin), "carried", f"to task {rows.target}", *(f"{n} rows" for n in counts))

    # ----------------------------------------------------------------------------------------------------------- traces
    def trace(self, topic: str, partition: int, offset: int) -> Trace:
        """Returns the way of one record: in the batch that processed it, or if that is gone, in the current state."""
        at = TopicPartition(topic, partition)
        self._check_record(at, offset)
        batch, why = self._find_batch(at, offset)
        tracer = Tracer()
        runner = self._open_runner(tracer, at, offset)
        notes: list[str] = []
        failed: str | None = None
        try:
            if batch is None:
                state = f"the current state, after batch {self.last}: {why}"
                self._trace_now(runner, at, offset, notes)
            else:
                state = f"batch {batch}, as it was: the state after batch {batch - 1} and the batch's records before it"
                self._trace_batches(runner, batch, notes)
        except CheckpointCorruptedError as error:
            raise self._not_kept(batch or self.last) from error
        except (ProcessingError, SerializationError) as error:
            is_own = any(step.error for step in tracer.steps)
            failed = str(error) if is_own else f"another record of the batch failed before it was through: {error}"
        finally:
            runner.close()
        if not tracer.steps and failed is None:
            raise StreamsError(
                f"offset {offset} of {at} has no record: compaction removed it, or it marks the end of a transaction"
            )
        if not self.side_effects:
            for step in tracer.steps:
                if step.kind in ("Peek", "Foreach"):
                    step.note = "its function is not called"
        _resolve_partitions(tracer, runner)
        return Trace(topic, partition, offset, batch, state, tuple(tracer.steps), self.job.graph, tuple(notes), failed)

    def _check_record(self, at: TopicPartition, offset: int) -> None:
        read = topics_read(self._setup.graph, self._setup.application_id, self._log.topics())
        if at.topic not in read:
            raise UnknownTopicError(
                f"{self._setup.application_id} does not read {at.topic!r} (it reads: {', '.join(sorted(read))})"
            )
        extent = self._log.extents([at.topic]).get(at)
        if extent is None:
            raise StreamsError(f"{at.topic} has no partition {at.partition}")
        if not extent.earliest <= offset < extent.end:
            raise OffsetOutOfRangeError(
                f"{at} has no record at offset {offset}: the log has {extent.earliest} to {extent.end - 1}",
                at=at, earliest=extent.earliest, end=extent.end,
            )  # fmt: skip

    def _find_batch(self, at: TopicPartition, offset: int) -> tuple[int | None, str]:
        """Returns the batch that read a record, or None and the reason why there is none."""
        numbers = manifest_numbers(self.storage)
        first = next((number for number in numbers if read_manifest(self.storage, number)[0].is_full), numbers[-1])
        ledger = read_ledger(self.storage, first)
        position = ledger.positions.get(at)
        if position is not None and position > offset:
            return None, (
                f"the batch that read the record is no longer kept (the checkpoint has batches {first + 1} to "
                f"{self.last}). checkpoint.keep.batches keeps more; what the record did then may differ"
            )
        for number in range(first + 1, self.last + 1):
            ledger.apply(*read_manifest(self.storage, number))
            before, position = position, ledger.positions.get(at)
            if before is not None and position is not None and before <= offset < position:
                return self._check_ranges(number)
            if before is None and position is not None and position > offset:
                return None, "the application began to read the partition after this record"
        return None, "no batch has read the record yet, and this is what the next one would do with it"

    def _check_ranges(self, number: int) -> tuple[int | None, str]:
        try:
            self._find_ends(*self.check_batch(number)[:2])
        except StreamsError as error:  # records are gone, or the topology has changed since then
            return None, f"batch {number} read it, but cannot run again: {error}"
        return number, ""

    def _trace_batches(self, runner: ReplayRunner, number: int, notes: list[str]) -> None:
        """Traces a record in the batch that read it, and its carried rows in the batches after that."""
        for batch in range(number, number + _ROUNDS):
            if batch > self.last:
                notes.append(f"Rows wait for batch {batch}, which has not run yet.")
                return
            before, after, _ = self.check_batch(batch)
            attempt = self._run_again(runner, before, after)
            if not runner.find_carried_marks(attempt):
                return
            runner.record = None  # the record itself is read in the first batch only
            notes.append(f"Rows of the record go on in batch {batch + 1}.")

    def _trace_now(self, runner: ReplayRunner, at: TopicPartition, offset: int, notes: list[str]) -> None:
        """Traces a record as if it came next and alone."""
        ledger = read_ledger(self.storage, self.last)
        control = make_control(ledger, (), self._find_stream_time(runner, ledger, self.last + 1, ledger.clock))
        positions = [
            (topic, partition, place) for topic, partition, place in control.positions if (topic, partition) != at
        ]
        control = _replace_control(control, positions=[*positions, (*at, offset)], carried=[], due=[])
        ends: list[Ends] = [(at.topic, at.partition, offset, offset + 1, False)]
        reading = {TaskId(stage, at.partition) for stage in self.job.plan.stages if self.job.reads(stage, at.topic)}
        if at.topic in self.job.global_topics:
            reading = {TaskId(self.job.global_stage, 0)}
        for number in range(self.last + 1, self.last + 1 + _ROUNDS):
            orders = plan_orders(self.job, control, number, ledger.clock, ends)
            attempt = self._run_levels(runner, orders, reading)
            reading = runner.keep_carried(attempt)
            if not reading:
                return
            notes.append("Rows of the record go back to an earlier sub-topology, in the batch after.")
            versions = {(stage, partition): (n, attempt_id) for stage, partition, n, attempt_id in control.versions}
            versions |= {task: tuple(receipt.version) for task, receipt in attempt.receipts.items()}
            listed = [(*task, *version) for task, version in versions.items()]
            control, ends = _replace_control(control, versions=listed, carried=[tuple(task) for task in reading]), []


def _replace_control(control: Control, **changes: Any) -> Control:
    return Control(**{name: getattr(control, name) for name in control.__struct_fields__} | changes)


class ReplayRunner(SlotRunner):
    """Runs tasks for a replay. With a tracer it marks the rows of one record, wherever they go."""

    def __init__(
        self,
        replay: Replay,
        copies: LocalCopies,
        log: Any,
        tracer: Tracer | None,
        at: TopicPartition | None,
        offset: int,
    ) -> None:
        self._tracer, self._side_effects, self._on_call = tracer, replay.side_effects, replay.watch
        super().__init__(replay.job, copies, storage=replay.storage, log=log)
        self.record = None if at is None else (at, offset)
        self.attempt = Attempt()
        self._marks: dict[str, dict[int, int]] = {}  # by attempt: the place of a sent row → the step that wrote it
        self._carried_marks: dict[TaskId, dict[int, int]] = {}  # the same, by the task that sent the rows
        self.carried: dict[TaskId, list[PartitionBatch]] | None = None  # if carried rows are kept in memory

    def make_environment(self, watch: RecordWatch | None) -> TaskEnvironment:
        environment = super().make_environment(watch)
        environment = environment._replace(side_effects=self._side_effects, tracer=self._tracer, watch=self._on_call)
        return environment if self._tracer is None else environment._replace(combines=False)

    def make_global_environment(self) -> TaskEnvironment:
        return super().make_global_environment()._replace(side_effects=self._side_effects, tracer=self._tracer)

    def read_input(self, range_: wire_format.Range) -> tuple[TopicPartition, Input]:
        at, given = super().read_input(range_)
        return at, given._replace(batches=map(self._mark_record, given.batches))

    def read_rows(self, chunk: wire_format.Rows) -> list[PartitionBatch]:
        marks = self._marks.get(chunk.attempt, {})
        return [self._mark(batch, marks) for batch in super().read_rows(chunk)]

    def read_carried(self, task_id: TaskId, number: int) -> Iterator[PartitionBatch]:
        if self.carried is not None:
            yield from self.carried.get(task_id, [])
            return
        for rows in read_ledger(self.storage, number - 1).carried_to(task_id):
            raw = read_blob(self.storage, rows.blob, f"rows that wait for task {task_id}")
            for batch in decode_rows(raw):
                yield self._mark(batch, self._carried_marks.get(rows.origin, {}))

    def wants(self, task: TaskId, order: wire_format.Order, chunks: Sequence[wire_format.Rows]) -> bool:
        """False for a task that a trace can do without: the record does not reach it, and it sends no rows on."""
        plan, stage = self.job.plan, task.subtopology
        if self._tracer is None or stage in plan.readers or (stage in plan.stages and plan.stages[stage].outputs):
            return True
        if self.record is not None:
            reads = any(TopicPartition(*range_[:2]) == self.record[0] for range_ in order.ranges)
            if reads or stage in plan.readers.values():  # a reader may have passed the record on
                return True
        is_carried = order.carried and (bool(self._carried_marks) or self.carried is not None)
        return is_carried or any(self._marks.get(chunk.attempt) for chunk in chunks)

    def on_result(self, task: Task, receipt: Receipt, result: Result) -> None:
        self.attempt.results[task.task_id] = result
        if task.tracer is None:
            return
        places = task.tracer.take_outputs()
        inner = [place for place, output in enumerate(result.outputs) if self.job.route(output[0]) is not None]
        self._marks[receipt.attempt] = {row: places[place] for row, place in enumerate(inner) if place in places}

    def find_carried_marks(self, attempt: Attempt) -> bool:
        """Remembers which carried rows are those of the record. False if there are none."""
        self._carried_marks = {}
        for task, receipt in attempt.receipts.items():
            marks = self._marks.get(receipt.attempt, {})
            rows = [batch for raw in receipt.carried.values() for batch in decode_rows(bytes(raw))]  # pyright: ignore[reportArgumentType]
            if any(place in marks for batch in rows for place in batch.offsets):
                self._carried_marks[task] = marks
        return bool(self._carried_marks)

    def keep_carried(self, attempt: Attempt) -> set[TaskId]:
        """Keeps carried rows in memory, for a batch that the checkpoint does not have. Returns the receiving tasks."""
        self.carried = {}
        for receipt in attempt.receipts.values():
            marks = self._marks.get(receipt.attempt, {})
            for target, raw in receipt.carried.items():
                rows = [self._mark(batch, marks) for batch in decode_rows(bytes(raw))]  # pyright: ignore[reportArgumentType]
                self.carried.setdefault(target, []).extend(rows)
        return set(self.carried)

    def _mark_record(self, batch: PartitionBatch) -> PartitionBatch:
        """Marks the record itself, where it is read from the log."""
        if self.record is None or batch.at != self.record[0] or self.record[1] not in batch.offsets:
            return batch
        orders = [
            trace_order(order) if offset == self.record[1] else order
            for offset, order in zip(batch.offsets, batch.orders, strict=True)
        ]
        return PartitionBatch(batch.at, batch.offsets, batch.records, orders, batch.counts)

    def _mark(self, batch: PartitionBatch, marks: Mapping[int, int]) -> PartitionBatch:
        """Marks the rows that a traced step of another task wrote."""
        if self.job.route(batch.at.topic) is None:
            return self._mark_record(batch)  # a reader has passed records of the log on
        if not any(place in marks for place in batch.offsets):
            return batch
        orders = [
            trace_order(order, marks[place]) if place in marks else tuple(order)
            for place, order in zip(batch.offsets, batch.orders, strict=True)
        ]
        return PartitionBatch(batch.at, batch.offsets, batch.records, orders, batch.counts)


# ---------------------------------------------------------------------------------------------------------- comparison
_ABSENT: Any = object()


def _read_outbox(raw: Any) -> dict[tuple[str, int | None], list[Record]]:
    """Returns the records of an outbox by topic and partition."""
    found: dict[tuple[str, int | None], list[Record]] = {}
    sections: list[Section] = [] if raw is None else decode_outbox(bytes(raw))
    for section in sections:
        for records in read_records(section):
            headers = records.headers or [()] * len(records)
            rows = zip(records.keys, records.values, records.timestamps, headers, strict=True)
            found.setdefault((section.topic, section.partition), []).extend(rows)
    return found


def _compare_outputs(
    task: TaskId, committed: Mapping[Any, list[Record]], replayed: Mapping[Any, list[Record]]
) -> Iterator[Difference]:
    for place in sorted({*committed, *replayed}, key=str):
        topic, partition = place
        theirs, ours = committed.get(place, []), replayed.get(place, [])
        where, shown = f"{topic}/{'?' if partition is None else partition}", 0
        for index in range(max(len(theirs), len(ours))):
            a = theirs[index] if index < len(theirs) else None
            b = ours[index] if index < len(ours) else None
            if a != b and shown < _SHOWN:
                shown += 1
                yield Difference(str(task), "output", where, _show_record(a), _show_record(b))


def _compare_positions(task: TaskId, receipt: Receipt, before: Ledger, after: Ledger) -> Iterator[Difference]:
    for at, position in sorted(receipt.positions.items()):
        committed = after.positions.get(at)
        if committed is not None and committed != position:
            yield Difference(str(task), "position", str(at), committed, position)


def _compare_drops(attempt: Attempt, before: Ledger, after: Ledger) -> Iterator[Difference]:
    replayed: Counter[str] = Counter()
    for receipt in attempt.receipts.values():
        replayed.update(receipt.dropped)
    reasons = sorted({*replayed, *after.dropped})
    for reason in reasons:
        committed = after.dropped.get(reason, 0) - before.dropped.get(reason, 0)
        if committed != replayed[reason]:
            yield Difference("", "dropped", reason, committed, replayed[reason])


def _show_record(record: Record | None) -> dict[str, Any] | None:
    if record is None:
        return None
    key, value, timestamp, headers = record
    shown = {"key": show_bytes(key), "value": show_bytes(value), "timestamp": timestamp}
    return {**shown, "headers": [[name, show_bytes(raw)] for name, raw in headers]} if headers else shown


def show_bytes(raw: bytes | None) -> str | None:
    r"""Bytes as text if they are text, else in hexadecimal.

    >>> show_bytes(b"ada"), show_bytes(b"\x00\x01"), show_bytes(None)
    ('ada', '0x0001', None)
    """
    if raw is None:
        return None
    with suppress(UnicodeDecodeError):
        text = raw.decode()
        if text.isprintable():
            return text
    return f"0x{raw.hex()}"


def _shape_of(fingerprint: Fingerprint | None) -> tuple[Any, ...] | None:
    """The parts of a fingerprint that must be equal, so that the program can run the tasks of a batch."""
    return fingerprint and (fingerprint.groups, fingerprint.global_stores, fingerprint.partitions)


def _find_skipped(job: Job) -> list[str]:
    return [name for name, node in job.graph.nodes.items() if isinstance(node, Peek | Foreach)]


def _resolve_partitions(tracer: Tracer, runner: SlotRunner) -> None:
    """Fills in the partitions that the hash of a key decides."""
    for step in tracer.steps:
        step.outputs = [
            output._replace(partition=find_partition(output, runner.partitions_of(output.topic), step.task.partition))
            for output in step.outputs
        ]
