"""What an attempt at a task hands back, and whether the receipts of a batch belong together.

How an attempt at a task hands back what it did.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from headrace.checkpoint.files import Blob, attempt_name, stow
from headrace.checkpoint.outbox import Partitions, encode_outbox, encode_rows
from headrace.checkpoint.steps import RECEIPT, AtStep, step, unobserved
from headrace.checkpoint.storage import Storage
from headrace.errors import StageRerunError, StreamsError
from headrace.model.ids import TaskId, TopicPartition
from headrace.runtime.environment import Output, Row
from headrace.state.delta import Delta, encode_delta
from headrace.state.engine import Version

MAGIC = b"HRR1"
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What one attempt at a task did in a batch.

    `sent` counts the rows for each task of a later level, `consumed` those that came from each attempt of an earlier
    one. `whole`: the delta is all of the state, whatever was there before.
    """

    task: TaskId
    level: int
    number: int
    attempt: str
    base: Version | None  # what it started from
    delta: Blob  # by `state.delta.encode_delta`
    entries: int  # in the delta
    whole: bool = False
    outbox: Blob | None = None  # by `outbox.encode_outbox`
    carried: Mapping[TaskId, Blob] = field(default_factory=dict[TaskId, Blob])  # by `outbox.encode_rows`
    positions: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])  # next offsets to read
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])
    due: int | None = None  # when the wall clock next has work for it
    stream_time: int = -1
    sent: Mapping[TaskId, int] = field(default_factory=dict[TaskId, int])
    consumed: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def version(self) -> Version:
        return Version(self.number, self.attempt)


_decode = msgspec.msgpack.Decoder(Receipt).decode


def new_attempt() -> str:
    """An id that no other attempt has, of any task, ever."""
    return secrets.token_hex(8)


# | "HRR1" | MessagePack |; it lives as long as its batch, so it has no checksum
def encode_receipt(receipt: Receipt) -> bytes:
    return MAGIC + _encode(receipt)


def decode_receipt(raw: bytes) -> Receipt:
    if not raw.startswith(MAGIC):
        raise StreamsError(f"not a receipt, or one of another Headrace: it begins with {raw[:4]!r}")
    return _decode(memoryview(raw)[len(MAGIC) :])


# ------------------------------------------------------------------------------------------------------------ checks
def check_receipts(receipts: Sequence[Receipt], number: int, versions: Mapping[TaskId, Version | None]) -> None:
    """Refuses receipts that are not of one run of batch `number` from the given versions."""
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
    return StageRerunError(f"{why}: part of the batch was run again. Nothing is committed; run the whole batch anew")


class Attempt(NamedTuple):
    """An attempt at a task in a batch; `base` is the version that it starts from."""

    task: TaskId
    level: int
    number: int
    id: str
    base: Version | None

    @property
    def version(self) -> Version:
        return Version(self.number, self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Yield:
    """What an attempt gave: changes of the state, records for the log, rows for the next batch, and counts."""

    delta: Delta
    outputs: Sequence[Output] = ()
    carried: Mapping[TaskId, Sequence[Row]] = field(default_factory=dict[TaskId, Sequence[Row]])
    positions: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])
    due: int | None = None
    stream_time: int = -1
    sent: Mapping[TaskId, int] = field(default_factory=dict[TaskId, int])
    consumed: Mapping[str, int] = field(default_factory=dict[str, int])
    whole: bool = False


def hand_back(
    storage: Storage,
    attempt: Attempt,
    given: Yield,
    partitions: Partitions,
    *,
    inline: int,
    at_step: AtStep = unobserved,
) -> Receipt:
    """The receipt of an attempt; what does not fit into `inline` bytes is written to files first."""
    left = inline

    def stowed(folder: str, data: bytes, suffix: str = "") -> Blob:
        nonlocal left
        name = attempt_name(folder, attempt.task, attempt.number, attempt.id + suffix)
        blob = stow(storage, name, data, inline=left, at_step=at_step)
        left -= len(blob) if isinstance(blob, bytes) else 0
        return blob

    with step(RECEIPT, at_step):
        outbox = encode_outbox(given.outputs, partitions, attempt.task.partition) if given.outputs else None
        return Receipt(
            task=attempt.task,
            level=attempt.level,
            number=attempt.number,
            attempt=attempt.id,
            base=attempt.base,
            delta=stowed("deltas", encode_delta(given.delta)),
            entries=len(given.delta.changes),
            whole=given.whole,
            outbox=None if outbox is None else stowed("outboxes", outbox),
            carried={to: stowed("carried", encode_rows(rows), f"-{to}") for to, rows in given.carried.items() if rows},
            positions=given.positions,
            dropped=given.dropped,
            due=given.due,
            stream_time=given.stream_time,
            sent=given.sent,
            consumed=given.consumed,
        )
