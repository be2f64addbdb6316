"""Watches the checkpoint of a run: who commits, and whether a file is deleted that is still needed.

It adds up the manifests itself, from their files, and does not use the ledger.
"""

from __future__ import annotations

from copy import copy
from typing import Any

from headrace.checkpoint.files import MANIFESTS, BlobRef, manifest_name, manifest_number
from headrace.checkpoint.manifest import Manifest, Outbox, decode_manifest
from headrace.checkpoint.sink_delivery import FOLDER as SINKS
from headrace.model.ids import TaskId, TopicPartition
from tests.simulation.log import StoredLog
from tests.simulation.programs import Commit
from tests.simulation.scheduler import Scheduler
from tests.simulation.storage import Bucket


class Monitor:
    """Hears of every file that is created or deleted."""

    def __init__(self, bucket: Bucket, stored: StoredLog, scheduler: Scheduler) -> None:
        self._bucket, self._stored, self._scheduler = bucket, stored, scheduler
        bucket.on_create, bucket.on_delete = self._created, self._deleted
        self.last_number, self.last_epoch, self._digest, self._since = -1, 0, b"", 0
        self._chains: dict[TaskId, list[BlobRef]] = {}
        self._outboxes: dict[int, tuple[Outbox, ...]] = {}
        self._carried: list[BlobRef] = []
        self._positions: dict[TopicPartition, int] = {}
        self.commits: list[Commit] = []  # by number of the manifest
        self._application = ""
        self._replaced: set[tuple[int, int]] = set()  # number and epoch of manifests that a replaced owner created
        self._history: list[dict[str, Any]] = []  # what this object had before each of the last manifests

    def _fail(self, what: str) -> None:
        self._scheduler.failures.append(AssertionError(what))

    def _created(self, name: str, data: bytes) -> None:
        number = manifest_number(name)
        if number is None:
            return
        manifest, digest = decode_manifest(data, name)
        self._scheduler.note(f"manifest {number} of epoch {manifest.epoch}")
        if number <= self.last_number and manifest.epoch < self.last_epoch:
            self._replaced.add((number, manifest.epoch))  # it was purged before; nothing may come of it
            return
        if number != self.last_number + 1:
            self._fail(f"manifest {number} follows manifest {self.last_number}")
        if manifest.epoch < self.last_epoch:
            self._fail(f"epoch {manifest.epoch} commits manifest {number} after epoch {self.last_epoch} has begun to")
        if manifest.predecessor != self._digest:
            self._fail(f"manifest {number} does not build on manifest {number - 1}")
        self._add(manifest, digest)
        missing = sorted({ref.name for ref in self._needed()} - self._bucket.objects.keys())
        if missing:
            self._fail(f"manifest {number} refers to {missing[0]}, which does not exist")

    def _add(self, manifest: Manifest, digest: bytes) -> None:
        self._history = [*self._history[-5:], {name: copy(value) for name, value in vars(self).items()}]
        self.last_number, self.last_epoch, self._digest = manifest.number, manifest.epoch, digest
        self._since, self._application = manifest.since, manifest.application
        for change in manifest.tasks:
            before = [] if change.whole else self._chains.get(change.task, [])
            self._chains[change.task] = [*before, *(delta.blob for delta in change.deltas)]
        if manifest.is_full:  # tasks of an earlier version of the program may be gone
            self._chains = {change.task: self._chains[change.task] for change in manifest.tasks}
        self._outboxes[manifest.number] = manifest.outboxes
        self._carried = [rows.blob for rows in manifest.carried]
        for topic, places in manifest.positions.items():
            self._positions |= {TopicPartition(topic, partition): offset for partition, offset in places.items()}
        ends = {at: len(self._stored.rows[at]) for at in self._positions}
        self.commits.append(Commit(manifest.epoch, dict(self._positions), ends))

    def _needed(self) -> list[BlobRef]:
        """What the last manifest builds on, and what is not delivered yet."""
        delivered = min([self._stored.delivered(self._application), *self._recorded_by_sinks()])
        self._outboxes = {number: some for number, some in self._outboxes.items() if number > delivered}
        found = [blob for chain in self._chains.values() for blob in chain] + self._carried
        return found + [outbox.blob for some in self._outboxes.values() for outbox in some]

    def _recorded_by_sinks(self) -> list[int]:
        """The last batch of the sink, as the checkpoint knows it; nothing without a sink."""
        names = [name for name in self._bucket.objects if name.startswith(SINKS)]
        return [max(int(name.rpartition("/")[2]) for name in names)] if names else []

    def _deleted(self, name: str) -> None:
        self._scheduler.note(f"{name} is deleted")
        if name.startswith(MANIFESTS):
            number = manifest_number(name)
            if number is not None and self._since <= number <= self.last_number:
                self._fail(f"{name} is deleted, but manifest {self.last_number} builds on it")
        if any(ref.name == name for ref in self._needed()):
            self._fail(f"{name} is deleted, but manifest {self.last_number} refers to it")

    def check_owner(self, number: int, epoch: int) -> None:
        """An instance goes on from a manifest that it has created: not from one that it created as a replaced owner."""
        if (number, epoch) in self._replaced:
            self._fail(f"epoch {epoch} goes on from manifest {number}, though epoch {self.last_epoch} has replaced it")

    def go_back(self) -> None:
        """The machine has stopped: a manifest that was being created may be lost, unless something came of it."""
        while self.last_number >= 0 and manifest_name(self.last_number) not in self._bucket.objects:
            lost, before = self.last_number, self._history[-1]
            if self._stored.delivered(self._application) >= lost:
                self._fail(f"{manifest_name(lost)} is lost, but its batch is delivered")
            vars(self).update(before)
            self._history = self._history[:-1] if len(self._history) > len(before["_history"]) else before["_history"]

    def has_settled(self, sources: list[str], application: str) -> bool:
        """Whether all input is read, and all output delivered."""
        if self._carried or self.last_number < 0 or self._stored.delivered(application) != self.last_number:
            return False
        topics = ((topic, self._stored.topics[topic].partitions) for topic in sources)
        places = (TopicPartition(topic, part) for topic, count in topics for part in range(count))
        return all(self._positions.get(at, 0) == len(self._stored.rows[at]) for at in places)

    def check_end(self) -> None:
        if manifest_name(self.last_number) not in self._bucket.objects:
            self._fail("the last manifest is gone")
