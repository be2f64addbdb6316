"""An application that begins anew: a checkpoint without state, and with positions that were chosen.

It is one more manifest, which empties every task and says where to go on. So it happens at once or not at all, and
nobody who still runs can commit after it. Only then is deleted what nothing names any more.

1. the next epoch is ours: nobody else runs       4. the log counts on from there
2. what was committed is delivered                5. files of the old state are deleted
3. the manifest is created: now it happened
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from headrace.commit import recovery
from headrace.commit.delivery import Delivery
from headrace.commit.errors import CheckpointCorruptedError, CheckpointMismatchError
from headrace.commit.ledger import Ledger, manifest_numbers
from headrace.commit.manifest import Manifest, TaskChange, encode_manifest
from headrace.commit.merging import purge
from headrace.commit.names import manifest_name
from headrace.commit.owner import Holder, Ownership, is_gone, this_process
from headrace.commit.pieces import read_piece
from headrace.commit.steps import unobserved
from headrace.commit.storage import Storage
from headrace.log.creating import Creating
from headrace.log.protocol import Log
from headrace.model.clock import SystemClock
from headrace.model.ids import TopicPartition

_LEASE = 15_000


class Read(NamedTuple):
    """What a checkpoint says, or, if it can be read no more, why."""

    ledger: Ledger
    damage: CheckpointCorruptedError | None


@dataclass(frozen=True, slots=True)
class Untouched:
    """A storage that can be read; what is written to it is forgotten, so that nothing happens."""

    storage: Storage

    def create(self, name: str, data: bytes) -> bool:
        return True

    def read(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        return self.storage.read(name, start, size)

    def names(self, prefix: str = "") -> list[str]:
        return self.storage.names(prefix)

    def delete(self, name: str) -> None:
        pass

    def describe(self) -> str:
        return self.storage.describe()


def read_checkpoint(storage: Storage) -> Read:
    """Where an application is; a checkpoint that is damaged can still be begun anew."""
    try:
        return Read(recovery.recover(storage, 1), None)
    except CheckpointCorruptedError as damage:
        return Read(Ledger(), damage)


def claim(storage: Storage, application: str, read: Read, *, force: bool) -> tuple[str, Ownership]:
    """The id of the checkpoint and the right to change it, if it is the application's and nobody runs on it."""
    checkpoint = recovery.identify(storage, application, read.ledger)
    gone = _always if force else is_gone
    owner = Ownership.claim(storage, SystemClock(), me=this_process(), lease=_LEASE, above=read.ledger.epoch, gone=gone)
    return checkpoint, owner


def deliver_rest(storage: Storage, log: Log, application: str, read: Read) -> str | None:
    """Delivers what was committed and is not in the log yet; a sentence if that cannot be done."""
    delivery = Delivery(Creating(log), application, exactly_once=True, at_step=unobserved)
    if read.damage is not None:
        return f"{read.damage}. What was committed last may not have been delivered"
    try:
        delivery.catch_up(recovery.undelivered(storage, read.ledger, delivery.last), partial(read_piece, storage))
    except CheckpointCorruptedError as error:
        return f"{error}. Batches after {delivery.last} were committed and cannot be delivered"
    return None


def begin_anew(
    storage: Storage, log: Log, application: str, positions: Mapping[TopicPartition, int], *, force: bool
) -> str | None:
    """Empties a checkpoint and sets its positions; gives a sentence if something that was committed is lost."""
    read = read_checkpoint(storage)
    checkpoint, owner = claim(storage, application, read, force=force)
    try:
        lost = deliver_rest(storage, log, application, read)
        number = max([-1, log.delivered(application), *manifest_numbers(storage)]) + 1
        manifest = _first(number, checkpoint, application, owner.epoch, read.ledger, log, positions)
        if not storage.create(manifest_name(number), encode_manifest(manifest)):
            raise CheckpointMismatchError(
                f"{manifest_name(number)} of {storage.describe()} was written by another instance just now: stop it, "
                "and reset again"
            )
        log.mark_delivered(application, number)
        purge(storage, {manifest_name(number)}, number, unobserved)
        owner.forget_earlier()
    finally:
        owner.release()
    return lost


def _first(
    number: int,
    checkpoint: str,
    application: str,
    epoch: int,
    before: Ledger,
    log: Log,
    positions: Mapping[TopicPartition, int],
) -> Manifest:
    """A manifest that says all: no state, and where to go on."""
    follows = before.number == number - 1
    nested: dict[str, dict[int, int]] = {}
    for at, offset in sorted(positions.items()):
        nested.setdefault(at.topic, {})[at.partition] = offset
    return Manifest(
        number=number,
        predecessor=before.digest if follows else b"",
        since=number,
        checkpoint=checkpoint,
        application=application,
        epoch=epoch,
        clock=before.clock,
        delivered=-1,
        tasks=tuple(TaskChange(task, True, (), None) for task in sorted(before.tasks)),
        positions=nested,
        topics={topic: log.topic(topic).id for topic in nested},
    )


def global_topics(ledger: Ledger) -> set[str]:
    """The topics that fill global tables: no sub-topology reads them."""
    if ledger.fingerprint is None:
        return set()
    reads: Sequence[str] = [name for group in ledger.fingerprint.groups for name in group.reads]
    return {topic for topic in ledger.topics if not any(_names(name, topic) for name in reads)}


def _names(text: str, topic: str) -> bool:
    """Whether a sub-topology that reads `text`, a topic or a pattern, reads a topic."""
    try:
        return text == topic or re.fullmatch(text, topic) is not None
    except re.error:
        return False


def _always(holder: Holder, me: Holder) -> bool:
    return True
