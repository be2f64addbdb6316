# pyright: basic
"""Delivers large batches by a Spark job, in shares: one process alone would keep the batches behind them waiting.

A share is delivered in a home of its own (`home`), so that its producer stays warm, and neither keeps tasks waiting
nor waits for them. It reads what it delivers from the checkpoint; through the driver go only orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from headrace.checkpoint.delivery import read_share
from headrace.checkpoint.steps import SHARE, step
from headrace.checkpoint.storage import open_storage
from headrace.errors import StreamsError
from headrace.log.open import open_log
from headrace.log.protocol import Item, Log, Share, SupportsShares
from headrace.spark import wire_format
from headrace.spark.application_state import QueryStoppedError
from headrace.spark.job import Job, error_of, failed, load_job, located
from headrace.spark.slot_process import Handler, Message, SlotProcesses
from headrace.spark.wire_format import record_batch

HOMES: dict[str, SlotProcesses] = {}


# Has the shares of a batch delivered, one for each order, and returns what was answered.
DeliverShares = Callable[[int, Sequence[wire_format.ShareOrder]], Iterable[wire_format.Message | bytes]]


class SharedDelivery:
    """Delivers batches in shares: `count` says in how many, `deliver_shares` has them delivered."""

    def __init__(self, job: Job, count: Callable[[], int], deliver_shares: DeliverShares) -> None:
        self._job, self._count, self._deliver_shares = job, count, deliver_shares
        self._exactly_once = job.config.processing_guarantee == "exactly_once"
        self._producers: dict[int, str] = {}  # by share, as long as they are known

    def deliver(self, log: Log, number: int) -> Sequence[str] | None:
        """Delivers a batch but for its marker, and for topics that are left; None if it cannot be shared."""
        shares, line = self._count(), ""
        if shares < 2 or not isinstance(log, SupportsShares):
            return None
        if self._exactly_once:
            line = log.begin_shares(self._job.application, number, shares)
            if line is None:
                return None
        orders = [
            wire_format.ShareOrder(number, share, shares, line, self._producers.pop(share, ""))
            for share in range(shares)
        ]
        messages = self._deliver_shares(number, orders)
        done = [message for message in messages if isinstance(message, wire_format.ShareDone)]
        self._producers = {message.share: message.producer for message in done}
        return sorted({topic for message in done for topic in message.topics})


def deliver_by_job(session: SparkSession, path: str) -> DeliverShares:
    """Has shares delivered by a Spark job; `path` is where its description can be loaded from."""

    def deliver(number: int, orders: Sequence[wire_format.ShareOrder]) -> list[wire_format.Message | bytes]:
        frame = session.range(0, len(orders), 1, len(orders))
        delivered = frame.mapInArrow(share_function(path, orders), wire_format.SCHEMA)
        return collected(delivered, f"deliver batch {number}")

    return deliver


def collected(frame: DataFrame, doing: str) -> list[wire_format.Message | bytes]:
    """The messages of a job, unless one tells of a failure; what Spark could not bring to its end may be run again."""
    try:
        rows = frame.collect()
    except Exception as error:
        what = str(error).partition("\n\tat ")[0]
        raise QueryStoppedError(f"Spark could not {doing}: {what}") from error
    messages = [wire_format.decode(bytes(row["message"])) for row in rows]
    for message in messages:
        if isinstance(message, wire_format.Failed):
            raise error_of(message)
    return messages


def share_function(
    job: str, orders: Sequence[wire_format.ShareOrder]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What has those shares delivered whose numbers come in."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for share in batch.column(0).to_pylist():
                yield record_batch(deliver_share(job, share, wire_format.encode(orders[share])))

    return run


def deliver_share(job: str, share: int, order: bytes) -> list[Message]:
    """Has a share delivered at its home."""
    if job not in HOMES:
        HOMES[job] = SlotProcesses(f"{job} shares", located(job).exists, lambda: courier(job))
    return HOMES[job].ask(share, order, [])


# ------------------------------------------------------------------------------------------------------- in the home
def courier(job: str) -> Handler:
    """What a home for a share does its work with."""
    return ShareWriter(load_job(job)).handle


class ShareWriter:
    """Delivers a share of every batch; its clients stay warm in between."""

    def __init__(self, job: Job) -> None:
        self._job, self._storage = job, open_storage(job.checkpoint)
        self._log = open_log(job.log, job.config.client_settings)

    def handle(self, raw: bytes, _rows: Iterable[bytes]) -> list[Message]:
        order = wire_format.decode(raw)
        assert isinstance(order, wire_format.ShareOrder)  # noqa: S101
        try:
            return [(0, wire_format.encode(self._deliver(order)))]
        except StreamsError as error:
            if error.retriable:
                raise
            return [(0, wire_format.encode(failed(error)))]

    def _deliver(self, order: wire_format.ShareOrder) -> wire_format.ShareDone:
        part = read_share(self._storage, order.number, order.share, order.shares)
        with step(SHARE, self._job.at_step):
            producer = self._send(order, part.items) if part.items else order.producer
        return wire_format.ShareDone(order.share, producer, part.unshared_topics)

    def _send(self, order: wire_format.ShareOrder, items: Sequence[Item]) -> str:
        if order.line and isinstance(self._log, SupportsShares):
            share = Share(order.number, order.share, order.line, order.producer)
            return self._log.deliver_share(self._job.application, share, items)
        self._log.append(items)
        return ""
