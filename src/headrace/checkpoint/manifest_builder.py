"""Builds the next manifest from the ledger, the receipts of a batch, and finished merges.

    manifest, data = replace(builder, clock=clock, receipts=receipts).build(ledger, full_up_to=1000)

The caller creates the file from `data`; until then the batch has not happened.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from headrace.checkpoint.compaction import MergeJob, replace_deltas
from headrace.checkpoint.files import Blob, BlobRef, DeltaChain, DeltaRef, FileRef
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.ledger import Ledger, TaskHead
from headrace.checkpoint.manifest import (
    Carried,
    Changelog,
    Manifest,
    ManifestBlobs,
    Outbox,
    TaskChange,
    encode_manifest,
)
from headrace.checkpoint.receipt import Receipt
from headrace.checkpoint.rescale import Rescaled
from headrace.model.ids import TaskId, TopicPartition
from headrace.runtime.environment import KEPT_DROPS, DroppedRecord


class CarriedOver(NamedTuple):
    """The tasks and carried rows of the whole checkpoint in the form of another topology."""

    tasks: Mapping[TaskId, TaskHead]
    carried: tuple[tuple[TaskId, TaskId, Blob | BlobRef], ...]  # target, origin, rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestBuilder:
    """What goes into the next manifest besides what the ledger has."""

    checkpoint: str
    application: str
    epoch: int
    clock: int = 0
    delivered: int = -1
    receipts: Sequence[Receipt] = ()
    merged: Sequence[tuple[MergeJob, DeltaRef]] = ()
    positions: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    topics: Mapping[str, str] = field(default_factory=dict[str, str])
    fingerprint: Fingerprint | None = None  # if it changed
    changelogs: Mapping[str, Changelog] = field(default_factory=dict[str, Changelog])
    rescaled: Rescaled | None = None  # sub-topologies that got another number of tasks
    carried_over: CarriedOver | None = None  # if the topology changed, and the form of the state with it

    def build(self, ledger: Ledger, *, full_up_to: int) -> tuple[Manifest, bytes]:
        """Returns the manifest that follows the ledger's last one, and its file.

        It is full if the tasks have at most `full_up_to` deltas together, or if the manifests since the last full one
        have listed as many deltas as a full one would: so the cost of full manifests stays proportional.
        """
        number = ledger.number + 1
        blobs = ManifestBlobs(number)
        receipts = sorted(self.receipts, key=lambda receipt: (receipt.level, receipt.task))
        changes = _task_changes(ledger, receipts, self.merged, blobs)
        deltas = ledger.delta_count + len(receipts)
        listed = ledger.listed_deltas + sum(len(change.deltas) for change in changes.values())
        is_full = bool(self.fingerprint) or ledger.number < 0 or deltas <= full_up_to or listed >= deltas
        if is_full:
            changes = _all_tasks(self._heads(ledger)) | {
                task: _whole(ledger, change) for task, change in changes.items()
            }
        positions = {at: offset for receipt in receipts for at, offset in receipt.positions.items()}
        positions |= self.positions
        manifest = Manifest(
            number=number,
            predecessor=ledger.digest,
            since=number if is_full else ledger.since,
            checkpoint=self.checkpoint,
            application=self.application,
            epoch=self.epoch,
            clock=self.clock,
            delivered=self.delivered,
            tasks=tuple(changes.values()),
            positions=_by_topic(ledger.positions | positions if is_full else positions),
            topics=ledger.topics | dict(self.topics) if is_full else self.topics,
            outboxes=tuple(Outbox(r.task, _blob_ref(r.outbox, blobs)) for r in receipts if r.outbox is not None),
            carried=self._carried(ledger, receipts, blobs),
            dropped=sum((Counter(receipt.dropped) for receipt in receipts), Counter(ledger.dropped)),
            drops=_last_drops(ledger, receipts) if is_full or any(receipt.drops for receipt in receipts) else (),
            fingerprint=self.fingerprint or (ledger.fingerprint if is_full else None),
            changelogs=self.changelogs,
            stops=_by_topic(ledger.stops) if is_full else {},
        )
        return manifest, encode_manifest(manifest, blobs)

    def _heads(self, ledger: Ledger) -> Mapping[TaskId, TaskHead]:
        """Returns the tasks before the receipts are added, in the form that the new manifest gives them."""
        if self.carried_over is not None:
            return self.carried_over.tasks
        if self.rescaled is None:
            return ledger.tasks
        divided = self.rescaled.subtopologies
        kept = {task: head for task, head in ledger.tasks.items() if task.subtopology not in divided}
        return kept | dict(self.rescaled.tasks)

    def _carried(self, ledger: Ledger, receipts: Sequence[Receipt], blobs: ManifestBlobs) -> tuple[Carried, ...]:
        changed = self.carried_over or self.rescaled
        return _carried(ledger, receipts, blobs) if changed is None else _routed(changed, blobs)


def _task_changes(
    ledger: Ledger, receipts: Sequence[Receipt], merged: Sequence[tuple[MergeJob, DeltaRef]], blobs: ManifestBlobs
) -> dict[TaskId, TaskChange]:
    changes: dict[TaskId, TaskChange] = {}
    for job, delta in merged:
        head = ledger.head(job.task)
        chain = changes[job.task].deltas if job.task in changes else head.chain
        changes[job.task] = TaskChange(job.task, True, replace_deltas(chain, job.deltas, delta), head.due)
    for receipt in receipts:
        delta = DeltaRef(*receipt.version, receipt.entries, _blob_ref(receipt.delta, blobs))
        before: DeltaChain = changes[receipt.task].deltas if receipt.task in changes and not receipt.whole else ()
        is_whole = receipt.whole or receipt.task in changes
        changes[receipt.task] = TaskChange(receipt.task, is_whole, (*before, delta), receipt.due)
    return changes


def _last_drops(ledger: Ledger, receipts: Sequence[Receipt]) -> tuple[DroppedRecord, ...]:
    """Returns the last dropped records of each reason, oldest first."""
    by_reason = defaultdict[str, deque[DroppedRecord]](lambda: deque(maxlen=KEPT_DROPS))
    for drop in chain(ledger.drops, *(receipt.drops for receipt in receipts)):
        by_reason[drop.reason].append(drop)
    return tuple(drop for _, drops in sorted(by_reason.items()) for drop in drops)


def _all_tasks(heads: Mapping[TaskId, TaskHead]) -> dict[TaskId, TaskChange]:
    return {task: TaskChange(task, True, head.chain, head.due) for task, head in heads.items()}


def _routed(given: CarriedOver | Rescaled, blobs: ManifestBlobs) -> tuple[Carried, ...]:
    return tuple(
        Carried(target, origin, rows if isinstance(rows, BlobRef) else _blob_ref(rows, blobs))
        for target, origin, rows in given.carried
    )


def _whole(ledger: Ledger, change: TaskChange) -> TaskChange:
    if change.whole:
        return change
    return change._replace(whole=True, deltas=ledger.head(change.task).chain + change.deltas)


def _carried(ledger: Ledger, receipts: Sequence[Receipt], blobs: ManifestBlobs) -> tuple[Carried, ...]:
    """Returns the new carried rows, and those from before whose target did not run in this batch."""
    ran = {receipt.task for receipt in receipts}
    new = [Carried(to, r.task, _blob_ref(blob, blobs)) for r in receipts for to, blob in sorted(r.carried.items())]
    return (*(rows for rows in ledger.carried if rows.target not in ran), *new)


def _blob_ref(blob: Blob, blobs: ManifestBlobs) -> BlobRef:
    return BlobRef(blob.name, 0, blob.size, blob.digest) if isinstance(blob, FileRef) else blobs.add(blob)


def _by_topic(positions: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    found: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for at, offset in sorted(positions.items()):
        found[at.topic][at.partition] = offset
    return dict(found)
