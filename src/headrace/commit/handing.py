"""How an attempt at a task hands back what it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.commit.names import attempt_name
from headrace.commit.outbox import Partitions, encode_outbox, encode_rows
from headrace.commit.pieces import Blob, stow
from headrace.commit.receipt import Receipt
from headrace.commit.steps import RECEIPT, AtStep, step, unobserved
from headrace.commit.storage import Storage
from headrace.model.ids import TaskId, TopicPartition
from headrace.runtime.batch import Output, Row
from headrace.state.delta import Delta, encode_delta
from headrace.state.engine import Version


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
