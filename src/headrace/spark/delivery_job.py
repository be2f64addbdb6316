"""Delivers large batches in shares, by several processes at once: the driver alone would delay later batches.

    SharedDelivery (driver) ── ShareOrder ──▶ ShareWriter, one per share ── ShareDone ──▶ SharedDelivery

With the real-time trigger, slots deliver the shares. With the micro-batch trigger a Spark job does (`deliver_by_job`):
each share has a slot process of its own (`slot_process`), so that its producer stays connected between batches and
delivery does not compete with tasks for a process. A writer reads its records from the checkpoint; only orders pass
through the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.checkpoint.delivery import read_share
from headrace.checkpoint.files import read_blob
from headrace.checkpoint.ledger import read_manifest
from headrace.checkpoint.sink_delivery import (
    PartWriter,
    ShareOut,
    SinkTarget,
    Written,
    find_sinks,
    read_sink_batch,
)
from headrace.checkpoint.steps import SHARE, SINK_WRITE, step
from headrace.checkpoint.storage import Storage, open_storage
from headrace.errors import StreamsError, summarize
from headrace.log.open import open_log
from headrace.log.protocol import Item, Log, Share, SupportsShares
from headrace.model.sink import SinkContext, SinkShare
from headrace.spark import wire_format
from headrace.spark.application_state import QueryStoppedError
from headrace.spark.job import Job, decode_failure, encode_failure, find_file, load_job
from headrace.spark.slot_messages import DeliverShare, ShareDelivered
from headrace.spark.slot_process import Handler, Message, SlotProcesses
from headrace.spark.wire_format import RecordBatch, make_record_batch

PROCESSES: dict[str, SlotProcesses] = {}  # of this worker, by job


DeliveryOrder = wire_format.ShareOrder | wire_format.SinkOrder
# Delivers the shares of batch N, one for each order, and returns the answers.
DeliverShares = Callable[[int, Sequence[DeliveryOrder]], Iterable[wire_format.Message | bytes]]


class SharedDelivery:
    """Delivers batches in `count()` shares, by means of `deliver_shares`."""

    def __init__(self, job: Job, count: Callable[[], int], deliver_shares: DeliverShares) -> None:
        self._job, self._count, self._deliver_shares = job, count, deliver_shares
        self._exactly_once = job.config.processing_guarantee == "exactly_once"
        self._producers: dict[int, str] = {}  # by share; those of the last batch

    def deliver(self, log: Log, number: int) -> Sequence[str] | None:
        """Delivers a batch without its marker. Returns the topics that are in no share; None if it cannot be shared."""
        shares, owner = self._count(), ""
        if shares < 2 or not isinstance(log, SupportsShares):
            return None
        if self._exactly_once:
            owner = log.begin_shares(self._job.application, number, shares)
            if owner is None:
                return None
        orders = [
            wire_format.ShareOrder(number, share, shares, owner, self._producers.pop(share, ""))
            for share in range(shares)
        ]
        messages = self._deliver_shares(number, orders)
        done = [message for message in messages if isinstance(message, wire_format.ShareDone)]
        self._producers = {message.share: message.producer for message in done}
        return sorted({topic for message in done for topic in message.topics})

    def write_sink(self, sink: str, number: int, parts: Sequence[str], share_out: ShareOut) -> Sequence[Written] | None:
        """Writes the parts of a batch to a sink. Returns None if the driver has to write them."""
        shares = min(self._count(), len(parts))
        given = share_out(shares)
        if given is None:
            return None
        orders = [
            wire_format.SinkOrder(sink, number, share, list(parts[share::shares]), given) for share in range(shares)
        ]
        messages = self._deliver_shares(number, orders)
        done = [message for message in messages if isinstance(message, wire_format.SinkDone)]
        return [Written(message.result, message.records, message.rejected) for message in done]


def deliver_by_job(session: SparkSession, path: str) -> DeliverShares:
    """Returns a function that delivers shares by a Spark job. `path` is the file of the `Job`."""

    def deliver(number: int, orders: Sequence[DeliveryOrder]) -> list[wire_format.Message | bytes]:
        frame: Any = session.range(0, len(orders), 1, len(orders))  # the types of mapInArrow are pyarrow's
        delivered: DataFrame = frame.mapInArrow(share_function(path, orders), wire_format.SCHEMA)
        return collect_messages(delivered, f"deliver batch {number}")

    return deliver


def read_share_answer(answer: ShareDelivered, number: int) -> wire_format.Message | bytes:
    """Returns the message of a slot that has delivered a share of batch `number`; raises an error if it could not."""
    if answer.reason:
        what = f"share {answer.share} of batch {number} was not delivered"
        raise QueryStoppedError(f"{what}: {answer.reason}", summary=f"{what}: {answer.summary}")
    message = wire_format.decode(answer.answer)
    if isinstance(message, wire_format.Failed):
        raise decode_failure(message)
    return message


class ShareRound:
    """One try at the shares of a batch: which slot delivers which share, and what they have answered. A state machine.

    The number of shares never changes, because it decides which share has which partitions. If a slot is lost, other
    slots deliver its share when the delivery is tried again.
    """

    def __init__(self, number: int, share_round: int, orders: Sequence[DeliveryOrder], slots: Sequence[int]) -> None:
        """`number` is the batch; `slots` are the registrations of the live slots."""
        if not slots:
            raise QueryStoppedError(f"batch {number} was not delivered: the slots are being ended")
        self._number = number
        self._asked = {order.share: slots[order.share % len(slots)] for order in orders}
        self.messages = [
            (self._asked[order.share], DeliverShare(share_round, wire_format.encode(order))) for order in orders
        ]
        self.results: list[wire_format.Message | bytes] = []

    @property
    def is_over(self) -> bool:
        return not self._asked

    def check_slots(self, is_live: Callable[[int], bool]) -> None:
        """Raises an error if a slot that has not answered is lost."""
        if not all(map(is_live, self._asked.values())):
            raise QueryStoppedError(f"a slot was lost while it delivered a share of batch {self._number}")

    def finish(self, answer: ShareDelivered) -> None:
        """Takes the answer of a slot; raises an error if it could not deliver its share."""
        self.results.append(read_share_answer(answer, self._number))
        del self._asked[answer.share]


def collect_messages(frame: DataFrame, doing: str) -> list[wire_format.Message | bytes]:
    """Returns the messages of a Spark job. Raises the error of a `Failed` one, or a retriable error if Spark fails."""
    try:
        rows = frame.collect()
    except Exception as error:
        what = str(error).partition("\n\tat ")[0]
        first = what.strip().partition("\n")[0]  # the traceback of a worker may quote a record
        raise QueryStoppedError(
            f"Spark could not {doing}: {what}", summary=f"Spark could not {doing}: {first}"
        ) from error
    messages = [wire_format.decode(bytes(row["message"])) for row in rows]
    for message in messages:
        if isinstance(message, wire_format.Failed):
            raise decode_failure(message)
    return messages


def share_function(
    job: str, orders: Sequence[DeliveryOrder]
) -> Callable[[Iterator[RecordBatch]], Iterator[RecordBatch]]:
    """Returns the function that Spark runs on the numbers of shares: it delivers these shares."""

    def run(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        for batch in batches:
            shares: list[int] = batch.column(0).to_pylist()
            for share in shares:
                yield make_record_batch(deliver_share(job, share, wire_format.encode(orders[share])))

    return run


def deliver_share(job: str, share: int, order: bytes) -> list[Message]:
    """Delivers a share in its slot process."""
    if job not in PROCESSES:
        PROCESSES[job] = SlotProcesses(job, find_file(job), lambda: make_handler(job), kind="share")
    return PROCESSES[job].ask(share, order, [])


# ----------------------------------------------------------------------------------------------- in the slot process
def make_handler(job: str) -> Handler:
    """Makes the handler of a slot process that delivers a share."""
    return ShareWriter(load_job(job)).handle


class ShareWriter:
    """Delivers one share of each batch, to the log or to a sink; its clients stay connected between batches.

    `storage` and `log` replace those that the addresses in the job open.
    """

    def __init__(self, job: Job, *, storage: Storage | None = None, log: Log | None = None) -> None:
        self._job, self._storage = job, storage or open_storage(job.checkpoint)
        self._log = log or open_log(job.log, job.config.client_settings)
        self._sinks: dict[str, tuple[SinkTarget, PartWriter]] = {}

    def handle(self, raw: bytes, _rows: Iterable[bytes]) -> list[Message]:
        order = wire_format.decode(raw)
        try:
            if isinstance(order, wire_format.SinkOrder):
                return [(0, wire_format.encode(self._write_sink(order)))]
            assert isinstance(order, wire_format.ShareOrder)  # noqa: S101
            return [(0, wire_format.encode(self._deliver(order)))]
        except StreamsError as error:
            if error.retriable:
                raise
            return [(0, wire_format.encode(encode_failure(error)))]
        except Exception as error:
            if isinstance(error, OSError) or not isinstance(order, wire_format.SinkOrder):
                raise
            # Any other error of a sink's writer stops the application, as it does in the driver.
            what = f"the sink {order.sink!r} has failed"
            failure = StreamsError(f"{what}: {type(error).__name__}: {error}", summary=f"{what}: {summarize(error)}")
            failure.__cause__ = error
            return [(0, wire_format.encode(encode_failure(failure)))]

    def _deliver(self, order: wire_format.ShareOrder) -> wire_format.ShareDone:
        part = read_share(self._storage, order.number, order.share, order.shares)
        with step(SHARE, self._job.at_step):
            producer = self._send(order, part.items) if part.items else order.producer
        return wire_format.ShareDone(order.share, producer, part.unshared_topics)

    def _write_sink(self, order: wire_format.SinkOrder) -> wire_format.SinkDone:
        target, writer = self._open_sink(order.sink)
        manifest, _ = read_manifest(self._storage, order.number)
        read = partial(read_blob, self._storage)
        share = SinkShare(order.share, order.given)
        batch = read_sink_batch(target, order.number, manifest.outboxes, read, order.parts, share)
        if not batch.parts:
            return wire_format.SinkDone(order.share, None, 0, 0)
        with step(SINK_WRITE, self._job.at_step):
            written = writer.write(batch)
        return wire_format.SinkDone(order.share, *written)

    def _open_sink(self, name: str) -> tuple[SinkTarget, PartWriter]:
        if name not in self._sinks:
            job = self._job
            target = find_sinks(job.graph, job.config)[name]
            context = SinkContext(
                application=job.application,
                sink=name,
                checkpoint=job.checkpoint_id,
                at_step=job.at_step,
                storage=self._storage,
            )
            self._sinks[name] = target, PartWriter(target, context, self._log)
        return self._sinks[name]

    def _send(self, order: wire_format.ShareOrder, items: Sequence[Item]) -> str:
        if order.owner and isinstance(self._log, SupportsShares):
            share = Share(order.number, order.share, order.owner, order.producer)
            return self._log.deliver_share(self._job.application, share, items)
        self._log.append(items)
        return ""
