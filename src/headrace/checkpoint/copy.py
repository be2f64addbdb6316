"""Copies the state and the positions of a checkpoint into a new one, for a second application beside the first.

The first application may be running: the copy has the state of its last manifest. Each task's state becomes one
snapshot, and manifest 0 of the new checkpoint names them all: without it the new checkpoint is empty.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace

from headrace.checkpoint.files import (
    SNAPSHOTS,
    BlobRef,
    DeltaRef,
    digest_of,
    manifest_name,
    read_blob,
    read_delta,
    task_file_name,
)
from headrace.checkpoint.ledger import Ledger, TaskHead, manifest_numbers
from headrace.checkpoint.manifest import Manifest
from headrace.checkpoint.manifest_builder import CarriedOver, ManifestBuilder
from headrace.checkpoint.outbox import decode_rows, encode_rows
from headrace.checkpoint.receipt import new_attempt
from headrace.checkpoint.recovery import recover_ledger
from headrace.checkpoint.steps import DELTA_WRITTEN, TAKEOVER, AtStep, ignore_step, step
from headrace.checkpoint.storage import Storage
from headrace.errors import CheckpointCorruptedError, StreamsError
from headrace.model.ids import TaskId, TopicPartition
from headrace.runtime.rows import PartitionBatch
from headrace.state.delta import Delta, encode_delta, merge
from headrace.state.engine import Version

OnTask = Callable[[int, int], None]  # how many tasks are copied, of how many


def copy_checkpoint(
    source: Storage,
    target: Storage,
    application: str,
    *,
    prefix: str = "",
    on_task: OnTask = lambda done, of: None,
    at_step: AtStep = ignore_step,
) -> Manifest:
    """Copies a checkpoint for an application with another id. The target must be empty.

    `prefix` begins the names of the topics that the new application writes.
    """
    if manifest_numbers(target):
        raise StreamsError(f"{target.describe()} has a checkpoint already: choose another directory")
    while True:
        ledger = recover_ledger(source, 1)
        if ledger.fingerprint is None:
            raise StreamsError(f"{source.describe()} has no batch yet: there is nothing to copy")
        try:
            carried_over = _copy_state(source, target, ledger, application, on_task, at_step)
            break
        except CheckpointCorruptedError:  # its owner may have merged and deleted files meanwhile
            if manifest_numbers(source)[-1:] == [ledger.number]:
                raise
    builder = ManifestBuilder(
        checkpoint=secrets.token_hex(8),
        application=application,
        epoch=0,
        clock=ledger.clock,
        positions=ledger.positions,
        topics=ledger.topics,
        fingerprint=replace(
            ledger.fingerprint,
            lineages={
                store: lineage._replace(downstream=tuple(prefix + topic for topic in lineage.downstream))
                for store, lineage in ledger.fingerprint.lineages.items()
            },
        ),
        changelogs=ledger.changelogs,
        carried_over=carried_over,
    )
    before = Ledger()
    before.stops = dict(ledger.stops)  # set while the first application processes a range again
    manifest, data = builder.build(before, full_up_to=0)
    with step(TAKEOVER, at_step):
        is_created = target.create(manifest_name(manifest.number), data)
    if not is_created:
        raise StreamsError(f"another process has just begun a checkpoint in {target.describe()}")
    return manifest


def _copy_state(
    source: Storage, target: Storage, ledger: Ledger, application: str, on_task: OnTask, at_step: AtStep
) -> CarriedOver:
    tasks: dict[TaskId, TaskHead] = {}
    for done, (task, head) in enumerate(sorted(ledger.tasks.items())):
        merged = (
            merge((read_delta(source, task, delta) for delta in head.chain), from_nothing=True) if head.chain else None
        )
        chain = () if merged is None else (_write_snapshot(target, task, merged, at_step),)
        tasks[task] = TaskHead(chain, head.due)
        on_task(done + 1, len(ledger.tasks))
    carried = tuple(
        (rows.target, rows.origin, _rename_rows(source, rows.blob, ledger.application, application))
        for rows in ledger.carried
    )
    return CarriedOver(tasks, carried)


def _write_snapshot(target: Storage, task: TaskId, state: Delta, at_step: AtStep) -> DeltaRef:
    delta = Delta(Version(0, new_attempt()), state.changes)
    data, name = encode_delta(delta), task_file_name(SNAPSHOTS, task, 0, delta.version.attempt)
    with step(DELTA_WRITTEN, at_step):
        target.create(name, data)
    return DeltaRef(*delta.version, len(delta.changes), BlobRef(name, 0, len(data), digest_of(data)))


def _rename_rows(source: Storage, blob: BlobRef, old: str, new: str) -> bytes:
    """Returns carried rows for another application, whose id begins the names of its internal topics."""
    batches = decode_rows(read_blob(source, blob, "carried rows"), blob.name)
    return encode_rows(
        PartitionBatch(
            TopicPartition(f"{new}-{batch.at.topic.removeprefix(f'{old}-')}", batch.at.partition),
            batch.offsets,
            batch.records,
            list(batch.orders),
            batch.counts,
        )
        for batch in batches
    )
