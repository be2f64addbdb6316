"""From receipts to the next manifest."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.checkpoint.compaction import Merge
from headrace.checkpoint.delta_files import Chain, Link, replaced
from headrace.checkpoint.files import Blob, FileRef, Piece
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.ledger import Ledger
from headrace.checkpoint.manifest import Blobs, Carried, Changelog, Manifest, Outbox, TaskChange, encode_manifest
from headrace.checkpoint.receipt import Receipt
from headrace.model.ids import TaskId, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestBuilder:
    """What goes into the next manifest, besides what the ledger says already."""

    checkpoint: str
    application: str
    epoch: int
    clock: int = 0
    delivered: int = -1
    receipts: Sequence[Receipt] = ()
    merged: Sequence[tuple[Merge, Link]] = ()
    positions: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    topics: Mapping[str, str] = field(default_factory=dict[str, str])
    fingerprint: Fingerprint | None = None  # if it changed
    changelogs: Mapping[str, Changelog] = field(default_factory=dict[str, Changelog])


def write_manifest(ledger: Ledger, draft: ManifestBuilder, *, always_all: int) -> tuple[Manifest, bytes]:
    """The manifest that follows, and its file. Up to `always_all` links it says all, so that no other one is needed."""
    number = ledger.number + 1
    blobs = Blobs(number)
    receipts = sorted(draft.receipts, key=lambda receipt: (receipt.level, receipt.task))
    changes = _changes(ledger, receipts, draft.merged, blobs)
    links = ledger.links + len(receipts)
    said = ledger.said + sum(len(change.links) for change in changes.values())
    says_all = bool(draft.fingerprint) or ledger.number < 0 or links <= always_all or said >= links
    positions = {at: offset for receipt in receipts for at, offset in receipt.positions.items()} | dict(draft.positions)
    manifest = Manifest(
        number=number,
        predecessor=ledger.digest,
        since=number if says_all else ledger.since,
        checkpoint=draft.checkpoint,
        application=draft.application,
        epoch=draft.epoch,
        clock=draft.clock,
        delivered=draft.delivered,
        tasks=tuple(
            (_all(ledger) | {t: _whole(ledger, c) for t, c in changes.items()} if says_all else changes).values()
        ),
        positions=_nested(ledger.positions | positions if says_all else positions),
        topics=ledger.topics | dict(draft.topics) if says_all else draft.topics,
        outboxes=tuple(Outbox(r.task, _piece(r.outbox, blobs)) for r in receipts if r.outbox is not None),
        carried=_carried(ledger, receipts, blobs),
        dropped=sum((Counter(receipt.dropped) for receipt in receipts), Counter(ledger.dropped)),
        fingerprint=draft.fingerprint or (ledger.fingerprint if says_all else None),
        changelogs=draft.changelogs,
    )
    return manifest, encode_manifest(manifest, blobs)


def _changes(
    ledger: Ledger, receipts: Sequence[Receipt], merged: Sequence[tuple[Merge, Link]], blobs: Blobs
) -> dict[TaskId, TaskChange]:
    changes: dict[TaskId, TaskChange] = {}
    for job, link in merged:
        standing = ledger.standing(job.task)
        chain = changes[job.task].links if job.task in changes else standing.chain
        changes[job.task] = TaskChange(job.task, True, replaced(chain, job.links, link), standing.due)
    for receipt in receipts:
        link = Link(*receipt.version, receipt.entries, _piece(receipt.delta, blobs))
        before: Chain = changes[receipt.task].links if receipt.task in changes and not receipt.whole else ()
        is_whole = receipt.whole or receipt.task in changes
        changes[receipt.task] = TaskChange(receipt.task, is_whole, (*before, link), receipt.due)
    return changes


def _all(ledger: Ledger) -> dict[TaskId, TaskChange]:
    return {task: TaskChange(task, True, standing.chain, standing.due) for task, standing in ledger.tasks.items()}


def _whole(ledger: Ledger, change: TaskChange) -> TaskChange:
    if change.whole:
        return change
    return change._replace(whole=True, links=ledger.standing(change.task).chain + change.links)


def _carried(ledger: Ledger, receipts: Sequence[Receipt], blobs: Blobs) -> tuple[Carried, ...]:
    """What waits now: of what waited, the rows of tasks that did not run."""
    ran = {receipt.task for receipt in receipts}
    new = [Carried(to, r.task, _piece(blob, blobs)) for r in receipts for to, blob in sorted(r.carried.items())]
    return (*(rows for rows in ledger.carried if rows.target not in ran), *new)


def _piece(blob: Blob, blobs: Blobs) -> Piece:
    return Piece(blob.name, 0, blob.size, blob.digest) if isinstance(blob, FileRef) else blobs.add(blob)


def _nested(positions: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    found: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for at, offset in sorted(positions.items()):
        found[at.topic][at.partition] = offset
    return dict(found)
