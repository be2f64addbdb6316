"""The follower: it reads the manifests of a checkpoint as they appear, and keeps a copy of the stores.

Every reader of state outside the tasks uses it: the running application itself, replicas, the dashboard and the command
line. A follower needs only the checkpoint. It needs the topology for what the checkpoint does not hold: the user's own
serdes, and the retention of windows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.ledger import Ledger, manifest_numbers, read_ledger, read_manifest
from headrace.checkpoint.storage import Storage, open_storage
from headrace.config import Config
from headrace.errors import (
    BatchNotKeptError,
    CheckpointCorruptedError,
    CheckpointMismatchError,
    PositionNotReachedError,
    StoreNotReadyError,
    StreamsError,
)
from headrace.model.clock import Clock, SystemClock
from headrace.model.ids import TaskId
from headrace.model.windows import milliseconds
from headrace.query.catalog import Catalog, catalog_from_checkpoint, catalog_from_topology
from headrace.query.execution import StoreEntry, execute_query, read_entries
from headrace.query.history import BatchHistory, BatchSummary
from headrace.query.persistent_map import READ_ONLY, PersistentMap
from headrace.query.queries import Position, Query, QueryResult
from headrace.query.replica import DiskReplica, MemoryReplica, Replica, TaskReplica, TaskReplicas
from headrace.runtime.environment import DroppedRecord
from headrace.state.keys import successor
from headrace.state.read_only import open_view
from headrace.state.task_state import TaskState
from headrace.topology.builder import Topology
from headrace.topology.graph import Graph

KEPT = 10  # snapshots; they share what did not change
STEP_BY_STEP = 50  # a follower that is further behind skips to the last manifest
_log = logging.getLogger(__name__)
R = TypeVar("R")


@dataclass(frozen=True)
class Snapshot:
    """The state of all stores after one batch, `position.batch`, which was committed at `clock`. It never changes."""

    position: Position
    clock: int
    checkpoint: str
    application: str
    epoch: int
    delivered: int  # the log had at least the batches up to this one when the batch was committed
    dropped: Mapping[str, int]
    drops: tuple[DroppedRecord, ...]  # the last ones of each reason
    sizes: Mapping[TaskId, int]  # bytes of each task's state in the checkpoint
    catalog: Catalog
    replicas: TaskReplicas
    fingerprint: Fingerprint | None
    _open_tasks: dict[TaskId, TaskState] = field(default_factory=dict[TaskId, TaskState])

    @classmethod
    def of(cls, ledger: Ledger, catalog: Catalog, replicas: TaskReplicas) -> Snapshot:
        return cls(
            position=Position(ledger.number, dict(ledger.positions)),
            clock=ledger.clock,
            checkpoint=ledger.checkpoint,
            application=ledger.application,
            epoch=ledger.epoch,
            delivered=ledger.delivered,
            dropped=dict(ledger.dropped),
            drops=ledger.drops,
            sizes={task: sum(delta.blob.size for delta in at.chain) for task, at in ledger.tasks.items()},
            catalog=catalog,
            replicas=replicas,
            fingerprint=ledger.fingerprint,
        )

    @cached_property
    def batch(self) -> int:
        return self.position.batch

    def store(self, name: str) -> Any:
        """Return a read-only view with the methods of the store's kind."""
        return open_view(self.catalog.describe(name).spec, lambda: self.open_stores(name), READ_ONLY)

    def query(self, store: str, query: Query[R]) -> QueryResult[R]:
        """Answer a query."""
        return QueryResult(execute_query(self.store(store), self.catalog.describe(store), query), self.position)

    def entries(self, store: str, query: Query[Any]) -> Iterator[StoreEntry]:
        """Answer a query with entries that have the same fields for every kind of store."""
        return read_entries(self.store(store), self.catalog.describe(store), query)

    def open_stores(self, name: str) -> Sequence[Any]:
        """Return a store of every task, by partition."""
        return [self._open_task(task).store(name) for task in self.catalog.describe(name).tasks]

    def count(self, store: str) -> int:
        """Count the entries of a store without reading them."""
        found = 0
        for task in self.catalog.describe(store).tasks:
            prefix = self._open_task(task).table(store).prefix
            found += self._replica(task).count(prefix, successor(prefix))
        return found

    def summarize_stores(self) -> list[dict[str, Any]]:
        """Return the description and the number of entries of every store, as plain data."""
        return [store.summarize(self.count(name)) for name, store in sorted(self.catalog.stores.items())]

    def free_memory(self) -> None:
        """Drop decoded values, because readers now use a newer snapshot."""
        self._open_tasks.clear()

    def _open_task(self, task: TaskId) -> TaskState:
        # Two threads may both open it. They open the same state, so either result serves.
        found = self._open_tasks.get(task)
        if found is None:
            found = self._open_tasks[task] = self.catalog.open_task(task, self._replica(task))
        return found

    def _replica(self, task: TaskId) -> TaskReplica:
        found = self.replicas.get(task)
        return PersistentMap() if found is None else found


