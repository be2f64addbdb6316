"""The steps of a commit and of recovery.

Start     1. who are we: the identity of the checkpoint        Batch   1. the receipts belong together
          2. the next epoch is ours                                    2. manifest N is created: now it happened
          3. checkpoint, topology and log fit each other               3. its outboxes are delivered, with the marker
          4. a manifest without a batch: whoever was before            4. long chains of deltas are merged
             us can commit no more                                     5. files that nothing names are deleted
          5. what the log lacks is delivered
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Self

from headrace.checkpoint import recovery
from headrace.checkpoint.compaction import Cleaner
from headrace.checkpoint.delivery import Crew, Delivery, Target, nobody
from headrace.checkpoint.delta_files import CompactionPolicy
from headrace.checkpoint.files import Piece, manifest_name, read_piece
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.manifest import Changelog, Manifest, Outbox, digest_in
from headrace.checkpoint.manifest_builder import ManifestBuilder, write_manifest
from headrace.checkpoint.ownership import Holder, Ownership, is_gone, this_process
from headrace.checkpoint.receipt import Receipt, check_receipts
from headrace.checkpoint.serial_executor import SerialExecutor
from headrace.checkpoint.steps import MANIFEST, OWNER, TAKEOVER, AtStep, step, unobserved
from headrace.checkpoint.storage import Storage
from headrace.errors import FencedError
from headrace.model.clock import Clock, SystemClock
from headrace.model.ids import TaskId, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOptions:
    """How a coordinator works."""

    exactly_once: bool = True
    overlap: int = 2  # batches that may be under way to the log; 0: each is delivered before the next begins
    background: bool = True  # merge and purge beside the batches
    lease: int = 15_000  # ms without a sign of life after which another instance may take over
    keep: int = 10  # manifests
    purge_every: int = 20  # batches
    always_all: int = 1000  # links up to which every manifest says all: 50 kB
    wear: CompactionPolicy = field(default_factory=CompactionPolicy)
    large: int = 0  # bytes of outputs from which on a batch is delivered by the crew


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitHooks:
    """What is given from outside: time, who we are, and who is told of every step."""

    clock: Clock = field(default_factory=SystemClock)
    me: Holder = field(default_factory=this_process)
    gone: Callable[[Holder, Holder], bool] = is_gone
    at_step: AtStep = unobserved
    # Told after every batch that the log has: its number, and the positions after it.
    delivered: Callable[[int, Mapping[TopicPartition, int]], None] = lambda number, positions: None
    crew: Crew = nobody


class Coordinator:
    """The only one who commits batches of an application: made by `open`, used batch after batch.

    `ledger` says where everything stands: positions, versions of tasks, carried rows, what is due.
    """

    def __init__(
        self,
        storage: Storage,
        log: Target,
        ownership: Ownership,
        draft: ManifestBuilder,
        habits: CommitOptions,
        world: CommitHooks,
    ) -> None:
        self._storage, self._log, self._ownership = storage, log, ownership
        self._draft, self._habits, self._at_step, self._world = draft, habits, world.at_step, world
        # The marker first, then the manifests: these are never behind it, whoever else may still be at work.
        self._delivery = Delivery(
            log,
            draft.application,
            exactly_once=habits.exactly_once,
            at_step=self._at_step,
            crew=world.crew,
            large=habits.large,
        )
        self.ledger = recovery.recover(storage, habits.keep)
        self._deliveries = SerialExecutor("headrace delivery", habits.overlap)
        self._upkeep = Cleaner(storage, habits.keep, habits.wear, background=habits.background, at_step=self._at_step)

    @classmethod
    def open(
        cls,
        storage: Storage,
        log: Target,
        application: str,
        fingerprint: Fingerprint,
        *,
        topics: Mapping[str, str] | None = None,
        positions: Mapping[TopicPartition, int] | None = None,
        changelogs: Mapping[str, Changelog] | None = None,
        habits: CommitOptions | None = None,
        world: CommitHooks | None = None,
    ) -> Self:
        """Takes over a checkpoint, or begins one, and delivers what the log lacks.

        `topics` has the ids of the topics that are read, `positions` where to begin with partitions that are new,
        `changelogs` what to fill stores from if the whole checkpoint is new.
        """
        habits, world = habits or CommitOptions(), world or CommitHooks()
        ledger = recovery.recover(storage, habits.keep)
        checkpoint = recovery.identify(storage, application, ledger)
        with step(OWNER, world.at_step):
            ownership = Ownership.claim(
                storage, world.clock, me=world.me, lease=habits.lease, above=ledger.epoch, gone=world.gone
            )
        draft = ManifestBuilder(checkpoint=checkpoint, application=application, epoch=ownership.epoch)
        coordinator = None
        try:
            coordinator = cls(storage, log, ownership, draft, habits, world)
            coordinator._take_over(fingerprint, topics or {}, positions or {}, changelogs or {})
        except Exception:
            if coordinator is not None:
                coordinator.abandon()
            ownership.release()
            raise
        return coordinator

    def _take_over(
        self,
        fingerprint: Fingerprint,
        topics: Mapping[str, str],
        positions: Mapping[TopicPartition, int],
        changelogs: Mapping[str, Changelog],
    ) -> None:
        """Sees that everything fits, commits that nothing happened, so that nobody else can, and catches up."""
        storage, number = self._storage, None
        while number != self.ledger.number:
            number = self.ledger.number
            recovery.check_topology(self.ledger, fingerprint, storage)
            recovery.check_topics(self.ledger, self._log, topics)
            recovery.check_deliveries(self.ledger, self._delivery.last, storage)
            new = {at: start for at, start in positions.items() if at not in self.ledger.positions}
            draft = replace(self._draft, clock=self.ledger.clock, fingerprint=fingerprint, topics=topics, positions=new)
            draft = replace(draft, changelogs=changelogs if number < 0 else self.ledger.changelogs)
            with step(TAKEOVER, self._at_step):
                written = self._write(draft)
            if written is not None:
                break
            self.ledger = recovery.recover(storage, self._habits.keep)  # the one before us was quicker
        else:
            raise self._fenced(self.ledger.number + 1)
        lacking = recovery.undelivered(storage, self.ledger, self._delivery.last)
        self._delivery.catch_up(lacking, partial(read_piece, storage))
        self._ownership.forget_earlier()
        self._keep_up(self.ledger.tasks, clean=True)

    # ------------------------------------------------------------------------------------------------- a batch
    @property
    def number(self) -> int:
        """The batch that comes next."""
        return self.ledger.number + 1

    @property
    def delivered(self) -> int:
        """The last batch that the log has."""
        return self._delivery.last

    @property
    def spoilt(self) -> frozenset[TaskId]:
        """Tasks whose state can be read no more from the checkpoint: let them hand back all of it."""
        return self._upkeep.spoilt

    def commit(
        self,
        number: int,
        clock: int,
        receipts: Sequence[Receipt],
        *,
        topics: Mapping[str, str] | None = None,
        positions: Mapping[TopicPartition, int] | None = None,
    ) -> Manifest:
        """Makes batch `number` happen; waits while too many batches are under way to the log.

        `topics` and `positions` are those of topics that are read from the next batch on.
        """
        self.check()
        if number != self.number:
            raise self._fenced(number)
        self._ownership.beat()
        check_receipts(receipts, number, {task: at.version for task, at in self.ledger.tasks.items()})
        merged = self._upkeep.finished()
        draft = replace(
            self._draft, clock=clock, receipts=receipts, merged=merged, topics=topics or {}, positions=positions or {}
        )
        with step(MANIFEST, self._at_step):
            written = self._write(draft)
        if written is None:
            raise self._fenced(number)
        manifest, data = written
        self._deliver(number, manifest.outboxes, data)
        self._upkeep.heal(receipt.task for receipt in receipts if receipt.whole)
        is_time = number % self._habits.purge_every == 0
        self._keep_up(self.ledger.tasks if is_time else [receipt.task for receipt in receipts], clean=is_time)
        return manifest

    def want_snapshots(self) -> None:
        """Has the state of every task merged into one file, from the next batch on; from any thread."""
        self._upkeep.want_snapshots()

    @property
    def wants_batch(self) -> bool:
        """Whether there is work that needs a manifest, though there may be nothing to read."""
        return self._upkeep.is_waiting

    def check(self) -> None:
        """Raises what went wrong beside the batches."""
        self._deliveries.check()
        self._upkeep.check()

    def beat(self) -> None:
        """Says that this instance is alive, if it is time to; to be called every few seconds, batch or no batch."""
        self._ownership.beat()

    def drain(self) -> None:
        """Waits until the log has everything that is committed."""
        self._deliveries.drain()

    def close(self, timeout: float | None = None) -> bool:
        """Delivers what is committed, and lets another instance follow at once.

        With a timeout, in seconds, a delivery that takes longer is left to the next start; then the answer is False.
        """
        is_delivered = False
        try:
            is_delivered = self._deliveries.drain(timeout)
        finally:
            self.abandon(None if is_delivered or timeout is None else 0.0)
            self._ownership.release()
        return is_delivered

    def abandon(self, patience: float | None = None) -> None:
        """Stops at once, and leaves everything to the next instance; a delivery under way gets `patience` seconds."""
        self._deliveries.stop(patience)
        self._upkeep.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()
            self._ownership.release()

    # -------------------------------------------------------------------------------------------------- its parts
    def _write(self, draft: ManifestBuilder) -> tuple[Manifest, bytes] | None:
        """The next manifest, if nobody has made it before us."""
        manifest, data = write_manifest(
            self.ledger, replace(draft, delivered=self._delivery.last), always_all=self._habits.always_all
        )
        name = manifest_name(manifest.number)
        # An object store may have taken it though the answer was lost, and be asked again.
        if not self._storage.create(name, data) and self._storage.read(name) != data:
            return None
        self.ledger.apply(manifest, digest_in(data))
        return manifest, data

    def _deliver(self, number: int, outboxes: Sequence[Outbox], data: bytes) -> None:
        """`data` is the file of the batch's manifest."""

        def read(piece: Piece, what: str) -> bytes:
            if piece.file == number:
                return data[piece.offset : piece.offset + piece.size]
            return read_piece(self._storage, piece, what)

        positions = dict(self.ledger.positions)

        def deliver() -> None:
            self._delivery.deliver(number, outboxes, read)
            self._world.delivered(number, positions)

        self._deliveries.submit(deliver)

    def _keep_up(self, tasks: Iterable[TaskId], *, clean: bool) -> None:
        self.ledger.delivered(self._delivery.last)
        self._upkeep.start(self.ledger, tasks, clean=clean)

    def _fenced(self, number: int) -> FencedError:
        return FencedError(
            f"{manifest_name(number)} of {self._storage.describe()} is not ours to write, epoch {self._draft.epoch}: "
            "another instance has taken over, and this one must stop"
        )
