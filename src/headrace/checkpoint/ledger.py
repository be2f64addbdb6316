"""What the manifests up to one say together: where every task stands, and which files are needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.checkpoint.delta_files import Chain
from headrace.checkpoint.files import MANIFESTS, Piece, manifest_name, manifest_number
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.manifest import Carried, Changelog, Manifest, Outbox, TaskChange, decode_manifest
from headrace.checkpoint.storage import Storage
from headrace.errors import CheckpointCorruptedError, CheckpointMismatchError, MissingFileError
from headrace.model.ids import TaskId, TopicPartition
from headrace.state.engine import Version


class TaskHead(NamedTuple):
    """Where a task stands: what its state is made of, and when the wall clock next has work for it."""

    chain: Chain = ()
    due: int | None = None

    @property
    def version(self) -> Version | None:
        return self.chain[-1].version if self.chain else None


class Ledger:
    """The manifests up to `number`, added up. Before the first one it is -1."""

    def __init__(self) -> None:
        self.number, self.digest, self.since = -1, b"", -1
        self.checkpoint = self.application = ""
        self.epoch, self.clock, self.delivered_before = 0, 0, -1
        self.fingerprint: Fingerprint | None = None
        self.tasks: dict[TaskId, TaskHead] = {}
        self.positions: dict[TopicPartition, int] = {}
        self.topics: dict[str, str] = {}
        self.carried: tuple[Carried, ...] = ()
        self.dropped: Mapping[str, int] = {}
        self.changelogs: Mapping[str, Changelog] = {}  # by store: what the first batch fills them from
        self.outboxes: dict[int, tuple[Outbox, ...]] = {}  # of batches that may not have been delivered yet
        self.said = 0  # links in manifests since the one that says all
        self._since: dict[int, int] = {}
        self._retired: list[tuple[int, str]] = []  # files, and the first manifest that does not name them any more

    # -------------------------------------------------------------------------------------------------- reading
    def standing(self, task: TaskId) -> TaskHead:
        return self.tasks.get(task, TaskHead())

    def carried_to(self, task: TaskId) -> list[Carried]:
        return [rows for rows in self.carried if rows.target == task]

    @property
    def due(self) -> int | None:
        """When the wall clock next has work for any task."""
        return min((task.due for task in self.tasks.values() if task.due is not None), default=None)

    @property
    def links(self) -> int:
        return sum(len(task.chain) for task in self.tasks.values())

    # ------------------------------------------------------------------------------------------------- adding up
    def apply(self, manifest: Manifest, digest: bytes) -> None:
        """Adds the next manifest; the very first may be any that says all."""
        if self.number < 0 and not manifest.says_all:
            raise _misplaced(manifest, f"it presumes manifest {manifest.since}, which is not there")
        if self.number >= 0 and (manifest.number, manifest.predecessor) != (self.number + 1, self.digest):
            raise _misplaced(manifest, f"it does not follow the manifest {self.number} that is there")
        carried = {rows.piece.name for rows in self.carried} - {rows.piece.name for rows in manifest.carried}
        self._retire(carried, manifest.number)
        self.number, self.digest, self.since = manifest.number, digest, manifest.since
        self.checkpoint, self.application, self.epoch = manifest.checkpoint, manifest.application, manifest.epoch
        self.clock, self.carried, self.dropped = manifest.clock, manifest.carried, manifest.dropped
        self.fingerprint, self.delivered_before = manifest.fingerprint or self.fingerprint, manifest.delivered
        self.changelogs = manifest.changelogs
        self.outboxes[manifest.number] = manifest.outboxes
        self._since[manifest.number] = manifest.since
        for change in manifest.tasks:
            self._change(change)
        self.positions |= {TopicPartition(t, p): at for t, some in manifest.positions.items() for p, at in some.items()}
        self.topics |= manifest.topics
        self.said = 0 if manifest.says_all else self.said + sum(len(change.links) for change in manifest.tasks)

    def _change(self, change: TaskChange) -> None:
        before = self.standing(change.task).chain
        chain = change.links if change.whole else before + change.links
        if change.whole and before and chain[: len(before)] != before:
            self._retire({link.piece.name for link in before} - {link.piece.name for link in chain}, self.number)
        self.tasks[change.task] = TaskHead(chain, change.due)

    # --------------------------------------------------------------------------------------------- files it needs
    def delivered(self, number: int) -> None:
        """Forgets the outboxes up to a batch."""
        for batch in [batch for batch in self.outboxes if batch <= number]:
            self._retire({outbox.piece.name for outbox in self.outboxes.pop(batch)}, batch + 1)

    def needed(self, keep: int) -> set[str]:
        """The files that the last `keep` manifests name, and these manifests."""
        first = max(0, self.number - keep + 1)
        self._retired = [(at, name) for at, name in self._retired if at > first]
        self._since = {number: since for number, since in self._since.items() if number >= first}
        manifests = range(min([*self._since.values(), *self.outboxes, first]), self.number + 1)
        pieces = [link.piece for task in self.tasks.values() for link in task.chain]
        pieces += [rows.piece for rows in self.carried]
        pieces += [outbox.piece for some in self.outboxes.values() for outbox in some]
        return {*map(manifest_name, manifests), *names_of(pieces), *(name for _, name in self._retired)}

    def _retire(self, names: Iterable[str], at: int) -> None:
        self._retired += [(at, name) for name in names]


def names_of(pieces: Iterable[Piece]) -> set[str]:
    return {manifest_name(file) if isinstance(file, int) else file for file in {piece.file for piece in pieces}}


# ---------------------------------------------------------------------------------------------------------- storage
def manifest_numbers(storage: Storage) -> list[int]:
    """The manifests that are there; among the oldest some are missing, as far as nothing in them is needed."""
    found = (manifest_number(name) for name in storage.names(MANIFESTS))
    return sorted(number for number in found if number is not None)


def read_manifest(storage: Storage, number: int) -> tuple[Manifest, bytes]:
    """A manifest and its digest."""
    name = manifest_name(number)
    try:
        manifest, digest = decode_manifest(storage.read(name), name)
    except MissingFileError:
        raise CheckpointCorruptedError(
            f"the manifest {name} is missing in {storage.describe()}: put the file back from a copy", file=name
        ) from None
    if manifest.number != number:
        raise CheckpointCorruptedError(f"the file {name} holds manifest {manifest.number}: put it back", file=name)
    return manifest, digest


def read_ledger(storage: Storage, number: int, first: int | None = None) -> Ledger:
    """All that the manifests up to one say; with those from `first` on, as far as they are there."""
    start = read_manifest(storage, number)[0].since
    if first is not None and first < start:
        start = min(start, read_manifest(storage, first)[0].since)
    ledger = Ledger()
    for batch in range(start, number + 1):
        ledger.apply(*read_manifest(storage, batch))
    return ledger


def _misplaced(manifest: Manifest, why: str) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        f"the manifest {manifest_name(manifest.number)} is out of place: {why}. Files of two checkpoints, or of two "
        "copies of one, were mixed: put back those that belong together"
    )
