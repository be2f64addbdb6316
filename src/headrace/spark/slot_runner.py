"""Runs the tasks of a slot: restores their state, reads their input, runs them, and returns rows and receipts.

    orders + rows of other tasks ──▶ SlotRunner.handle ──▶ rows for later levels, receipts, tallies

With the real-time trigger a `SlotRunner` lives in the process of the slot. With the micro-batch trigger `run_slot` is
called in a Spark worker, and forwards the orders to the slot process that has the runner (`slot_process`).

An attempt may be run again or thrown away. So nothing here changes anything outside the local state and new files of
the checkpoint; the manifest decides which attempt counts.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from headrace.checkpoint.files import read_blob, read_delta
from headrace.checkpoint.ledger import read_ledger
from headrace.checkpoint.local_copies import LocalCopies
from headrace.checkpoint.outbox import decode_rows, encode_rows
from headrace.checkpoint.receipt import Receipt, complete_receipt, encode_receipt, new_attempt
from headrace.checkpoint.restore import READY, MemoryEngineProvider, restore
from headrace.checkpoint.steps import TASK_RUN, step
from headrace.checkpoint.storage import Storage, open_storage
from headrace.errors import StreamsError
from headrace.log.open import open_log
from headrace.log.protocol import Log
from headrace.model.ids import TaskId, TopicPartition
from headrace.model.threads import SYSTEM_THREADS, Threads
from headrace.runtime.environment import Result
from headrace.runtime.failures import Place
from headrace.runtime.partitioning import lay_out_state, route_records
from headrace.runtime.rows import Input, Inputs, PartitionBatch, read_batches
from headrace.runtime.task import Task, TaskEnvironment
from headrace.spark import wire_format
from headrace.spark.application_state import TopicGrownError
from headrace.spark.batch_planner import count_lost_offsets, read_range
from headrace.spark.changelogs import fill_stores
from headrace.spark.job import Job, encode_failure, find_file, load_job
from headrace.spark.record_watch import CallTimeout, RecordWatch
from headrace.spark.routing import Router
from headrace.spark.slot_process import Handler, Message, SlotProcesses
from headrace.spark.standbys import Standbys
from headrace.spark.stats import TaskStats, count_by_topic, count_outputs
from headrace.state.delta import Delta
from headrace.state.engine import Version

_log = logging.getLogger(__name__)
PROCESSES: dict[str, SlotProcesses] = {}  # of this worker, by job
HANDOVER = 1.0  # seconds that a slot waits for the local state of its tasks, which another slot of the host closes
MANY_OBJECTS = 100_000  # new ones since the last garbage collection
GENERATION = 20  # collections of a generation before the next older one is collected, too
WARM = 3  # requests after which a worker has imported all modules; some are imported to return the first result


def run_slot(job: str, slot: int, orders: bytes, rows: Sequence[bytes]) -> list[Message]:
    """Runs orders in the process of a slot. `job` is the path of the file that `ship_job` wrote."""
    if job not in PROCESSES:
        PROCESSES[job] = SlotProcesses(job, find_file(job), lambda: make_handler(job))
    processes = PROCESSES[job]
    if processes.requests < WARM:
        gc.collect()
        gc.freeze()  # Spark's daemon collects garbage after every task, which would take 10 to 80 ms
    return processes.ask(slot, orders, rows)


def defer_garbage_collection() -> None:
    """Lets the garbage collector run within a batch only if the batch makes very many objects.

    They live until the end of the task's batch, some eight for a record. Looking at them takes a quarter of the time
    with Python's own thresholds, a fifth with 100,000, a twentieth with a million. With this one no task of
    `batch.max.records` reaches it, unless its functions leave many objects behind.
    """
    gc.set_threshold(5_000_000, GENERATION, GENERATION)


def collect_garbage() -> None:
    """Collects garbage after a batch, if there are many new objects: cycles must not wait for five millions."""
    new, young, old = gc.get_count()
    if new >= MANY_OBJECTS:
        gc.collect(2 if old >= GENERATION else 1 if young >= GENERATION else 0)


def make_handler(job: str) -> Handler:
    """Makes the handler of a slot process that runs tasks."""
    defer_garbage_collection()
    loaded = load_job(job)
    runner = SlotRunner(loaded)
    runner.timeout = limit_calls(loaded, _end_process)

    def handle_and_collect(orders: bytes, rows: Sequence[bytes]) -> list[Message]:
        collect_garbage()  # of the batch before
        return runner.handle(orders, rows)

    return handle_and_collect


def limit_calls(job: Job, give_up: Callable[[Place, str], None]) -> CallTimeout | None:
    """Starts interrupting functions of the user that take longer than `max.record.processing.ms`, if it is set."""
    limit = job.config.max_record_processing_ms
    return CallTimeout(limit / 1000, give_up) if limit else None


def check_growth(partitions: Mapping[str, int], planned: Mapping[str, int]) -> None:
    """Raises `TopicGrownError` if a topic has more partitions than were planned."""
    for topic, count in partitions.items():
        before = planned.get(topic, count)
        if count > before:
            raise TopicGrownError(f"the topic {topic!r} grew from {before} to {count} partitions: the batch runs again")


def _end_process(place: Place, reason: str) -> None:
    sys.stderr.write(f"headrace: {place}: {reason}. It could not be interrupted, so its process ends\n")
    os._exit(1)


class SlotRunner:
    """Runs the tasks of a slot. Engines, tasks and clients stay open from batch to batch.

    `copies` are the local copies of the tasks' state. Without them the tasks of all slots of a host use one copy each.
    `storage` and `log` replace those that the addresses in the job open.
    """

    def __init__(
        self,
        job: Job,
        copies: LocalCopies | None = None,
        *,
        storage: Storage | None = None,
        log: Log | None = None,
        threads: Threads = SYSTEM_THREADS,
    ) -> None:
        self.job, self.storage = job, storage or open_storage(job.checkpoint)
        self.log = log or open_log(job.log, job.config.client_settings)
        self.copies = copies or LocalCopies(job.local_state, job.checkpoint_id, locks=False)
        self.standbys, self._seconds = Standbys(self.storage, self.copies, threads), threads.seconds
        self._mine: frozenset[TaskId] = frozenset()  # the tasks of this slot
        self._tasks: dict[TaskId, Task] = {}
        self._counts: dict[str, int] = {}
        self._router = Router(job, self.log)
        self._routes: dict[tuple[int, TopicPartition], Callable[[bytes | None], int]] = {}  # of readers
        self._global_stores = GlobalStores(self)
        self._stats = TaskStats((), 0)  # of the attempt that is running
        self.watch = RecordWatch()
        self.timeout: CallTimeout | None = None  # interrupts calls that take too long
        self.places: Mapping[TaskId, int] | None = None  # slots by task; None: the job's own assignment

    def close(self) -> None:
        """Closes the processors, as an application that stops does, and the clients of the log."""
        for task_id in [*self._tasks]:
            self._close_task(task_id)
        self.copies.close()
        self.log.close()

    def take_places(
        self,
        places: Mapping[TaskId, int],
        slot: int,
        standbys: Mapping[TaskId, Collection[int]],
        here: Collection[int],
    ) -> None:
        """Learns which slot runs which task, and closes the tasks that this slot runs no longer.

        `standbys` are the slots that keep copies of a task's state, `here` the slots of this host.
        """
        self.places, before = places, self._mine
        self._mine = frozenset(task for task, at in places.items() if at == slot)
        for task_id in [task_id for task_id in self._tasks if task_id not in self._mine]:
            self._close_task(task_id)
            self.copies.open(task_id).close()
        following = {task for task, slots in standbys.items() if slot in slots}
        for task_id in before - self._mine - following:
            self.copies.release(task_id)
        self.standbys.take(self._mine)
        self.standbys.assign(following)
        end = self._seconds() + HANDOVER
        for task_id in sorted(self._mine):
            others = len(set(standbys.get(task_id, ())) & set(here) - {slot})
            self.copies.open(task_id, others=others, patience=end - self._seconds())

    def _slot_of(self, task: TaskId) -> int:
        return self.job.slot_of(task) if self.places is None else self.places[task]

    def handle(self, raw_orders: bytes, raw_rows: Iterable[bytes]) -> list[Message]:
        """Runs the tasks of a level that have something to do; returns messages with the slots that receive them."""
        orders = wire_format.decode_orders(raw_orders)
        chunks: dict[TaskId, list[wire_format.Rows]] = {}
        for raw in raw_rows:
            some = wire_format.decode_rows(raw)
            chunks.setdefault(TaskId(some.stage, some.partition), []).append(some)
        messages: list[Message] = []
        read = {range_.topic for order in orders.orders for range_ in order.ranges}
        # The request runs while tasks read and process.
        confirmed = self.log.confirm_topics({topic: id_ for topic, id_ in self.job.topics.items() if topic in read})
        try:
            for order in orders.orders:
                rows = chunks.get(TaskId(order.stage, order.partition), [])
                if rows or order.ranges or order.carried or order.due or order.whole:
                    messages += self.run_task(orders, order, rows)
            self._check_topics(confirmed)
        except StreamsError as error:
            if error.retriable:
                raise
            messages.append((0, wire_format.encode(encode_failure(error))))
        return messages

    def _check_topics(self, confirmed: Callable[[], Mapping[str, int]]) -> None:
        """Raises an error, and discards the tasks, if a topic that was read is another one, or has grown."""
        try:
            check_growth(confirmed(), self.job.source_partitions)
        except BaseException:
            for task_id in [*self._tasks]:
                self._discard_task(task_id)
            raise

    def run_task(
        self, orders: wire_format.Orders, order: wire_format.Order, chunks: Iterable[wire_format.Rows]
    ) -> Iterator[Message]:
        """Runs a task. Yields (slot, message) pairs: rows for later levels, the receipt, and the tally."""
        job, task_id = self.job, TaskId(order.stage, order.partition)
        base = None if order.base is None else Version(*order.base)
        receipt = Receipt(task=task_id, level=orders.level, number=orders.number, attempt=new_attempt(), base=base)
        self._stats = TaskStats(order.ranges, job.config.dashboard_sample_records)
        if order.stage in job.plan.readers:
            yield from self._read_and_route(orders, order, receipt)
            return
        self._global_stores.advance(orders)
        task = self.open_task(task_id, base, orders)
        consumed: dict[str, int] = {}
        carried_here = list(self.read_carried(task_id, orders.number)) if order.carried else []
        received: list[PartitionBatch] = []
        for chunk in chunks:
            some = self.read_rows(chunk)
            consumed[chunk.attempt] = consumed.get(chunk.attempt, 0) + sum(map(len, some))
            received += some
        inner = [batch for batch in (*carried_here, *received) if job.route(batch.at.topic) is not None]
        self._stats.add_received(inner)  # a reader has counted the records of the log
        task.here.stream_time = max(task.here.stream_time, orders.stream_time)
        with self._running(task_id):
            if base is None and job.changelogs:
                fill_stores(task, job, self.log)
            inputs = Inputs(dict(map(self.read_input, order.ranges)), received, carried_here)
            result = task.run(inputs, clock=orders.clock, version=receipt.version)
        self.on_result(task, receipt, result)
        sent, carried, outbox = self._router.route(result, task_id)
        yield from self._send(sent, receipt)
        receipt = replace(
            receipt,
            whole=order.whole,
            positions=result.positions,
            dropped=count_lost_offsets(order.ranges, result.dropped),
            drops=result.drops,
            due=task.next_tick,
            stream_time=task.here.stream_time,
            sent={target: sum(map(len, some)) for target, some in sent.items()},
            consumed=consumed,
        )
        receipt = complete_receipt(
            self.storage,
            receipt,
            task.state.everything() if order.whole else result.delta,
            outbox,
            carried,
            self.partitions_of,
            inline=job.config.receipt_max_bytes,
            packed=self.log.stores_chunks,
            at_step=job.at_step,
        )
        yield self._slot_of(task_id), wire_format.RECEIPT + encode_receipt(receipt)
        if result.commit_requested:
            request = wire_format.CommitRequest(task_id.subtopology, task_id.partition)
            yield self._slot_of(task_id), wire_format.encode(request)
        inner = count_by_topic(batch for some in (*sent.values(), *carried.values()) for batch in some)
        outer = [topic for topic in job.topics_written(order.stage) if job.route(topic) is None]
        self._stats.written = inner | count_outputs(outbox, outer)
        yield self._slot_of(task_id), self._stats.encode_tally(receipt, orders.clock, result.positions, result.outputs)

    def _send(self, sent: Mapping[TaskId, Sequence[PartitionBatch]], receipt: Receipt) -> Iterator[Message]:
        for target, rows in sent.items():
            stage, partition, packed = target.subtopology, target.partition, encode_rows(rows)
            message = wire_format.Rows(self.job.level_of(target), stage, partition, receipt.attempt, packed)
            yield self._slot_of(target), wire_format.encode(message)

    def _read_and_route(
        self, orders: wire_format.Orders, order: wire_format.Order, receipt: Receipt
    ) -> Iterator[Message]:
        """Runs the task of a reader: it sends the records that it reads to the tasks that have their keys."""
        job, stage, sent = self.job, self.job.plan.readers[order.stage], dict[TaskId, list[PartitionBatch]]()
        with step(TASK_RUN, job.at_step):
            for at, given in map(self.read_input, order.ranges):
                for batch in given.batches:
                    for partition, part in route_records(batch, self._chooser(stage, at), at.partition).items():
                        sent.setdefault(TaskId(stage, partition), []).append(part)
        yield from self._send(sent, receipt)
        positions = {TopicPartition(range_.topic, range_.partition): range_.end for range_ in order.ranges}
        receipt = replace(
            receipt,
            positions=positions,
            dropped=count_lost_offsets(order.ranges, {}),
            sent={target: sum(map(len, some)) for target, some in sent.items()},
        )
        receipt = complete_receipt(
            self.storage,
            receipt,
            Delta(receipt.version, ()),
            [],
            {},
            self.partitions_of,
            inline=job.config.receipt_max_bytes,
            at_step=job.at_step,
        )
        yield self._slot_of(receipt.task), wire_format.RECEIPT + encode_receipt(receipt)
        yield self._slot_of(receipt.task), self._stats.encode_tally(receipt, orders.clock, positions, [])

    def _chooser(self, stage: int, at: TopicPartition) -> Callable[[bytes | None], int]:
        """Returns the function from the key of a record to the partition of its task."""
        if (stage, at) not in self._routes:
            layout = lay_out_state(self.job.graph, self.job.plan.stages[stage], self.job.config)
            self._routes[stage, at] = layout.chooser(at.topic, self.job.tasks[stage], at.partition)
        return self._routes[stage, at]

    @contextmanager
    def _running(self, task_id: TaskId) -> Generator[None]:
        try:
            with step(TASK_RUN, self.job.at_step):
                yield
        except BaseException:
            self._discard_task(task_id)  # its memory has changes of the failed attempt
            raise
        finally:
            if self.timeout is not None:
                self.timeout.forget()

    def _close_task(self, task_id: TaskId) -> None:
        """Closes the processors and the state of a task."""
        try:
            self._tasks.pop(task_id).close()
        except StreamsError as error:
            _log.warning("task %s: %s", task_id, error)

    def _discard_task(self, task_id: TaskId) -> None:
        """Closes the processors of a task, and forgets it. Its state stays open, for the task that replaces it."""
        task = self._tasks.pop(task_id, None)
        for error in [] if task is None else task.close_processors():
            _log.warning("task %s: %s", task_id, error)

    def open_task(self, task_id: TaskId, base: Version | None, orders: wire_format.Orders) -> Task:
        """Returns the task, with its state restored to the version `base`."""
        job, task = self.job, self._tasks.get(task_id)
        if task is not None and task.state.version != base:  # it ran in an attempt that was thrown away
            self._discard_task(task_id)
        engines = self.copies.open(task_id)
        began = time.perf_counter()
        restored = restore(
            engines,
            base,
            lambda: read_ledger(self.storage, orders.number - 1).head(task_id).chain,
            lambda delta: read_delta(self.storage, task_id, delta),
        )
        if restored.how != READY:
            self._stats.restored = restored.how, restored.entries, 1000 * (time.perf_counter() - began)
        task = self._tasks.get(task_id)
        watch = None if self.watch.report is None else self.watch
        if task is None or restored.how != READY or (watch and not task.is_watched):
            self._discard_task(task_id)
            nodes = job.nodes_of(task_id.subtopology)
            environment = self.make_environment(watch)
            self._tasks[task_id] = Task(task_id, job.graph, nodes, restored.engine, environment, clock=orders.clock)
        return self._tasks[task_id]

    # What follows is overridden by `batch_replay`, which runs a batch again in the driver.
    def read_carried(self, task_id: TaskId, number: int) -> Iterator[PartitionBatch]:
        """Reads the rows that batch `number` - 1 left for a task."""
        for carried in read_ledger(self.storage, number - 1).carried_to(task_id):
            yield from decode_rows(read_blob(self.storage, carried.blob, f"rows that wait for task {task_id}"))

    def read_rows(self, chunk: wire_format.Rows) -> list[PartitionBatch]:
        """Decodes rows of another task."""
        return decode_rows(chunk.packed)

    def make_environment(self, watch: RecordWatch | None) -> TaskEnvironment:
        stores = self._global_stores.stores
        return TaskEnvironment(self.job.config, stores, self.partitions_of, combines=True, watch=watch)

    def make_global_environment(self) -> TaskEnvironment:
        return TaskEnvironment(self.job.config, {})

    def on_result(self, task: Task, receipt: Receipt, result: Result) -> None:
        """Called when a task has run."""

    def read_input(self, range_: wire_format.Range) -> tuple[TopicPartition, Input]:
        """Reads a range of the log, and counts what is read."""
        at = TopicPartition(range_.topic, range_.partition)
        chunks = self._stats.observe_chunks(at, read_range(self.log, self.job, range_))
        return at, Input(read_batches(at, chunks), range_.end, range_.more)

    def partitions_of(self, topic: str) -> int | None:
        count = self._counts.get(topic)
        if count is not None:
            return count
        name = topic.removeprefix(f"{self.job.application}-")
        if name in self.job.partitions:
            return self.job.partitions[name]
        found = self.log.topics().get(topic)
        if found is None:
            return None
        self._counts[topic] = found.partitions
        return found.partitions


class GlobalStores:
    """The global stores in this process: a copy in memory, which follows the checkpoint."""

    def __init__(self, runner: SlotRunner) -> None:
        self._runner, self._engines, self.stores = runner, MemoryEngineProvider(), dict[str, Any]()
        self._task: Task | None = None
        job = runner.job
        if job.plan.global_nodes:
            environment = runner.make_global_environment()
            task_id = TaskId(job.global_stage, 0)
            self._task = Task(task_id, job.graph, job.plan.global_nodes, self._engines.open(), environment, clock=0)
            self.stores = dict(self._task.state.stores)

    def advance(self, orders: wire_format.Orders) -> None:
        """Brings the copy to the version that all tasks of the batch see."""
        if self._task is None or orders.globals is None:
            return
        storage, task_id = self._runner.storage, self._task.task_id
        restored = restore(
            self._engines,
            Version(*orders.globals),
            lambda: read_ledger(storage, orders.number - 1).head(task_id).chain,
            lambda delta: read_delta(storage, task_id, delta),
        )
        if restored.how != READY:
            self._task.state.refresh()
