"""Deltas that become one, and files that nobody needs any more.

What keeps a checkpoint small, beside the batches.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

from headrace.checkpoint.delta_files import Chain, CompactionPolicy, Link, read_delta, worn
from headrace.checkpoint.files import MANIFESTS, NUMBERED, SNAPSHOTS, Piece, attempt_name, digest_of, number_of
from headrace.checkpoint.ledger import Ledger
from headrace.checkpoint.receipt import new_attempt
from headrace.checkpoint.serial_executor import SerialExecutor
from headrace.checkpoint.steps import MERGE, PURGE, AtStep, step
from headrace.checkpoint.storage import Storage
from headrace.errors import CheckpointCorruptedError, StorageError
from headrace.model.ids import TaskId
from headrace.state.delta import encode_delta, merge


class Merge(NamedTuple):
    """Links of a task that are to become one, in a file of the given name."""

    task: TaskId
    links: Chain
    from_nothing: bool  # they begin the chain: what they delete leaves no trace
    name: str


def merge_deltas(storage: Storage, job: Merge, at_step: AtStep) -> Link:
    """Merges; nothing changes until a manifest names the new file."""
    merged = merge((read_delta(storage, job.task, link) for link in job.links), from_nothing=job.from_nothing)
    data = encode_delta(merged)
    with step(MERGE, at_step):
        storage.create(job.name, data)
    piece = Piece(job.name, 0, len(data), digest_of(data))
    return Link(*merged.version, len(merged.changes), piece)


def purge(storage: Storage, needed: Collection[str], upto: int, at_step: AtStep) -> int:
    """Deletes the files with the numbers of manifests up to one that nothing needs; says how many.

    Safe for one who does not know that he is not the owner any more: what a later owner needs has a larger number, or
    was needed before.
    """
    names = [name for folder in NUMBERED for name in storage.names(folder)]
    garbage = [name for name in names if (number := number_of(name)) is not None and number <= upto]
    garbage = [name for name in garbage if name not in needed]
    # Manifests first: one that is there must find what it names.
    garbage.sort(key=lambda name: not name.startswith(MANIFESTS))
    with step(PURGE, at_step):
        for name in garbage:
            storage.delete(name)
    return len(garbage)


_PATIENCE = 5.0  # seconds; a merge that goes on for longer makes a file that nobody will name
_log = logging.getLogger(__name__)


class Cleaner:
    """Merges deltas and deletes files; a batch never waits for it.

    What was merged is taken up by the next manifest. A task is `spoilt` if its deltas cannot be read any more.
    """

    def __init__(
        self, storage: Storage, keep: int, wear: CompactionPolicy, *, background: bool, at_step: AtStep
    ) -> None:
        self._storage, self._keep, self._wear, self._at_step = storage, keep, wear, at_step
        self._lane, self._stopping = SerialExecutor("headrace upkeep", int(background)), False
        self._merging: dict[TaskId, Merge] = {}  # until a manifest names the file
        self._done: SimpleQueue[tuple[Merge, Link | None]] = SimpleQueue()
        self._clean = False
        self._wanted = False  # `want_snapshots` was called, and `start` has not seen it yet
        self._owed: set[TaskId] = set()  # tasks that were promised a snapshot whose merge has not begun
        self._forced = False  # the lane merges for a promised snapshot, or a manifest has yet to name the result
        self.spoilt: frozenset[TaskId] = frozenset()

    def start(self, ledger: Ledger, tasks: Iterable[TaskId], *, clean: bool) -> None:
        """Merges the chains of some tasks, as far as they need it, and deletes what is not needed if it is time to."""
        self._clean |= clean
        if self._wanted:
            self._wanted = False  # before the tasks are read: a wish that comes now is kept for the next batch
            self._owed |= set(ledger.tasks)
        for task in [
            task for task, job in self._merging.items() if not set(job.links) <= set(ledger.standing(task).chain)
        ]:
            del self._merging[task]
        if not self._lane.idle:
            return
        # A merge that began before the wish, and that no manifest names yet, lacks the latest deltas of its task:
        # the task stays owed, and the merge that gives it a snapshot begins after the next manifest.
        ready = self._owed - self._merging.keys()
        self._owed -= ready
        jobs = [
            job
            for task in dict.fromkeys((*tasks, *sorted(ready)))
            if (job := self._job(ledger, task, anyway=task in ready)) is not None
        ]
        self._forced |= any(job.task in ready for job in jobs)
        self._merging |= {job.task: job for job in jobs}
        if jobs or self._clean:
            needed = ledger.needed(self._keep) | {job.name for job in self._merging.values()} if self._clean else None
            self._clean = False
            self._lane.submit(partial(self._run, jobs, needed, ledger.number))

    def want_snapshots(self) -> None:
        """Has the state of every task merged into one file, whether it needs it or not; from any thread."""
        self._wanted = True

    @property
    def is_waiting(self) -> bool:
        """True when a wanted snapshot makes no progress before the next manifest."""
        return self._lane.idle and (self._wanted or bool(self._owed) or (self._forced and not self._done.empty()))

    def finished(self) -> list[tuple[Merge, Link]]:
        """What was merged meanwhile."""
        self._forced &= not self._lane.idle  # what is done is taken now
        found: list[tuple[Merge, Link]] = []
        while True:
            try:
                job, link = self._done.get_nowait()
            except Empty:
                return found
            if link is None:
                del self._merging[job.task]
            else:
                found.append((job, link))

    def heal(self, tasks: Iterable[TaskId]) -> None:
        """All of their state was written anew."""
        self.spoilt -= frozenset(tasks)

    def check(self) -> None:
        self._lane.check()

    def stop(self) -> None:
        self._stopping = True
        self._lane.stop(_PATIENCE)

    def _job(self, ledger: Ledger, task: TaskId, *, anyway: bool) -> Merge | None:
        chain = ledger.standing(task).chain
        if task in self._merging or task in self.spoilt:
            return None
        start = worn(chain, self._wear, ledger.number)
        if anyway and chain and not (len(chain) == 1 and chain[0].piece.name.startswith(SNAPSHOTS)):
            start = 0
        if start is None:
            return None
        name = attempt_name(SNAPSHOTS, task, ledger.number + 1, new_attempt())
        return Merge(task, chain[start:], start == 0, name)

    def _run(self, jobs: Sequence[Merge], needed: set[str] | None, upto: int) -> None:
        for job in jobs:
            self._done.put((job, None if self._stopping else self._merge(job)))
        if needed is not None and not self._stopping:
            try:
                purge(self._storage, needed, upto, self._at_step)
            except StorageError as error:
                _log.warning("files that are not needed any more stay for now: %s", error)

    def _merge(self, job: Merge) -> Link | None:
        try:
            return merge_deltas(self._storage, job, self._at_step)
        except CheckpointCorruptedError as error:
            self.spoilt |= {job.task}
            _log.error("the checkpoint is damaged, task %s cannot be restored from it: %s", job.task, error)
        except StorageError as error:
            _log.warning("the deltas of task %s are not merged for now: %s", job.task, error)
        return None