def view_latest(name: str, latest: Callable[[], Snapshot]) -> Any:
    """Return a view of a store whose every call reads the snapshot that `latest` returns at that moment."""
    return open_view(latest().catalog.describe(name).spec, lambda: latest().open_stores(name), READ_ONLY)


class Freshness(NamedTuple):
    """The last batch that was read, the time when it was certainly the latest, and the error since then, if any."""

    batch: int
    checked: int
    error: str | None

    def age(self, now: int) -> int:
        return max(0, now - self.checked)


class Follower:
    """A copy of the stores of an application, which any number of threads may query.

    The copy is in memory unless `replica` is a `DiskReplica`. `latest` returns the number of the last manifest,
    where it is known without reading the checkpoint.

        follower = Follower.open("./checkpoint")
        follower.store("word-counts").get("hello")
    """

    def __init__(
        self,
        storage: Storage,
        topology: Topology | Graph | None = None,
        config: Config | None = None,
        *,
        latest: Callable[[], int] | None = None,
        clock: Clock | None = None,
        replica: Replica | None = None,
    ) -> None:
        self._replica: Replica = replica or MemoryReplica()
        self.storage, self._config, self._latest = storage, config or Config(), latest
        self._graph = topology.graph() if isinstance(topology, Topology) else topology
        self._clock: Clock = clock or SystemClock()
        self._refresh_lock, self._refreshed = threading.Lock(), threading.Condition()
        self._ledger, self._catalog = Ledger(), Catalog((), unreadable=())
        self._fingerprint: Fingerprint | None = None  # the fingerprint that the catalog was made from
        self._snapshots: tuple[Snapshot, ...] = ()  # the last ones; replaced as a whole, because other threads read it
        self._restored: Snapshot | None = None  # an old snapshot that was read again from the checkpoint
        self.freshness = Freshness(-1, 0, None)
        self.history = BatchHistory()

    @classmethod
    def open(
        cls,
        checkpoint: str | Path,
        topology: Topology | Graph | None = None,
        config: Config | None = None,
        *,
        state_dir: str | Path | None = None,
    ) -> Follower:
        """Follow the checkpoint in a directory, or at the URL of an object store.

        With `state_dir` the copy is in that directory, for state that is larger than memory; the next follower there
        continues with it. Without `state_dir` the copy is in memory.
        """
        replica = None if state_dir is None else DiskReplica(state_dir)
        return cls(open_storage(checkpoint), topology, config, replica=replica)

    def close(self) -> None:
        """Close the directory of the copy, if it has one. Snapshots and views of it cannot be read any more."""
        self._replica.close()

    # --------------------------------------------------------------------------------------------------- queries
    def store(self, name: str) -> Any:
        """Return a read-only view of a store. Every call on it reads the state after the last batch."""
        return view_latest(name, self.refresh)

    def query(
        self, store: str, query: Query[R], *, at_least: Position | int | None = None, as_of: int | None = None
    ) -> QueryResult[R]:
        """Answer from the last batch, which must have reached `at_least`, or from the earlier batch `as_of`."""
        snapshot = self.snapshot_at(as_of)
        if at_least is not None and not snapshot.position.reaches(at_least):
            raise PositionNotReachedError(at_least, snapshot.position)
        return snapshot.query(store, query)

    @property
    def snapshot(self) -> Snapshot:
        """The last snapshot that was read; this reads nothing."""
        if not self._snapshots:
            raise StoreNotReadyError(f"there is no batch yet in {self.storage.describe()}")
        return self._snapshots[-1]

    @property
    def epoch(self) -> int:
        """The epoch of the instance that wrote the last batch that was read."""
        return self._snapshots[-1].epoch if self._snapshots else 0

    def snapshot_at(self, batch: int | None) -> Snapshot:
        """Read the state after a batch that is still kept; None means the last batch."""
        last = self.refresh()
        if batch is None:
            return last
        cached = self.cached_snapshot(batch)
        if cached is not None:
            return cached
        try:
            ledger = read_ledger(self.storage, batch)
            replicas = MemoryReplica().advance(self.storage, ledger, {})
        except StreamsError as error:
            raise BatchNotKeptError(batch, last.batch) from error
        catalog, fingerprint = last.catalog, ledger.fingerprint
        if fingerprint is not None and fingerprint != last.fingerprint:  # the topology has changed since then
            catalog = self._make_catalog(fingerprint)
        self._restored = Snapshot.of(ledger, catalog, replicas)
        return self._restored

    def cached_snapshot(self, batch: int) -> Snapshot | None:
        """Return the state after an earlier batch if it is in memory."""
        snapshots = (*self._snapshots, *([self._restored] if self._restored else []))
        return next((s for s in snapshots if s.batch == batch and s.checkpoint == self.snapshot.checkpoint), None)

    # ------------------------------------------------------------------------------------------------- following
    def refresh(self) -> Snapshot:
        """Read what was committed since the last call, and return the state after the last batch."""
        if self._latest is not None and self._snapshots and self._snapshots[-1].batch >= self._latest():
            return self._snapshots[-1]
        with self._refresh_lock:
            now = self._clock.now()
            try:
                self._catch_up()
            except StreamsError as error:
                self.freshness = self.freshness._replace(error=str(error))
                raise
            self.freshness = Freshness(self._ledger.number, now, None)
        with self._refreshed:
            self._refreshed.notify_all()
        return self.snapshot

    def wait_for(self, batch: int, timeout: int | timedelta) -> bool:
        """Wait until another thread's refresh has reached a batch; return False after `timeout` (ms or timedelta)."""
        seconds = milliseconds(timeout, "the timeout") / 1000
        with self._refreshed:
            return self._refreshed.wait_for(lambda: self.freshness.batch >= batch, seconds)

    @contextmanager
    def following(self, interval: int | timedelta = 100) -> Generator[Follower]:
        """Refresh every `interval` (ms or timedelta) in a thread. `freshness` has the error if a refresh fails."""
        stop, seconds = threading.Event(), milliseconds(interval, "the interval") / 1000

        def follow() -> None:
            while not stop.wait(seconds):
                try:
                    self.refresh()
                except StoreNotReadyError:
                    pass
                except StreamsError as error:
                    _log.warning("the copy of the state stays at batch %d: %s", self.freshness.batch, error)

        thread = threading.Thread(target=follow, name="headrace follower", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()

    def _catch_up(self) -> None:
        while True:
            last = max(manifest_numbers(self.storage), default=-1)
            if last < 0 or (last == self._ledger.number and self._snapshots):
                return
            try:
                self._add_snapshot(self._read_ledger(last))
            except CheckpointCorruptedError:
                # The application may delete the files of an old manifest while it is read. A newer one exists then.
                if max(manifest_numbers(self.storage), default=-1) == last:
                    raise
            else:
                return

    def _read_ledger(self, last: int) -> Ledger:
        """Read the manifests up to `last`, and add each to the history if they continue the known ones."""
        ledger = self._ledger
        if ledger.number >= 0 and 0 <= last - ledger.number <= STEP_BY_STEP:
            try:
                for number in range(ledger.number + 1, last + 1):
                    manifest, digest = read_manifest(self.storage, number)
                    self.history.add(BatchSummary.of(manifest))
                    if manifest.is_full:
                        ledger = Ledger()
                    ledger.apply(manifest, digest)
            except (CheckpointCorruptedError, CheckpointMismatchError):
                pass  # the manifests do not continue the known ones: start from the last one
            else:
                return ledger
        ledger = read_ledger(self.storage, last)
        self.history.add(BatchSummary.of(read_manifest(self.storage, last)[0]))
        return ledger

    def _add_snapshot(self, ledger: Ledger) -> None:
        """Advance the replica to the ledger's last batch, and make that the latest snapshot."""
        self._ledger = Ledger()  # if reading fails half way, nothing is known, and the next refresh starts from scratch
        earlier = [snapshot for snapshot in self._snapshots if snapshot.checkpoint == ledger.checkpoint]
        before = earlier[-1] if earlier else None
        replicas = self._replica.advance(self.storage, ledger, before.replicas if before else {})
        if ledger.fingerprint is not None and ledger.fingerprint != self._fingerprint:
            self._catalog, self._fingerprint = self._make_catalog(ledger.fingerprint), ledger.fingerprint
        self._snapshots = (*earlier[1 - KEPT :], Snapshot.of(ledger, self._catalog, replicas))
        if before is not None:
            before.free_memory()
        ledger.forget_outboxes(ledger.number)
        ledger.needed_files(1)
        self._ledger = ledger

    def _make_catalog(self, fingerprint: Fingerprint) -> Catalog:
        if self._graph is None:
            return catalog_from_checkpoint(fingerprint)
        return catalog_from_topology(self._graph, self._config, fingerprint)
