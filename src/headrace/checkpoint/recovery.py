"""What is checked and read before anything runs: whose checkpoint it is, where it stands, whether the log fits."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from headrace.checkpoint.delivery import Target
from headrace.checkpoint.files import CHECKPOINT, manifest_name, seal, unseal
from headrace.checkpoint.fingerprint import Fingerprint, differences
from headrace.checkpoint.ledger import Ledger, manifest_numbers, read_ledger, read_manifest
from headrace.checkpoint.manifest import Outbox
from headrace.checkpoint.storage import Storage
from headrace.errors import CheckpointCorruptedError, CheckpointMismatchError, MissingFileError
from headrace.model.ids import TopicPartition

MAGIC = b"HRI1"
_log = logging.getLogger(__name__)


class Identity(NamedTuple):
    """Whose checkpoint it is. | "HRI1" | digest of the rest, 16 bytes | JSON: [id, application] |"""

    checkpoint: str
    application: str


def recover(storage: Storage, keep: int) -> Ledger:
    """What the manifests say, of which the last `keep` are kept."""
    numbers = manifest_numbers(storage)
    if not numbers:
        return Ledger()
    last = first = numbers[-1]
    there = set(numbers)
    while first - 1 in there and first > last - keep + 1:
        first -= 1
    try:
        return read_ledger(storage, last, first)
    except CheckpointCorruptedError as error:
        ledger = read_ledger(storage, last)
        _log.warning("%s. It is not needed: the last manifest is %d", error, last)
        return ledger


def read_fingerprint(storage: Storage) -> Fingerprint | None:
    """What the checkpoint presumes of the topology: internal topics must keep their numbers of partitions."""
    return recover(storage, 1).fingerprint


def read_positions(storage: Storage) -> dict[TopicPartition, tuple[int, str]]:
    """Up to where partitions were read, each with the id of its topic."""
    ledger = recover(storage, 1)
    return {at: (offset, ledger.topics.get(at.topic, "")) for at, offset in ledger.positions.items()}


# ------------------------------------------------------------------------------------------------------- whose it is
def identify(storage: Storage, application: str, ledger: Ledger) -> str:
    """The id of the checkpoint, which gets one if it is new; refuses that of another application."""
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
            f"{storage.describe()} has manifests of another checkpoint ({ledger.checkpoint}) than it says "
            f"({found.checkpoint}): files of two checkpoints were mixed"
        )
    if written is None and not storage.create(CHECKPOINT, seal(MAGIC, msgspec.json.encode(found))):
        return identify(storage, application, ledger)  # another instance begins at this very moment
    return found.checkpoint


def _read_identity(storage: Storage) -> Identity | None:
    try:
        return msgspec.json.decode(unseal(MAGIC, storage.read(CHECKPOINT), CHECKPOINT), type=Identity)
    except MissingFileError:
        return None
    except CheckpointCorruptedError as error:
        _log.warning("%s. It is written anew", error)
        storage.delete(CHECKPOINT)
        return None


# ------------------------------------------------------------------------------------------------------ whether it fits
def check_topology(ledger: Ledger, fingerprint: Fingerprint, storage: Storage) -> None:
    if ledger.fingerprint is None:
        return
    found = differences(ledger.fingerprint, fingerprint)
    if found:
        raise CheckpointMismatchError(
            f"{storage.describe()} is the checkpoint of another topology of {ledger.application!r}: "
            f"{'; '.join(found)}. "
            "Go back to the topology that wrote it, choose another application.id, or reset the application",
            differences=found,
        )


def check_topics(ledger: Ledger, log: Target, topics: Mapping[str, str]) -> None:
    """The topics that are read must be those that were read; `topics` has their ids."""
    known = sorted(ledger.topics.keys() & topics.keys())
    same = [topic for topic in known if topics[topic] == ledger.topics[topic]]
    found = [f"the topic {topic} was deleted and made anew" for topic in known if topic not in same]
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
    """The log must have been given what the checkpoint knows that it was given, and nothing that it does not know."""
    if delivered > ledger.number:
        lost = manifest_name(ledger.number + 1)
        last = f"its last manifest is {ledger.number}" if ledger.number >= 0 else "it has no manifest"
        raise CheckpointCorruptedError(
            f"the log has batch {delivered} of the application, but {storage.describe()} does not: {last}. "
            f"{lost} is missing, or this is another checkpoint, or an older copy. Put it back, or reset the "
            "application",
            file=lost,
        )
    if delivered < ledger.delivered_before:
        raise CheckpointMismatchError(
            f"the checkpoint knows that batch {ledger.delivered_before} of {ledger.application!r} was delivered, but "
            f"the log only has batch {delivered}: it is another log, or an older copy. Put it back, or reset the "
            "application"
        )


def undelivered(storage: Storage, ledger: Ledger, delivered: int) -> dict[int, tuple[Outbox, ...]]:
    """The outboxes of the batches that the log lacks."""
    batches = range(delivered + 1, ledger.number + 1)
    for batch in batches:
        if batch not in ledger.outboxes:
            ledger.outboxes[batch] = read_manifest(storage, batch)[0].outboxes
    return {batch: ledger.outboxes[batch] for batch in batches}
