"""Before the first batch of an instance: reads the checkpoint, and checks that topology and log fit it.

recover_ledger        the last committed state            check_changes      the topology can take its state over
identify_checkpoint   it is this application's            check_topics       the source topics are the same
find_undelivered      batches that the log lacks          check_deliveries   the log is the same

| "HRI1" | digest of the rest, 16 bytes | JSON: [checkpoint id, application] |   the file `checkpoint`
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from headrace.checkpoint.change_plan import ChangePlan
from headrace.checkpoint.delivery import DeliveryTarget
from headrace.checkpoint.files import CHECKPOINT, decode_json, encode_checksummed, manifest_name
from headrace.checkpoint.fingerprint import Fingerprint, find_differences
from headrace.checkpoint.ledger import Ledger, manifest_numbers, read_ledger, read_manifest
from headrace.checkpoint.manifest import Outbox
from headrace.checkpoint.storage import Storage
from headrace.errors import CheckpointCorruptedError, CheckpointMismatchError, MissingFileError
from headrace.model.ids import TopicPartition

MAGIC = b"HRI1"
_log = logging.getLogger(__name__)


class Identity(NamedTuple):
    """The id of a checkpoint, and its application."""

    checkpoint: str
    application: str


def recover_ledger(storage: Storage, keep: int) -> Ledger:
    """Reads the ledger up to the last manifest, with the last `keep` manifests as far as they exist.

    A running owner may commit further batches meanwhile, and delete the manifests that were listed: then they are
    listed and read again. A replaced owner may even have created a deleted manifest again.
    """
    numbers = manifest_numbers(storage)
    while numbers:
        try:
            return _read_manifests(storage, keep, numbers)
        except (CheckpointCorruptedError, CheckpointMismatchError):
            before, numbers = numbers, manifest_numbers(storage)
            if numbers[-1:] == before[-1:]:
                raise
    return Ledger()


def _read_manifests(storage: Storage, keep: int, numbers: Sequence[int]) -> Ledger:
    last = first = numbers[-1]
    existing = set(numbers)
    while first - 1 in existing and first > last - keep + 1:
        first -= 1
    try:
        return read_ledger(storage, last, first)
    except CheckpointCorruptedError as error:
        ledger = read_ledger(storage, last)
        _log.warning("%s. The last manifest, %d, does not need it", error, last)
        return ledger


def read_fingerprint(storage: Storage) -> Fingerprint | None:
    """Returns the fingerprint of the topology that wrote the checkpoint: internal topics keep its partition counts."""
    return recover_ledger(storage, 1).fingerprint


def read_positions(storage: Storage) -> dict[TopicPartition, tuple[int, str]]:
    """Returns the next offset of every partition, with the id of its topic."""
    ledger = recover_ledger(storage, 1)
    return {at: (offset, ledger.topics.get(at.topic, "")) for at, offset in ledger.positions.items()}


# ----------------------------------------------------------------------------------------------------------- identity
def identify_checkpoint(storage: Storage, application: str, ledger: Ledger) -> str:
    """Returns the id of the checkpoint, a new one if it is new. Raises if it belongs to another application."""
    written = _read_identity(storage)
    if written is not None:
        found = written
    elif ledger.number >= 0:
        found = Identity(ledger.checkpoint, ledger.application)
    else:
        found = Identity(secrets.token_hex(8), application)
    if found.application != application:
        raise CheckpointMismatchError(
            f"{storage.describe()} is the checkpoint of {found.application!r}, not of {application!r}: "
            "choose another directory, or the right application.id"
        )
    if ledger.number >= 0 and ledger.checkpoint != found.checkpoint:
        raise CheckpointMismatchError(
            f"{storage.describe()} has manifests of another checkpoint ({ledger.checkpoint}) than its file "
            f"{CHECKPOINT!r} names ({found.checkpoint}): files of two checkpoints were mixed"
        )
    if written is None and not storage.create(CHECKPOINT, encode_checksummed(MAGIC, msgspec.json.encode(found))):
        return identify_checkpoint(storage, application, ledger)  # another instance has created it meanwhile
    return found.checkpoint


def decode_identity(raw: bytes) -> Identity:
    return decode_json(MAGIC, raw, CHECKPOINT, Identity)


def _read_identity(storage: Storage) -> Identity | None:
    try:
        return decode_identity(storage.read(CHECKPOINT))
    except MissingFileError:
        return None
    except CheckpointCorruptedError as error:
        _log.warning("%s. It is written again", error)
        storage.delete(CHECKPOINT)
        return None


# ------------------------------------------------------------------------------------------------------------- checks
def check_topology(ledger: Ledger, fingerprint: Fingerprint, storage: Storage) -> None:
    """Raises CheckpointMismatchError if the topology is not the one that wrote the checkpoint."""
    found = find_differences(ledger.fingerprint, fingerprint) if ledger.fingerprint is not None else []
    if found:
        raise CheckpointMismatchError(
            f"{storage.describe()} is the checkpoint of another topology of {ledger.application!r}: "
            f"{'; '.join(found)}. Give the topology that wrote it, or start the application once with this one",
            differences=found,
        )


def check_changes(plan: ChangePlan, storage: Storage) -> None:
    """Raises CheckpointMismatchError if the user must decide something before the topology can take the state over."""
    if plan.decisions:
        raise CheckpointMismatchError(
            f"{storage.describe()} is the checkpoint of another topology of {plan.application!r}: "
            f"{'; '.join(plan.decisions)}. `headrace plan` shows all changes. "
            "Or go back to the topology that wrote it, choose another application.id, or reset the application",
            differences=plan.decisions,
        )


def check_topics(ledger: Ledger, log: DeliveryTarget, topics: Mapping[str, str]) -> None:
    """Raises CheckpointMismatchError if a source topic was replaced or truncated. `topics` has the current ids."""
    known = sorted(ledger.topics.keys() & topics.keys())
    same = [topic for topic in known if topics[topic] == ledger.topics[topic]]
    found = [f"the topic {topic} was deleted and created again" for topic in known if topic not in same]
    extents = log.extents(same)
    found += [
        f"{at} ends at offset {extents[at].end}, but was read up to {position}"
        for at, position in sorted(ledger.positions.items())
        if at in extents and position > extents[at].end
    ]
    if found:
        raise CheckpointMismatchError(
            f"the log is not the one that {ledger.application!r} has read: {'; '.join(found)}. "
            "Put the log back, or reset the application",
            differences=found,
        )


def check_deliveries(ledger: Ledger, delivered: int, storage: Storage) -> None:
    """The log must contain every batch that the checkpoint has recorded as delivered, and no later one."""
    if delivered > ledger.number:
        lost = manifest_name(ledger.number + 1)
        last = f"its last manifest is {ledger.number}" if ledger.number >= 0 else "it has no manifest"
        raise CheckpointCorruptedError(
            f"the log has batch {delivered} of the application, but {storage.describe()} does not: {last}. "
            f"{lost} is missing, or this is another checkpoint, or an older copy. Put it back, or reset the "
            "application",
            file=lost,
        )
    if delivered < ledger.delivered:
        raise CheckpointMismatchError(
            f"the checkpoint has recorded that batch {ledger.delivered} of {ledger.application!r} was delivered, but "
            f"the log only has batch {delivered}: it is another log, or an older copy. Put it back, or reset the "
            "application"
        )


def find_undelivered(storage: Storage, ledger: Ledger, delivered: int) -> dict[int, tuple[Outbox, ...]]:
    """Returns the outboxes of the batches after `delivered`."""
    batches = range(delivered + 1, ledger.number + 1)
    for batch in batches:
        if batch not in ledger.outboxes:
            ledger.outboxes[batch] = read_manifest(storage, batch)[0].outboxes
    return {batch: ledger.outboxes[batch] for batch in batches}
