"""Standbys: copies of the state of tasks that other slots run, kept by a slot for the case that such a slot is lost.

    a batch is committed ──▶ the driver tells the slots ──▶ `follow` applies the new deltas to the slot's standbys

A thread of the slot does that beside the batches, at most every half second, so a standby is a few batches behind. It
also removes copies that no slot of this host needs any more.

When a task moves to a slot that has its standby, `take` stops following it, and the copy becomes the task's own state.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from headrace.checkpoint.files import read_delta
from headrace.checkpoint.ledger import Ledger, read_ledger, read_manifest
from headrace.checkpoint.local_copies import LocalCopies
from headrace.checkpoint.restore import READY, restore
from headrace.checkpoint.storage import Storage
from headrace.errors import CheckpointCorruptedError, CheckpointMismatchError, StreamsError
from headrace.model.ids import TaskId
from headrace.model.threads import SYSTEM_THREADS, Threads

_log = logging.getLogger(__name__)
PACE = 0.5  # seconds from one look at the checkpoint to the next: one commit to a standby then spans several batches
CLEANING = 60.0  # seconds between two looks for unused copies; fewer if unused copies are kept for less time


class Standbys:
    """The standbys of one slot. `assign` and `take` are called by its main thread, `follow` by another one."""

    def __init__(self, storage: Storage, copies: LocalCopies, threads: Threads = SYSTEM_THREADS) -> None:
        self._storage, self._copies = storage, copies
        self._ledger = Ledger()
        self._changed = threads.condition()
        self._tasks: frozenset[TaskId] = frozenset()
        self._dropped: set[TaskId] = set()  # standbys whose copies are still held
        self._current: TaskId | None = None  # the task whose copy `follow` works on
        self._numbers: dict[TaskId, int] = {}  # the last batch of every standby

    @property
    def tasks(self) -> frozenset[TaskId]:
        return self._tasks

    def assign(self, tasks: Iterable[TaskId]) -> None:
        """Sets the tasks that have a standby here. The copies of others are released by the next `follow`."""
        with self._changed:
            before, self._tasks = self._tasks, frozenset(tasks)
            self._dropped = (self._dropped | (before - self._tasks)) - self._tasks
            self._numbers = {task: number for task, number in self._numbers.items() if task in self._tasks}

    def take(self, tasks: Iterable[TaskId]) -> None:
        """Stops following tasks that this slot runs from now on: the running tasks write to their copies."""
        taken = frozenset(tasks)
        with self._changed:
            self._tasks -= taken
            self._dropped -= taken
            self._changed.wait_for(lambda: self._current not in taken)

    def follow(self, number: int) -> dict[TaskId, int]:
        """Brings all standbys to the state after a batch; returns the last batch of each.

        The files of a batch may be gone, if later files have replaced them: the standby then stays where it is until
        the next call.
        """
        self.release_dropped()
        if self._tasks and number >= 0:
            try:
                self._advance_ledger(number)
                for task in sorted(self._tasks):
                    self._follow_task(task)
            except StreamsError as error:
                self._ledger = Ledger()
                _log.info("standbys stay behind batch %d for now: %s", number, error)
        with self._changed:
            return dict(self._numbers)

    def _advance_ledger(self, number: int) -> None:
        ledger = self._ledger
        try:
            for batch in range(ledger.number + 1, number + 1):
                manifest, digest = read_manifest(self._storage, batch)
                if manifest.is_full:
                    ledger = Ledger()
                ledger.apply(manifest, digest)
        except (CheckpointCorruptedError, CheckpointMismatchError):  # manifests were deleted, or none is applied yet
            ledger = read_ledger(self._storage, number)
        ledger.forget_outboxes(ledger.number)
        ledger.needed_files(1)  # forgets what only a cleaner needs
        self._ledger = ledger

    def _follow_task(self, task: TaskId) -> None:
        head = self._ledger.head(task)
        if head.version is None or not self._begin(task):
            return
        try:
            copy = self._copies.open(task)
            restored = restore(copy, head.version, lambda: head.chain, lambda ref: read_delta(self._storage, task, ref))
            if restored.how != READY:
                copy.open()  # clears the engine's cache of recent entries, to save memory
            with self._changed:
                self._numbers[task] = head.version.number
        finally:
            self._end()

    def release_dropped(self) -> None:
        """Releases the copies of tasks that have no standby here any more."""
        while True:
            with self._changed:
                task = next(iter(self._dropped), None)
                if task is None:
                    return
                self._dropped.discard(task)
                self._current = task
            try:
                self._copies.release(task)
            finally:
                self._end()

    def _begin(self, task: TaskId) -> bool:
        with self._changed:
            if task not in self._tasks:
                return False
            self._current = task
            return True

    def _end(self) -> None:
        with self._changed:
            self._current = None
            self._changed.notify_all()


class LocalStateKeeper:
    """The thread that follows the standbys of a slot, and removes copies that are not used any more."""

    def __init__(
        self,
        standbys: Standbys,
        copies: LocalCopies,
        delay: float,
        report: Callable[[dict[TaskId, int]], None],
        threads: Threads = SYSTEM_THREADS,
    ) -> None:
        self._standbys, self._copies, self._delay, self._report = standbys, copies, delay, report
        self._seconds, self._changed = threads.seconds, threads.condition()
        self._committed = -1
        self._is_due = self._is_over = False
        self._thread = threads.start("headrace local state", self._run)

    def commit(self, number: int) -> None:
        """Has the standbys follow a committed batch. Also called after other standbys were assigned."""
        with self._changed:
            self._committed, self._is_due = number, True
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread, after the delta that it is applying."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        clean_at = self._seconds() + self._cleaning
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over or self._is_due, max(0.0, clean_at - self._seconds()))
                # This wait collects further batches, and slots that were assigned tasks claim their copies first.
                if self._changed.wait_for(lambda: self._is_over, PACE):
                    return
                number, is_due, self._is_due = self._committed, self._is_due, False
            if is_due:
                numbers = self._standbys.follow(number)
                if numbers:
                    self._report(numbers)
            if self._seconds() >= clean_at:
                clean_at = self._seconds() + self._cleaning
                self._clean()

    @property
    def _cleaning(self) -> float:
        return min(CLEANING, max(PACE, self._delay / 4))

    def _clean(self) -> None:
        self._standbys.release_dropped()
        try:
            removed = self._copies.remove_unused(self._delay, time.time())
        except (StreamsError, OSError) as error:
            _log.warning("copies of state that are not used any more were not removed: %s", error)
        else:
            if removed:
                _log.info("copies of state that are not used any more were removed: %s", ", ".join(removed))
