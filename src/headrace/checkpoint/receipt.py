"""The receipt: what one attempt at a task did in a batch, sent from the worker to the driver.

    receipt = Receipt(task=task, level=0, number=12, attempt=new_attempt(), base=version)
    …                                                     # run the task
    receipt = complete_receipt(storage, replace(receipt, positions=…), delta, outputs, carried, partitions, inline=n)
    check_receipts(receipts, 12, versions)                # in the driver, before the commit

    | "HRR1" | MessagePack of `Receipt` |                 no checksum: a receipt lives as long as its batch

The message is a map: the field names of `Receipt` are part of the format.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from headrace.checkpoint.files import Blob, task_file_name, write_blob
from headrace.checkpoint.outbox import Partitions, encode_outbox, encode_rows
from headrace.checkpoint.steps import RECEIPT, AtStep, ignore_step, step
from headrace.checkpoint.storage import Storage
from headrace.errors import StageRerunError, StreamsError
from headrace.model.ids import TaskId, TopicPartition
from headrace.runtime.environment import DroppedRecord
from headrace.runtime.rows import Output, PartitionBatch
from headrace.state.delta import Delta, encode_delta
from headrace.state.engine import Version

MAGIC = b"HRR1"
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What one attempt at a task did in batch `number`.

    `sent` and `consumed` let the driver notice that Spark ran part of a batch twice: see `check_receipts`.
    """

    task: TaskId
    level: int
    number: int
    attempt: str
    base: Version | None  # the version that it started from
    delta: Blob = b""  # by `state.delta.encode_delta`
    entries: int = 0  # in the delta
    whole: bool = False  # the delta is the whole state, whatever was there before
    outbox: Blob | None = None  # by `outbox.encode_outbox`
    carried: Mapping[TaskId, Blob] = field(default_factory=dict[TaskId, Blob])  # by `outbox.encode_rows`
    positions: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])  # next offsets to read
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])  # records by reason
    drops: tuple[DroppedRecord, ...] = ()  # the first ones of each reason
    due: int | None = None  # its next wall-clock deadline
    stream_time: int = -1
    sent: Mapping[TaskId, int] = field(default_factory=dict[TaskId, int])  # rows, by task of a later level
    consumed: Mapping[str, int] = field(default_factory=dict[str, int])  # rows, by attempt of an earlier level

    @property
    def version(self) -> Version:
        return Version(self.number, self.attempt)


_decode = msgspec.msgpack.Decoder(Receipt).decode


def new_attempt() -> str:
    """Returns an id that no other attempt at any task has."""
    return secrets.token_hex(8)


def encode_receipt(receipt: Receipt) -> bytes:
    return MAGIC + _encode(receipt)


def decode_receipt(raw: bytes) -> Receipt:
    if not raw.startswith(MAGIC):
        raise StreamsError(f"not a receipt, or one of another Headrace: it begins with {raw[:4]!r}")
    try:
        return _decode(memoryview(raw)[len(MAGIC) :])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StreamsError(f"a receipt of {len(raw)} bytes cannot be read: {error}") from error


def complete_receipt(
    storage: Storage,
    receipt: Receipt,
    delta: Delta,
    outputs: Sequence[Output],
    carried: Mapping[TaskId, Sequence[PartitionBatch]],
    partitions: Partitions,
    *,
    inline: int,
    packed: bool = True,
    at_step: AtStep = ignore_step,
) -> Receipt:
    """Adds the results of the attempt. At most `inline` bytes of them go into the receipt, the rest into files.

    With `packed`, the outputs are for a log that stores packed chunks as they are.
    """
    left = inline

    def write(folder: str, data: bytes, suffix: str = "") -> Blob:
        nonlocal left
        name = task_file_name(folder, receipt.task, receipt.number, receipt.attempt + suffix)
        blob = write_blob(storage, name, data, inline=left, at_step=at_step)
        left -= len(blob) if isinstance(blob, bytes) else 0
        return blob

    with step(RECEIPT, at_step):
        outbox = encode_outbox(outputs, partitions, receipt.task.partition, packed=packed) if outputs else None
        return replace(
            receipt,
            delta=write("deltas", encode_delta(delta)),
            entries=len(delta.changes),
            outbox=None if outbox is None else write("outboxes", outbox),
            carried={to: write("carried", encode_rows(rows), f"-{to}") for to, rows in carried.items() if rows},
        )


def check_receipts(receipts: Sequence[Receipt], number: int, versions: Mapping[TaskId, Version | None]) -> None:
    """Raises StageRerunError unless the receipts are of one run of batch `number`, from the given versions."""
    by_task: dict[TaskId, Receipt] = {}
    for receipt in receipts:
        if receipt.number != number:
            raise _rerun(f"task {receipt.task} handed back batch {receipt.number} in batch {number}")
        if by_task.setdefault(receipt.task, receipt) is not receipt:
            raise _rerun(f"task {receipt.task} ran twice in batch {number}")
        if receipt.base != versions.get(receipt.task):
            raise _rerun(f"task {receipt.task} started from {receipt.base}, but stands at {versions.get(receipt.task)}")
    by_attempt = {receipt.attempt: receipt for receipt in receipts}
    for receipt in receipts:
        for target, count in receipt.sent.items():
            got = by_task[target].consumed.get(receipt.attempt, 0) if target in by_task else 0
            if got != count:
                raise _rerun(f"task {receipt.task} sent {count} rows to {target}, which consumed {got} of them")
        for attempt, count in receipt.consumed.items():
            origin = by_attempt.get(attempt)
            if origin is None or origin.sent.get(receipt.task, 0) != count:
                what = "no attempt of this run" if origin is None else f"task {origin.task}"
                raise _rerun(f"task {receipt.task} consumed {count} rows that {what} sent to it (attempt {attempt})")


def _rerun(why: str) -> StageRerunError:
    return StageRerunError(f"{why}: part of the batch was run again. Nothing is committed; run the whole batch again")
