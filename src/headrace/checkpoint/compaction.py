"""Keeps a checkpoint small: merges deltas into snapshots, and deletes files that no manifest needs.

The `Cleaner` does both in a background thread. A batch never waits for it:

    batch N     start()       chooses the tasks whose chains `find_merge_start` says to merge, and starts the merges
    batch N+k   take_merged() returns the finished merges; manifest N+k refers to the new files

A merge changes nothing until a manifest refers to its file. After a crash the file is garbage.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

from headrace.checkpoint.files import (
    MANIFESTS,
    NUMBERED,
    SNAPSHOTS,
    BlobRef,
    DeltaChain,
    DeltaRef,
    digest_of,
    file_number,
    manifest_number,
    read_delta,
    task_file_name,
)
from headrace.checkpoint.ledger import Ledger
from headrace.checkpoint.receipt import new_attempt
from headrace.checkpoint.steps import MERGE, PURGE, AtStep, step
from headrace.checkpoint.storage import Storage
from headrace.errors import CheckpointCorruptedError, StorageError
from headrace.model.ids import TaskId
from headrace.model.threads import SYSTEM_THREADS, SerialExecutor, Threads
from headrace.state.delta import encode_delta, merge

_STOP_TIMEOUT = 5.0  # seconds; a merge that takes longer leaves a file that no manifest refers to
_log = logging.getLogger(__name__)


# ---------------------------------------------------------------------------------------------------- when to compact
@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """The limits of a delta chain. A chain that exceeds one of them is merged."""

    max_deltas: int = 16
    min_bytes: int = 64 * 1024  # deltas after the first are no reason to merge while they are smaller than this
    max_age: int = 64  # batches for which a manifest is kept only because a delta is in it


def find_merge_start(chain: DeltaChain, policy: CompactionPolicy, number: int) -> int | None:
    """Returns the index of the first delta to merge with all later ones; None if no merge is due after batch `number`.

    As in a log-structured merge tree, a delta is merged with all later ones once they are as large as it is. So a byte
    is rewritten about once per doubling of the state, and the deltas of a chain get smaller towards its end.
    """
    if not chain:
        return None
    in_manifests = [(i, delta.blob.file) for i, delta in enumerate(chain) if isinstance(delta.blob.file, int)]
    oldest = next((i for i, file in in_manifests if number - file > policy.max_age), None)
    is_long = len(chain) > policy.max_deltas
    is_large = _size_after(chain, 0)[0] > max(chain[0].blob.size, policy.min_bytes)
    if oldest is None and not is_long and not is_large:
        return None
    start = next((i for i in range(len(chain) - 1) if _is_outweighed(chain, i)), len(chain) - 2 if is_long else oldest)
    return start if oldest is None or start is None else min(start, oldest)


def _is_outweighed(chain: DeltaChain, index: int) -> bool:
    size, entries = _size_after(chain, index)
    # A deletion has few bytes: small deltas may have deleted most entries of the first one.
    return size >= chain[index].blob.size or (index == 0 and 2 * entries >= chain[0].entries)


def _size_after(chain: DeltaChain, index: int) -> tuple[int, int]:
    """Returns the bytes and entries of the deltas after one."""
    return sum(delta.blob.size for delta in chain[index + 1 :]), sum(delta.entries for delta in chain[index + 1 :])


# ------------------------------------------------------------------------------------------------------------ merging
class MergeJob(NamedTuple):
    """Deltas of a task that are to become one, in a file of the given name."""

    task: TaskId
    deltas: DeltaChain
    from_empty: bool  # they begin the chain, so deletions need not be kept
    name: str


def merge_deltas(storage: Storage, job: MergeJob, at_step: AtStep) -> DeltaRef:
    """Merges deltas into a new file."""
    merged = merge((read_delta(storage, job.task, delta) for delta in job.deltas), from_nothing=job.from_empty)
    data = encode_delta(merged)
    with step(MERGE, at_step):
        storage.create(job.name, data)
    return DeltaRef(*merged.version, len(merged.changes), BlobRef(job.name, 0, len(data), digest_of(data)))


def replace_deltas(chain: DeltaChain, merged: DeltaChain, by: DeltaRef) -> DeltaChain:
    """Returns the chain with the merged deltas replaced by one; unchanged if they are no longer part of it."""
    for start in range(len(chain) - len(merged) + 1):
        if chain[start : start + len(merged)] == merged:
            return (*chain[:start], by, *chain[start + len(merged) :])
    return chain


def purge_files(
    storage: Storage, needed: Collection[str], up_to: int, at_step: AtStep, committed: Callable[[], int]
) -> int:
    """Deletes the files numbered up to a manifest that are not needed. Returns how many there were.

    A replaced owner that does not know it yet does no harm: the files that the new owner needs have larger numbers, or
    the old owner needs them, too. There is one exception: the new owner has purged manifest N, and the old owner has
    created it again. Then the storage has later manifests than the last one that the old owner has `committed`, and
    nothing is deleted.
    """
    names = [name for folder in NUMBERED for name in storage.names(folder)]
    last = max((number for name in names if (number := manifest_number(name)) is not None), default=-1)
    if last > committed():
        return 0
    garbage = [name for name in names if (number := file_number(name)) is not None and number <= up_to]
    garbage = [name for name in garbage if name not in needed]
    # Manifests first, so that an existing manifest never refers to a deleted file.
    garbage.sort(key=lambda name: not name.startswith(MANIFESTS))
    with step(PURGE, at_step):
        for name in garbage:
            storage.delete(name)
    return len(garbage)


# --------------------------------------------------------------------------------------------------------- background
class Cleaner:
    """Merges deltas and purges files beside the batches.

    `damaged_tasks` are those whose deltas cannot be read any more. Such a task has to write its whole state again,
    from its local copy.
    """

    def __init__(
        self,
        storage: Storage,
        keep: int,
        policy: CompactionPolicy,
        *,
        background: bool,
        at_step: AtStep,
        threads: Threads = SYSTEM_THREADS,
    ) -> None:
        self._storage, self._keep, self._policy, self._at_step = storage, keep, policy, at_step
        self._executor, self._stopping = SerialExecutor("headrace compaction", int(background), threads), False
        self._merging: dict[TaskId, MergeJob] = {}  # until a manifest refers to the file
        self._done: SimpleQueue[tuple[MergeJob, DeltaRef | None]] = SimpleQueue()
        self._purge_is_due = False
        # Snapshots on request pass three states: requested, pending (a task waits for its merge), and forced.
        self._requested = False  # `request_snapshots` was called, and `start` has not seen it yet
        self._pending: set[TaskId] = set()
        self._forced = False  # a requested merge is running, or no manifest refers to its file yet
        self.damaged_tasks: frozenset[TaskId] = frozenset()

    def start(self, ledger: Ledger, tasks: Iterable[TaskId], *, purge: bool) -> None:
        """Starts the merges that some tasks need, and a purge if it is due. Called after every manifest."""
        self._purge_is_due |= purge
        if self._requested:
            self._requested = False  # first: a request that comes from now on is kept for the next batch
            self._pending |= set(ledger.tasks)
        for task, job in list(self._merging.items()):
            if not set(job.deltas) <= set(ledger.head(task).chain):
                del self._merging[task]
        if not self._executor.is_idle:
            return
        # A merge that began before the request, and that no manifest refers to yet, lacks the latest deltas of its
        # task. The task stays pending, and the merge that gives it a snapshot starts after the next manifest.
        ready = self._pending - self._merging.keys()
        self._pending -= ready
        jobs = [
            job
            for task in dict.fromkeys((*tasks, *sorted(ready)))
            if (job := self._plan_merge(ledger, task, is_forced=task in ready)) is not None
        ]
        self._forced |= any(job.task in ready for job in jobs)
        self._merging |= {job.task: job for job in jobs}
        needed = None
        if self._purge_is_due:
            self._purge_is_due = False
            needed = ledger.needed_files(self._keep) | {job.name for job in self._merging.values()}
        if jobs or needed is not None:
            self._executor.submit(partial(self._run, jobs, needed, ledger.number, lambda: ledger.number))

    def request_snapshots(self) -> None:
        """Requests a merge of every task's state into one file. May be called from any thread."""
        self._requested = True

    @property
    def needs_batch(self) -> bool:
        """True when a requested snapshot makes no progress before the next manifest."""
        return self._executor.is_idle and (
            self._requested or bool(self._pending) or (self._forced and not self._done.empty())
        )

    def take_merged(self) -> list[tuple[MergeJob, DeltaRef]]:
        """Returns the merges that have finished since the last call."""
        self._forced &= not self._executor.is_idle
        found: list[tuple[MergeJob, DeltaRef]] = []
        while True:
            try:
                job, delta = self._done.get_nowait()
            except Empty:
                return found
            if delta is None:
                del self._merging[job.task]
            else:
                found.append((job, delta))

    def mark_repaired(self, tasks: Iterable[TaskId]) -> None:
        """Forgets the damage of tasks that have written their whole state again."""
        self.damaged_tasks -= frozenset(tasks)

    def check(self) -> None:
        """Raises an error of the background thread."""
        self._executor.check()

    def stop(self) -> None:
        self._stopping = True
        self._executor.stop(_STOP_TIMEOUT)

    def _plan_merge(self, ledger: Ledger, task: TaskId, *, is_forced: bool) -> MergeJob | None:
        chain = ledger.head(task).chain
        if task in self._merging or task in self.damaged_tasks:
            return None
        start = find_merge_start(chain, self._policy, ledger.number)
        if is_forced and chain and not (len(chain) == 1 and chain[0].blob.name.startswith(SNAPSHOTS)):
            start = 0
        if start is None:
            return None
        name = task_file_name(SNAPSHOTS, task, ledger.number + 1, new_attempt())
        return MergeJob(task, chain[start:], start == 0, name)

    def _run(
        self, jobs: Sequence[MergeJob], needed: set[str] | None, number: int, committed: Callable[[], int]
    ) -> None:
        for job in jobs:
            self._done.put((job, None if self._stopping else self._merge(job)))
        if needed is not None and not self._stopping:
            try:
                purge_files(self._storage, needed, number, self._at_step, committed)
            except StorageError as error:
                _log.warning("unneeded files of the checkpoint are not deleted yet: %s", error)

    def _merge(self, job: MergeJob) -> DeltaRef | None:
        try:
            return merge_deltas(self._storage, job, self._at_step)
        except CheckpointCorruptedError as error:
            self.damaged_tasks |= {job.task}
            _log.error("the checkpoint is damaged, task %s cannot be restored from it: %s", job.task, error)
        except StorageError as error:
            _log.warning("the deltas of task %s are not merged yet: %s", job.task, error)
        return None
