"""Follows the manifests of a checkpoint, and keeps a copy of the stores as of the last one.

Everybody who reads state from outside does it this way: the running application itself, replicas, the dashboard and the
command line. A follower needs nothing but the checkpoint, and the topology for what is not in it: serdes that are not
Headrace's own, and how long windows are kept.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

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
from headrace.query.catalog import Catalog, catalog_of, described_catalog
from headrace.query.disk_copy import DiskCopies
from headrace.query.history import BatchNote, History
from headrace.query.memory_copy import Copies, MemoryCopies
from headrace.query.queries import Position, Query, QueryResult
from headrace.query.views import Snapshot, view_of_last
from headrace.topology.builder import Topology
from headrace.topology.graph import Graph

KEPT = 10  # snapshots; they share what did not change
AT_ONCE = 50  # manifests that are read one by one; of more only the last
_log = logging.getLogger(__name__)


class Freshness(NamedTuple):
    """How old a copy may be: the time at which it was the last batch, and what has gone wrong since."""

    batch: int
    checked: int
    error: str | None

    def age(self, now: int) -> int:
        return max(0, now - self.checked)


class Follower:
    """A copy of the stores of an application; any number of threads may ask it.

    It is in memory, unless `copies` are `DiskCopies`. `latest`, if it is known without a look at the checkpoint, gives
    the number of the last manifest.
    """

    def __init__(
        self,
        storage: Storage,
        topology: Topology | Graph | None = None,
        config: Config | None = None,
        *,
        latest: Callable[[], int] | None = None,
        clock: Clock | None = None,
        copies: Copies | None = None,
    ) -> None:
        self._copies: Copies = copies or MemoryCopies()
        self.storage, self._config, self._latest = storage, config or Config(), latest
        self._graph = topology.graph() if isinstance(topology, Topology) else topology
        self._clock: Clock = clock or SystemClock()
        self._turn, self._news = threading.Lock(), threading.Condition()
        self._ledger, self._catalog = Ledger(), _NOTHING
        self._of: Fingerprint | None = None  # what the catalog is made of
        self._snapshots: tuple[Snapshot, ...] = ()  # the last ones; replaced as a whole, since others read it
        self._restored: Snapshot | None = None  # the last one that was asked for by number, and was not at hand
        self.freshness = Freshness(-1, 0, None)
        self.history = History()

    @classmethod
    def open(
        cls,
        checkpoint: str | Path,
        topology: Topology | Graph | None = None,
        config: Config | None = None,
        *,
        state_dir: str | Path | None = None,
    ) -> Follower:
        """Follows the checkpoint in a directory, or at the URL of an object store.

        With `state_dir` the copy is in that directory, for state that is larger than memory, and is there again the
        next time; without, it is in memory.
        """
        copies = None if state_dir is None else DiskCopies(state_dir)
        return cls(open_storage(checkpoint), topology, config, copies=copies)

    def close(self) -> None:
        """Lets go of the directory of the copy, if it has one; what was handed out of it cannot be read any more."""
        self._copies.close()

    # ------------------------------------------------------------------------------------------------- questions
    def store(self, name: str) -> Any:
        """A view by the kind of the store, for reading; every call is answered as of the last batch."""
        return view_of_last(name, self.refresh)

    def query(
        self, store: str, query: Query, *, at_least: Position | int | None = None, as_of: int | None = None
    ) -> QueryResult:
        """Answers as of the last batch, which must have reached `at_least`, or as of an earlier one that is kept."""
        snapshot = self.refresh() if as_of is None else self.at(as_of)
        if at_least is not None and not snapshot.position.reaches(at_least):
            raise PositionNotReachedError(at_least, snapshot.position)
        return snapshot.query(store, query)

    @property
    def snapshot(self) -> Snapshot:
        """The last one that was read; nothing is read for it."""
        if not self._snapshots:
            raise StoreNotReadyError(f"there is no batch yet in {self.storage.describe()}")
        return self._snapshots[-1]

    @property
    def epoch(self) -> int:
        """Which instance of the application wrote the last batch that was read."""
        return self._snapshots[-1].epoch if self._snapshots else 0

    def at(self, batch: int) -> Snapshot:
        """The state after an earlier batch."""
        last = self.refresh()
        held = self.held(batch)
        if held is not None:
            return held
        try:
            ledger = read_ledger(self.storage, batch)
            entries = MemoryCopies().take(self.storage, ledger, {})
        except StreamsError as error:
            raise BatchNotKeptError(batch, last.batch) from error
        self._restored = Snapshot.of(ledger, last.catalog, entries)
        return self._restored

    def held(self, batch: int) -> Snapshot | None:
        """The state after an earlier batch, if it is at hand."""
        snapshots = (*self._snapshots, *([self._restored] if self._restored else []))
        return next((s for s in snapshots if s.batch == batch and s.checkpoint == self.snapshot.checkpoint), None)

    # ------------------------------------------------------------------------------------------------- following
    def refresh(self) -> Snapshot:
        """Reads what was committed since; the state after the last batch."""
        if self._latest is not None and self._snapshots and self._snapshots[-1].batch >= self._latest():
            return self._snapshots[-1]
        with self._turn:
            now = self._clock.now()
            try:
                self._catch_up()
            except StreamsError as error:
                self.freshness = self.freshness._replace(error=str(error))
                raise
            self.freshness = Freshness(self._ledger.number, now, None)
        with self._news:
            self._news.notify_all()
        return self.snapshot

    def wait_for(self, batch: int, timeout: float) -> bool:
        """Whether the copy has reached a batch, now or after a while; somebody else must be following."""
        with self._news:
            return self._news.wait_for(lambda: self.freshness.batch >= batch, timeout)

    @contextmanager
    def following(self, interval: float = 0.1) -> Generator[Follower]:
        """Refreshes every `interval` seconds, in a thread of its own; what goes wrong is in `freshness`."""
        over = threading.Event()

        def follow() -> None:
            while not over.wait(interval):
                try:
                    self.refresh()
                except StoreNotReadyError:
                    pass
                except StreamsError as error:
                    _log.warning("the copy of the state stays as of batch %d: %s", self.freshness.batch, error)

        thread = threading.Thread(target=follow, name="headrace follower", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join()

    def _catch_up(self) -> None:
        while True:
            last = max(manifest_numbers(self.storage), default=-1)
            if last < 0 or (last == self._ledger.number and self._snapshots):
                return
            try:
                ledger = self._read(last)
                self._take(ledger)
            except CheckpointCorruptedError:
                # What an old manifest names may have been deleted while it was read: then there is a newer one.
                if max(manifest_numbers(self.storage), default=-1) == last:
                    raise
            else:
                return

    def _read(self, last: int) -> Ledger:
        """All that the manifests up to one say; those that follow upon what is known are noted one by one."""
        ledger = self._ledger
        if not 0 <= last - ledger.number <= AT_ONCE or ledger.number < 0:
            return self._anew(last)
        try:
            for number in range(ledger.number + 1, last + 1):
                manifest, digest = read_manifest(self.storage, number)
                self.history.add(BatchNote.of(manifest))
                if manifest.says_all:
                    ledger = Ledger()
                ledger.apply(manifest, digest)
        except (CheckpointCorruptedError, CheckpointMismatchError):
            return self._anew(last)
        else:
            return ledger

    def _anew(self, last: int) -> Ledger:
        ledger = read_ledger(self.storage, last)
        self.history.add(BatchNote.of(read_manifest(self.storage, last)[0]))
        return ledger

    def _take(self, ledger: Ledger) -> None:
        """Makes the state after the ledger's last batch the one that is answered from."""
        self._ledger = Ledger()  # until all of it is read: then nothing is known, and the next one begins anew
        earlier = [snapshot for snapshot in self._snapshots if snapshot.checkpoint == ledger.checkpoint]
        before = earlier[-1] if earlier else None
        entries = self._copies.take(self.storage, ledger, before.entries if before else {})
        if ledger.fingerprint is not None and ledger.fingerprint != self._of:
            self._catalog, self._of = self._described(ledger.fingerprint), ledger.fingerprint
        self._snapshots = (*earlier[1 - KEPT :], Snapshot.of(ledger, self._catalog, entries))
        if before is not None:
            before.forget()
        ledger.delivered(ledger.number)
        ledger.needed(1)
        self._ledger = ledger

    def _described(self, fingerprint: Fingerprint) -> Catalog:
        if self._graph is None:
            return described_catalog(fingerprint)
        return catalog_of(self._graph, self._config, fingerprint)


_NOTHING = Catalog((), unread=())
