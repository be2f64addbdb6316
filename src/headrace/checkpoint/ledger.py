"""The ledger: all manifests up to a batch, added up. It knows the state of every task, and which files are needed.

    ledger = read_ledger(storage, 12)      # the checkpoint as of batch 12
    ledger.apply(manifest, digest)         # batch 13

Every reader of a checkpoint uses it: the coordinator, the tasks that restore state, and queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.checkpoint.files import MANIFESTS, DeltaChain, manifest_name, manifest_number
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.manifest import Carried, Changelog, Manifest, Outbox, TaskChange, decode_manifest
from headrace.checkpoint.storage import Storage
from headrace.errors import CheckpointCorruptedError, CheckpointMismatchError, MissingFileError
from headrace.model.ids import TaskId, TopicPartition
from headrace.runtime.environment import DroppedRecord
from headrace.state.engine import Version


class TaskHead(NamedTuple):
    """The last committed state of a task: its delta chain, and its next wall-clock deadline."""

    chain: DeltaChain = ()
    due: int | None = None

    @property
    def version(self) -> Version | None:
        return self.chain[-1].version if self.chain else None


class Ledger:
    """The manifests up to `number`, added up. `number` is -1 before the first one."""

    def __init__(self) -> None:
        self.number, self.digest, self.since = -1, b"", -1
        self.checkpoint = self.application = ""
        self.epoch, self.clock = 0, 0
        self.delivered = -1  # the last delivered batch, as the last manifest has it
        self.fingerprint: Fingerprint | None = None
        self.tasks: dict[TaskId, TaskHead] = {}
        self.positions: dict[TopicPartition, int] = {}
        self.stops: dict[TopicPartition, int] = {}  # offsets at which reading ends
        self.topics: dict[str, str] = {}
        self.carried: tuple[Carried, ...] = ()
        self.dropped: Mapping[str, int] = {}
        self.drops: tuple[DroppedRecord, ...] = ()  # the last ones of each reason
        self.changelogs: Mapping[str, Changelog] = {}  # by store: what the first batch fills it from
        self.outboxes: dict[int, tuple[Outbox, ...]] = {}  # by batch, of those that may not be delivered yet
        self.listed_deltas = 0  # in the manifests after the last full one
        self._since: dict[int, int] = {}
        self._retired: list[tuple[int, str]] = []  # files, with the first manifest that no longer refers to them

    def head(self, task: TaskId) -> TaskHead:
        return self.tasks.get(task, TaskHead())

    def carried_to(self, task: TaskId) -> list[Carried]:
        return [rows for rows in self.carried if rows.target == task]

    @property
    def due(self) -> int | None:
        """The next wall-clock deadline of any task."""
        return min((task.due for task in self.tasks.values() if task.due is not None), default=None)

    @property
    def delta_count(self) -> int:
        return sum(len(task.chain) for task in self.tasks.values())

    def apply(self, manifest: Manifest, digest: bytes) -> None:
        """Adds the next manifest. The first one that is added may be any full manifest."""
        if self.number < 0 and not manifest.is_full:
            raise _misplaced(manifest, f"it presumes manifest {manifest.since}, which is not there")
        if self.number >= 0 and (manifest.number, manifest.predecessor) != (self.number + 1, self.digest):
            raise _misplaced(manifest, f"it does not follow the manifest {self.number} that is there")
        carried = {rows.blob.name for rows in self.carried} - {rows.blob.name for rows in manifest.carried}
        self._retire(carried, manifest.number)
        self.number, self.digest, self.since = manifest.number, digest, manifest.since
        self.checkpoint, self.application, self.epoch = manifest.checkpoint, manifest.application, manifest.epoch
        self.clock, self.carried, self.dropped = manifest.clock, manifest.carried, manifest.dropped
        self.fingerprint, self.delivered = manifest.fingerprint or self.fingerprint, manifest.delivered
        self.changelogs, self.drops = manifest.changelogs, manifest.drops or self.drops
        self.outboxes[manifest.number] = manifest.outboxes
        self._since[manifest.number] = manifest.since
        for change in manifest.tasks:
            self._apply_change(change)
        if manifest.is_full:
            self.stops = {TopicPartition(t, p): at for t, some in manifest.stops.items() for p, at in some.items()}
            self._drop_tasks(self.tasks.keys() - {change.task for change in manifest.tasks})
        self.positions |= {TopicPartition(t, p): at for t, some in manifest.positions.items() for p, at in some.items()}
        self.topics |= manifest.topics
        listed = sum(len(change.deltas) for change in manifest.tasks)
        self.listed_deltas = 0 if manifest.is_full else self.listed_deltas + listed

    def _apply_change(self, change: TaskChange) -> None:
        before = self.head(change.task).chain
        chain = change.deltas if change.whole else before + change.deltas
        if change.whole and before and chain[: len(before)] != before:
            self._retire({delta.blob.name for delta in before} - {delta.blob.name for delta in chain}, self.number)
        self.tasks[change.task] = TaskHead(chain, change.due)

    def _drop_tasks(self, tasks: Iterable[TaskId]) -> None:
        """Forgets tasks that a full manifest does not have: the topology has changed."""
        for task in tasks:
            self._retire({delta.blob.name for delta in self.tasks.pop(task).chain}, self.number)

    # -------------------------------------------------------------------------------------------------- needed files
    def forget_outboxes(self, up_to: int) -> None:
        """Drops the outboxes of delivered batches."""
        for batch in [batch for batch in self.outboxes if batch <= up_to]:
            self._retire({outbox.blob.name for outbox in self.outboxes.pop(batch)}, batch + 1)

    def needed_files(self, keep: int) -> set[str]:
        """Returns the names of the last `keep` manifests, of those that they build on, and of their files."""
        first = max(0, self.number - keep + 1)
        self._retired = [(at, name) for at, name in self._retired if at > first]
        self._since = {number: since for number, since in self._since.items() if number >= first}
        manifests = range(min([*self._since.values(), *self.outboxes, first]), self.number + 1)
        blobs = [delta.blob for task in self.tasks.values() for delta in task.chain]
        blobs += [rows.blob for rows in self.carried]
        blobs += [outbox.blob for some in self.outboxes.values() for outbox in some]
        return {*map(manifest_name, manifests), *(blob.name for blob in blobs), *(name for _, name in self._retired)}

    def _retire(self, names: Iterable[str], at: int) -> None:
        self._retired += [(at, name) for name in names]


# ------------------------------------------------------------------------------------------------- reading manifests
def manifest_numbers(storage: Storage) -> list[int]:
    """Returns the numbers of the existing manifests. There are gaps among the oldest: unneeded ones are deleted."""
    found = (manifest_number(name) for name in storage.names(MANIFESTS))
    return sorted(number for number in found if number is not None)


def read_manifest(storage: Storage, number: int) -> tuple[Manifest, bytes]:
    """Returns a manifest and its digest."""
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
    """Adds up the manifests up to `number`, from the last full one, or from the full one that `first` builds on."""
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
