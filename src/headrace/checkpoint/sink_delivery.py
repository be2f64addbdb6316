"""Delivery to sinks: the records that a committed batch has for other systems than the log.

    manifest N ─▶ SinkDeliveries ─┬▶ SinkDelivery "orders" ─▶ PartWriter ─▶ PostgreSQL      a thread for each sink
                                  └▶ SinkDelivery "lake"   ─▶ slots      ─▶ Delta Lake

The outbox of a task has the records of a sink under a reserved topic (`model.sink.sink_topic`). A batch goes to a sink
after the manifest, in the order of the batches: 1. every part is written, by this process or, if the batch is large, by
the slots; 2. the sink commits; 3. the file `sinks/NAME/N` in the checkpoint records it. A crash repeats the steps of
batch N, with the same records. Manifests and outboxes are kept until every sink has recorded them.

A delivery that fails is retried, with growing pauses, and does not delay the other sinks. When a sink lacks `backlog`
batches, the application waits before it commits another one.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, unquote

from headrace.checkpoint.files import BlobRef, format_number, read_blob
from headrace.checkpoint.ledger import Ledger
from headrace.checkpoint.manifest import Outbox
from headrace.checkpoint.outbox import decode_outbox, read_orders, read_records
from headrace.checkpoint.recovery import find_undelivered
from headrace.checkpoint.steps import SINK_COMMIT, SINK_PROGRESS, SINK_WRITE, AtStep, ignore_step, step
from headrace.checkpoint.storage import Storage
from headrace.config import Config
from headrace.errors import (
    CheckpointCorruptedError,
    CheckpointMismatchError,
    RecordsRejectedError,
    StreamsError,
    add_summary,
    summarize,
)
from headrace.log.protocol import Item, Records
from headrace.model.ids import TaskId, TopicPartition
from headrace.model.record import Record
from headrace.model.sink import Sink, SinkBatch, SinkContext, SinkPart, SinkShare, SinkWriter, sink_topic
from headrace.model.threads import SYSTEM_THREADS, SerialExecutor, Threads
from headrace.runtime.failures import Failure, Handler, make_handler_error
from headrace.runtime.serdes import handlers_of, serdes_of
from headrace.serde.protocol import Serde
from headrace.topology import nodes
from headrace.topology.graph import Graph

FOLDER = "sinks/"
RECORD_EVERY = 16  # batches between two progress files of a sink that gets no records
FIRST_BACKOFF = 0.1  # seconds
_UNBOUNDED = sys.maxsize
_GRACE = 8.0  # seconds for a call of a sink to return, when the application is closed
_log = logging.getLogger(__name__)

# Writes parts of batch N of a sink in several processes: (sink, N, parts, share_out). Calls `share_out` with the number
# of processes. Returns the answer of each process, or None if this process has to write the parts.
WriteInSlots = Callable[[str, int, Sequence[str], "ShareOut"], "Sequence[Written] | None"]
ShareOut = Callable[[int], Any]


class Written(NamedTuple):
    """What a process has written: the result of `SinkWriter.write`, and the numbers of written and rejected records."""

    result: Any
    records: int
    rejected: int = 0


class SinkReport(NamedTuple):
    """The state of a sink, for status, dashboard and metrics."""

    name: str
    guarantee: str
    delivered: int  # the last batch that the target has
    waiting: int = 0  # batches
    records: int = 0  # that the target has taken since the application was started
    rejected: int = 0  # records that the target did not take
    error: str | None = None  # why the last attempt failed; None while all is well
    failures: int = 0  # attempts that failed since the application was started

    @property
    def is_away(self) -> bool:
        return self.error is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTarget:
    """A sink of a topology, with the serdes of its records, and with what happens to a rejected record."""

    name: str
    sink: Sink
    node: str
    key: Serde
    value: Serde
    on_rejected: Handler = "fail"
    dead_letter_topic: str | None = None
    log_record_values: bool = False  # messages of errors, which may quote a record, go to the log


def find_sinks(graph: Graph, config: Config) -> dict[str, SinkTarget]:
    """Returns the sinks of a topology for other systems than the log, by name."""
    serdes, handlers = serdes_of(config), handlers_of(config, for_globals=False)
    found: dict[str, SinkTarget] = {}
    for node in graph.nodes.values():
        if isinstance(node, nodes.Sink) and node.target is not None:
            name = str(node.topic).removeprefix(sink_topic(""))
            found[name] = SinkTarget(
                name=name,
                sink=node.target,
                node=node.name,
                key=serdes.key(node.key, sink_topic(name)),
                value=serdes.value(node.value, sink_topic(name)),
                on_rejected=node.on_rejected or handlers.production,
                dead_letter_topic=handlers.dead_letter_topic,
                log_record_values=handlers.log_record_values,
            )
    return found


# ------------------------------------------------------------------------------------------------------ what is written
def read_sink_batch(
    target: SinkTarget,
    number: int,
    outboxes: Iterable[Outbox],
    read: Callable[[BlobRef, str], bytes],
    parts: Collection[str] | None = None,
    share: SinkShare | None = None,
) -> SinkBatch:
    """Reads the records of a batch for a sink, or only some parts of it: those of a share."""
    topic, found = sink_topic(target.name), list[SinkPart]()
    for origin, blob in outboxes:
        if parts is None or str(origin) in parts:
            raw = read(blob, f"what task {origin} wrote in batch {number}")
            for section in decode_outbox(raw, blob.name):
                if section.topic == topic:
                    records = [record for some in read_records(section) for record in _decode(target, some)]
                    found.append(SinkPart(str(origin), origin.partition, records, read_orders(section)))
    return SinkBatch(number, tuple(found), share)


def _decode(target: SinkTarget, records: Records) -> Iterable[Record]:
    decode_key, decode_value = target.key.decode, target.value.decode
    keys, values = records.keys, records.values
    if not target.sink.takes_bytes:
        keys = [None if raw is None else decode_key(raw) for raw in keys]
        values = [None if raw is None else decode_value(raw) for raw in values]
    headers = records.headers or [()] * len(records)
    return map(Record, keys, values, records.timestamps, headers)


class DeadLetterLog(Protocol):
    """The methods of `log.protocol.Log` that dead letters need."""

    def topics(self) -> Mapping[str, Any]: ...
    def create_topic(self, name: str) -> Any: ...
    def append(self, items: Sequence[Item]) -> list[int]: ...


class PartWriter:
    """Writes to one sink in this process. The writer stays open from batch to batch; after an error there is a new one.

    Records that the target rejects are left out, or stop the application, as the policy says. A dead letter is written
    before the batch: after a crash it may be written again.
    """

    def __init__(self, target: SinkTarget, context: SinkContext, log: DeadLetterLog) -> None:
        self._target, self._context, self._log = target, context, log
        self._writer: SinkWriter | None = None

    def share_out(self, number: int, parts: Sequence[str], shares: int) -> Any:
        return self._call(lambda writer: writer.share_out(number, parts, shares))

    def write(self, batch: SinkBatch) -> Written:
        rejected = 0
        while True:
            try:
                return Written(self._call(lambda writer, some=batch: writer.write(some)), len(batch), rejected)
            except RecordsRejectedError as error:
                if not error.records:
                    raise
                self._handle(batch, error)
                rejected += len(error.records)
                batch = batch.without_records(record for record, _ in error.records)

    def commit(self, number: int, written: Sequence[Any]) -> None:
        self._call(lambda writer: writer.commit(number, written))

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except Exception as error:  # noqa: BLE001 - it is of no use any more
                _log.debug("the sink %s was not closed: %s", self._target.name, error)

    def _call(self, call: Callable[[SinkWriter], Any]) -> Any:
        try:
            if self._writer is None:
                self._writer = self._target.sink.open(self._context)
            try:
                return call(self._writer)
            except Exception as error:
                add_summary(error)  # it may quote a record, unlike an error of `open`
                raise
        except BaseException:
            self.close()
            raise

    def _handle(self, batch: SinkBatch, error: RecordsRejectedError) -> None:
        """Decides about rejected records; raises an error if the application is to stop."""
        count = f"{len(error.records)} of {len(batch)} records"
        head = f"the sink {self._target.name!r} rejects {count} of batch {batch.number}"
        error.summary = f"{head}: {error.summary}"
        tasks = {id(record): part.name for part in batch.parts for record in part.records}
        letters: list[Record] = []
        for record, reason in error.records:
            answer = self._decide(record, TaskId.parse(tasks[id(record)]), error)
            if answer == "dead_letter":
                letters.append(self._dead_letter(batch.number, record, reason))
            elif answer != "continue":
                error.add_note(
                    f"Batch {batch.number} is committed. The sink {self._target.name!r} gets it when the application "
                    "starts again. Change the target, or give the sink on_rejected='continue' or 'dead_letter'."
                )
                raise error
        _log.warning("%s", f"{head}: {error}" if self._target.log_record_values else error.summary)
        _log.debug("%s", error)
        if letters:
            topic = self._target.dead_letter_topic or ""
            if topic not in self._log.topics():
                self._log.create_topic(topic)
            self._log.append([(TopicPartition(topic, 0), _encode(self._target, letters))])

    def _decide(self, record: Record, task: TaskId, error: RecordsRejectedError) -> str:
        handler = self._target.on_rejected
        if not isinstance(handler, str):
            try:
                return handler(Failure(self._target.node, task, None, None, None), record, error)
            except Exception as broken:
                raise make_handler_error(self._target.node, broken) from broken
        if handler == "dead_letter" and self._target.dead_letter_topic is None:
            raise StreamsError(
                f"the sink {self._target.name!r} has rejected a record, and there is no topic for dead letters: set "
                "errors.dead.letter.queue.topic.name"
            ) from error
        return handler

    def _dead_letter(self, number: int, record: Record, reason: str) -> Record:
        why = (
            ("__streams.errors.exception", RecordsRejectedError.__qualname__.encode()),
            ("__streams.errors.message", reason.encode()),
            ("__headrace.sink", self._target.name.encode()),
            ("__headrace.batch", str(number).encode()),
        )
        return record.with_headers((*record.headers, *why))


def _encode(target: SinkTarget, records: Sequence[Record]) -> Records:
    def encode(serde: Serde, value: Any) -> bytes | None:
        return value if value is None or target.sink.takes_bytes else serde.encode(value)

    return Records(
        [encode(target.key, record.key) for record in records],
        [encode(target.value, record.value) for record in records],
        [record.timestamp for record in records],
        [record.headers for record in records],
    )


# ------------------------------------------------------------------------------------------------------------- progress
def progress_name(sink: str, number: int) -> str:
    """
    >>> progress_name("orders/eu", 12)
    'sinks/orders%2Feu/000000000012'
    """
    return f"{FOLDER}{quote(sink, safe='')}/{format_number(number)}"


def read_progress(storage: Storage) -> dict[str, int]:
    """Returns the last batch that each sink has, as the checkpoint has recorded it."""
    found: dict[str, int] = {}
    for name in storage.names(FOLDER):
        folder, _, number = name.removeprefix(FOLDER).rpartition("/")
        if number.isdigit():
            sink = unquote(folder)
            found[sink] = max(found.get(sink, -1), int(number))
    return found


# ------------------------------------------------------------------------------------------------------------- delivery
@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """How batches are delivered to sinks."""

    background: bool = True  # in threads
    backlog: int = 100  # batches that a sink may lack before the application waits
    max_backoff_ms: int = 10_000
    share_bytes: int = 0  # bytes of outboxes from which on slots write a batch
    write_in_slots: WriteInSlots | None = None
    at_step: AtStep = ignore_step
    threads: Threads = SYSTEM_THREADS
    spark: Callable[[], Any] = lambda: None


class SinkDelivery:
    """Delivers batches to one sink, in order.

    `last` is the last batch that the sink has, `recorded` the last one that the checkpoint has recorded.
    """

    def __init__(
        self, target: SinkTarget, writer: PartWriter, storage: Storage, last: int, options: SinkOptions
    ) -> None:
        self._target, self._writer, self._storage, self._options = target, writer, storage, options
        self.last = self.recorded = last
        self._report = SinkReport(target.name, target.sink.guarantee, last)
        self._submitted = last
        self._stopping = False
        self._changed = options.threads.condition()
        capacity = _UNBOUNDED if options.background else 0
        self._executor = SerialExecutor(f"headrace sink {target.name}", capacity, options.threads)

    @property
    def report(self) -> SinkReport:
        return self._report._replace(delivered=self.last, waiting=self.waiting)

    @property
    def waiting(self) -> int:
        """How many batches the sink lacks."""
        return self._submitted - self.last

    def submit(self, number: int, outboxes: Sequence[Outbox]) -> None:
        """Queues a batch. Never blocks; without a thread, the batch is delivered at once."""
        self._submitted = number
        self._executor.submit(lambda: self._deliver(number, outboxes))

    def check(self) -> None:
        self._executor.check()

    def await_room(self, timeout: float) -> bool:
        """Waits until the sink has fewer than `backlog` batches to take."""
        with self._changed:
            return bool(self._changed.wait_for(lambda: self.waiting < self._options.backlog, timeout))

    def drain(self, timeout: float) -> bool:
        """Waits until the sink has everything; does not wait for a target that is away."""
        with self._changed:
            self._changed.wait_for(lambda: not self.waiting or self._report.is_away, timeout)
        self.check()
        return not self.waiting

    def stop(self, timeout: float | None) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._executor.stop(_GRACE if timeout is None else timeout)
        self._writer.close()

    def _deliver(self, number: int, outboxes: Sequence[Outbox]) -> None:
        backoff = FIRST_BACKOFF
        while not self._stopping:
            try:
                self._attempt(number, outboxes)
            except Exception as error:
                said = _describe(error, with_values=True)
                self._tell(error=said, failures=self._report.failures + 1)
                if not _is_retriable(error):
                    raise
                _log.warning(
                    "the sink %s does not take batch %d, and is asked again: %s",
                    self._target.name,
                    number,
                    _describe(error, with_values=self._target.log_record_values),
                )
                _log.debug("%s", said)
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping, backoff)
                backoff = min(2 * backoff, self._options.max_backoff_ms / 1000)
            else:
                return

    def _attempt(self, number: int, outboxes: Sequence[Outbox]) -> None:
        written = self._write(number, outboxes)
        if written:
            with step(SINK_COMMIT, self._options.at_step):
                self._writer.commit(number, [some.result for some in written])
        if written or number - self.recorded >= RECORD_EVERY:
            with step(SINK_PROGRESS, self._options.at_step):
                record_progress(self._storage, self._target.name, number, self.recorded)
            self.recorded = number
        self._tell(
            number,
            records=self._report.records + sum(some.records for some in written),
            rejected=self._report.rejected + sum(some.rejected for some in written),
            error=None,
        )

    def _write(self, number: int, outboxes: Sequence[Outbox]) -> Sequence[Written]:
        """Writes the parts of a batch. Returns nothing if it has no records for the sink."""
        options, size = self._options, sum(blob.size for _, blob in outboxes)
        if size and size >= options.share_bytes and options.write_in_slots:
            parts = [str(origin) for origin, _ in outboxes]
            share_out = partial(self._writer.share_out, number, parts)
            written = options.write_in_slots(self._target.name, number, parts, share_out)
            if written is not None:
                return [some for some in written if some.records or some.rejected]
        batch = read_sink_batch(self._target, number, outboxes, partial(read_blob, self._storage))
        if not batch.parts:
            return []
        with step(SINK_WRITE, options.at_step):
            return [self._writer.write(batch)]

    def _tell(self, last: int | None = None, **changes: Any) -> None:
        with self._changed:
            self.last = self.last if last is None else last
            self._report = self._report._replace(**changes)
            self._changed.notify_all()


def _describe(error: Exception, *, with_values: bool) -> str:
    """Returns the kind and the first line of an error: some clients add pages of debugging text."""
    kind, said = type(error).__name__, summarize(error, with_values=with_values).strip().partition("\n")[0]
    return said if said.startswith(kind) else f"{kind}: {said}"


def _is_retriable(error: Exception) -> bool:
    return isinstance(error, OSError) or (isinstance(error, StreamsError) and error.retriable)


def record_progress(storage: Storage, sink: str, number: int, before: int | None) -> None:
    """Records that a sink has batch `number`."""
    storage.create(progress_name(sink, number), b"")
    if before is not None and before != number:
        storage.delete(progress_name(sink, before))


class SinkDeliveries:
    """Delivers the batches of an application to all of its sinks."""

    def __init__(self, storage: Storage, targets: Mapping[str, SinkTarget], options: SinkOptions) -> None:
        self._storage, self._targets, self._options = storage, targets, options
        self._all: list[SinkDelivery] = []
        self._is_closing = False

    def start(self, ledger: Ledger, log: DeadLetterLog) -> None:
        """Continues every sink after the last batch that it has. Called after the takeover of a checkpoint."""
        progress, undelivered = self._find_undelivered(ledger)
        self._forget_removed(progress, undelivered)
        for target in self._targets.values():
            # No batch before a new sink has records for it. The file of a known sink is created again, which makes its
            # name durable: manifests that the sink has are deleted.
            last = progress.get(target.name, ledger.number)
            record_progress(self._storage, target.name, last, None)
            context = SinkContext(
                application=ledger.application,
                sink=target.name,
                checkpoint=ledger.checkpoint,
                at_step=self._options.at_step,
                storage=self._storage,
                spark=self._options.spark() if target.sink.needs_spark else None,
            )
            delivery = SinkDelivery(target, PartWriter(target, context, log), self._storage, last, self._options)
            self._all.append(delivery)
        for delivery in self._all:
            for number, outboxes in undelivered.items():
                if number > delivery.last:
                    delivery.submit(number, outboxes)

    def _find_undelivered(self, ledger: Ledger) -> tuple[dict[str, int], dict[int, tuple[Outbox, ...]]]:
        """Returns the progress of the sinks, and the batches that some sink lacks.

        A previous owner that still runs may record progress and purge manifests meanwhile.
        """
        while True:
            progress = read_progress(self._storage)
            try:
                first = min(progress.values(), default=ledger.number)
                return progress, find_undelivered(self._storage, ledger, first)
            except CheckpointCorruptedError:
                if read_progress(self._storage) == progress:
                    raise

    def _forget_removed(self, progress: dict[str, int], undelivered: Mapping[int, Sequence[Outbox]]) -> None:
        """Drops the progress of sinks that the topology has no longer; raises an error if they lack records."""
        for name in progress.keys() - self._targets.keys():
            for number, outboxes in undelivered.items():
                if number > progress[name] and self._has_records(name, number, outboxes):
                    raise CheckpointMismatchError(
                        f"the topology has no sink {name!r} any more, but batch {number} has records for it that were "
                        "not delivered. Start it with the sink until that has everything, or drop the records: delete "
                        f"{progress_name(name, progress[name])} in {self._storage.describe()}"
                    )
            self._storage.delete(progress_name(name, progress.pop(name)))

    def _has_records(self, name: str, number: int, outboxes: Sequence[Outbox]) -> bool:
        read = partial(read_blob, self._storage)
        raws = ((blob, read(blob, f"what task {origin} wrote in batch {number}")) for origin, blob in outboxes)
        return any(section.topic == sink_topic(name) for blob, raw in raws for section in decode_outbox(raw, blob.name))

    def submit(self, number: int, outboxes: Sequence[Outbox]) -> None:
        for delivery in self._all:
            delivery.submit(number, outboxes)

    def await_room(self) -> None:
        """Waits while a sink lacks too many batches: back-pressure for a target that is away or slow."""
        for delivery in self._all:
            while not self._is_closing and not delivery.await_room(0.1):
                delivery.check()

    def stop_waiting(self) -> None:
        """Lets a commit that waits for a sink go on: the application is closed, and the next one delivers the rest."""
        self._is_closing = True

    def check(self) -> None:
        """Raises the error that has stopped a sink."""
        for delivery in self._all:
            delivery.check()

    def has(self, number: int) -> bool:
        """True if every sink has the batches up to `number`."""
        return all(delivery.last >= number for delivery in self._all)

    def recorded(self, default: int) -> int:
        """Returns the last batch that is recorded for every sink; `default` if there are no sinks."""
        return min((delivery.recorded for delivery in self._all), default=default)

    def reports(self) -> tuple[SinkReport, ...]:
        return tuple(delivery.report for delivery in self._all)

    def drain(self, timeout: float | None) -> bool:
        """Waits until the sinks have everything, but not for targets that are away."""
        end = None if timeout is None else self._options.threads.seconds() + timeout
        found = True
        for delivery in self._all:
            left = 1e6 if end is None else max(0.0, end - self._options.threads.seconds())
            found &= delivery.drain(left)
        return found

    def stop(self, timeout: float | None) -> None:
        self._is_closing = True
        for delivery in self._all:
            delivery.stop(timeout)
