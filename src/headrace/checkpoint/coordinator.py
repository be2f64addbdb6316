"""The coordinator: takes over a checkpoint, commits batches, and has them delivered, compacted and purged.

    Start   1. identify the checkpoint                     Batch   1. check that the receipts are of one run
            2. claim the next epoch                                2. create manifest N: the batch is committed
            3. check that topology and log fit, and                3. deliver its outboxes, with the marker; sinks
               carry the state over to a new topology                 get theirs in threads of their own
            4. create a manifest without a batch: from             4. merge long delta chains
               now on the previous owner cannot commit             5. delete files that no manifest needs
            5. deliver what the log lacks

One coordinator runs on a checkpoint. The manifest protects it from a second one: a manifest is created once, so only
one of two owners can commit batch N, and the other raises FencedError. The lease only makes such a conflict rare.

A replaced owner could create a manifest again that a later owner has purged. Two rules prevent that, without the lease,
because a clock that jumps ends a lease early. An owner purges nothing for `purge_delay_ms` after its takeover. An owner
that has created no manifest for as long lists the manifests after it has created the next one, and stops if a later one
exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from headrace.checkpoint import recovery
from headrace.checkpoint.backfill_checkpoint import Backfill
from headrace.checkpoint.carry_over import carry_over
from headrace.checkpoint.change_plan import ChangePlan, plan_changes, without_stores
from headrace.checkpoint.compaction import Cleaner, CompactionPolicy
from headrace.checkpoint.delivery import DeliverInShares, Delivery, DeliveryTarget
from headrace.checkpoint.files import BlobRef, manifest_name, read_blob
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.ledger import manifest_numbers, read_manifest
from headrace.checkpoint.manifest import Changelog, Manifest, Outbox, manifest_digest
from headrace.checkpoint.manifest_builder import CarriedOver, ManifestBuilder
from headrace.checkpoint.ownership import LeaseHolder, Ownership, has_exited, this_process
from headrace.checkpoint.receipt import Receipt, check_receipts
from headrace.checkpoint.rescale import Divider, Progress, Rescaled
from headrace.checkpoint.sink_delivery import SinkDeliveries, SinkOptions, SinkTarget, WriteInSlots
from headrace.checkpoint.steps import MANIFEST, OWNER, TAKEOVER, AtStep, ignore_step, step
from headrace.checkpoint.storage import Storage
from headrace.errors import CheckpointCorruptedError, FencedError, StreamsError
from headrace.model.clock import Clock, SystemClock
from headrace.model.ids import TaskId, TopicPartition
from headrace.model.threads import SYSTEM_THREADS, SerialExecutor, Threads
from headrace.state.migration import ValueMigration

_MARKER_PAUSE = 100  # ms between two reads of the marker


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOptions:
    """How a coordinator commits and cleans up."""

    exactly_once: bool = True
    max_undelivered: int = 2  # batches in delivery at a time; 0: each is delivered before `commit` returns
    background: bool = True  # merge and purge in a thread
    marker_timeout_ms: int = 5_000  # wait while the log shows an earlier marker than the checkpoint records
    lease_ms: int = 15_000  # after this time without a renewal another instance may take over
    keep: int = 10  # manifests
    purge_every: int = 20  # batches
    purge_delay_ms: int = 2_000  # after the takeover; the same for all instances of an application
    full_up_to: int = 1000  # every manifest is full while all tasks have at most this many deltas: 50 kB
    compaction: CompactionPolicy = field(default_factory=CompactionPolicy)
    share_bytes: int = 0  # a batch with outboxes of at least this size is delivered in shares
    sink_backlog: int = 100  # batches that a sink may lack before `commit` waits
    sink_backoff_ms: int = 10_000  # the longest pause before a target that is away is asked again


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitHooks:
    """What the coordinator gets from outside: time, threads, its process, and functions that it calls."""

    clock: Clock = field(default_factory=SystemClock)
    threads: Threads = SYSTEM_THREADS
    process: LeaseHolder = field(default_factory=this_process)
    has_exited: Callable[[LeaseHolder, LeaseHolder], bool] = has_exited
    at_step: AtStep = ignore_step
    # Called after every delivered batch, with its number and the positions after it.
    delivered: Callable[[int, Mapping[TopicPartition, int]], None] = lambda number, positions: None
    deliver_in_shares: DeliverInShares | None = None
    write_in_slots: WriteInSlots | None = None  # parts of a large batch for a sink
    spark: Callable[[], Any] = lambda: None  # the session, for sinks that run Spark jobs


class Coordinator:
    """Commits the batches of an application. `open` takes over the checkpoint, `commit` is called once per batch.

    `ledger` is the committed state: positions, versions of tasks, carried rows, deadlines.
    """

    def __init__(
        self,
        storage: Storage,
        log: DeliveryTarget,
        ownership: Ownership,
        builder: ManifestBuilder,
        options: CommitOptions,
        hooks: CommitHooks,
        sinks: Mapping[str, SinkTarget],
    ) -> None:
        self._storage, self._log, self._ownership = storage, log, ownership
        self._builder, self._options, self._at_step, self._hooks = builder, options, hooks.at_step, hooks
        # First the marker, then the manifests: a previous owner that still runs can only add manifests in between.
        self._delivery = Delivery(
            log,
            builder.application,
            exactly_once=options.exactly_once,
            at_step=self._at_step,
            deliver_in_shares=hooks.deliver_in_shares,
            share_bytes=options.share_bytes,
        )
        self._recover_ledger()
        self.changes: ChangePlan | None = None  # the plan that the takeover has carried out
        self._took_over_at = 0.0  # monotonic seconds, after the manifest of the takeover
        self._purge_is_due = False
        self._deliveries = SerialExecutor("headrace delivery", options.max_undelivered, hooks.threads)
        self._visible = SerialExecutor("headrace delivered", options.max_undelivered, hooks.threads)
        self.sinks = SinkDeliveries(
            storage,
            sinks,
            SinkOptions(
                background=options.max_undelivered > 0,
                backlog=options.sink_backlog,
                max_backoff_ms=options.sink_backoff_ms,
                share_bytes=options.share_bytes,
                write_in_slots=hooks.write_in_slots,
                at_step=self._at_step,
                threads=hooks.threads,
                spark=hooks.spark,
            ),
        )
        self._cleaner = Cleaner(
            storage,
            options.keep,
            options.compaction,
            background=options.background,
            at_step=self._at_step,
            threads=hooks.threads,
        )

    @classmethod
    def open(
        cls,
        storage: Storage,
        log: DeliveryTarget,
        application: str,
        fingerprint: Fingerprint,
        *,
        topics: Mapping[str, str] | None = None,
        positions: Mapping[TopicPartition, int] | None = None,
        changelogs: Mapping[str, Changelog] | None = None,
        divider: Divider | None = None,
        migrations: Mapping[str, ValueMigration] | None = None,
        backfill: Backfill | None = None,
        migrates_all: bool = False,
        sinks: Mapping[str, SinkTarget] | None = None,
        options: CommitOptions | None = None,
        hooks: CommitHooks | None = None,
    ) -> Self:
        """Takes over a checkpoint, or begins one, and delivers the batches that the log lacks.

        `topics` has the ids of the source topics, `positions` the first offsets of partitions that were never read,
        `changelogs` the topics that fill the stores of a new checkpoint, `sinks` the sinks for other systems. If the
        topology has changed, its state is carried over to the new form; `migrations` has the stores whose values can
        be migrated. `divider` divides the state of sub-topologies whose number of tasks has changed; without it such a
        change is an error. `backfill` fills new stores from history; without it they begin empty. With `migrates_all`
        values are migrated now, and not when they are read.
        """
        options, hooks = options or CommitOptions(), hooks or CommitHooks()
        ledger = recovery.recover_ledger(storage, options.keep)
        checkpoint = recovery.identify_checkpoint(storage, application, ledger)
        with step(OWNER, hooks.at_step):
            ownership = Ownership.claim(
                storage,
                hooks.clock,
                process=hooks.process,
                lease_ms=options.lease_ms,
                last_epoch=ledger.epoch,
                has_exited=hooks.has_exited,
                threads=hooks.threads,
            )
        builder = ManifestBuilder(checkpoint=checkpoint, application=application, epoch=ownership.epoch)
        coordinator = None
        try:
            coordinator = cls(storage, log, ownership, builder, options, hooks, sinks or {})
            coordinator._take_over(
                fingerprint,
                topics or {},
                positions or {},
                changelogs or {},
                migrations or {},
                divider,
                backfill,
                migrates_all,
            )
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
        migrations: Mapping[str, ValueMigration],
        divider: Divider | None,
        backfill: Backfill | None,
        migrates_all: bool,
    ) -> None:
        """Checks the checkpoint, commits a manifest without a batch to fence the previous owner, and catches up."""
        storage, number = self._storage, None
        while number != self.ledger.number:
            self._read_latest_marker()
            number = self.ledger.number
            if self.ledger.epoch > self._builder.epoch:  # a later owner has begun to commit
                raise self._fenced(number + 1)
            plan = plan_changes(
                self.ledger,
                fingerprint,
                migrations={store: migration.before for store, migration in migrations.items()},
                refusals=None if divider is None else lambda number: divider.layout_of(number).refusals,
                migrates_all=migrates_all,
            )
            recovery.check_changes(plan, storage)
            recovery.check_topics(self.ledger, self._log, topics)
            recovery.check_deliveries(self.ledger, self._delivery.last, storage)
            starts = {at: start for at, start in positions.items() if at not in self.ledger.positions}
            # If task counts change, the new form, the division and the filled stores are manifests of their own: after
            # a crash between them, the next start continues from the last one. Otherwise one manifest has everything.
            waits = bool(plan.rescaled and plan.fillable) and backfill is not None
            try:
                carried_over, rescaled = self._prepare_state(
                    plan, migrations, divider, None if waits else backfill, self.ledger.positions | starts
                )
            except CheckpointCorruptedError:
                self._recover_ledger()
                if self.ledger.number == number:
                    raise
                continue  # the previous owner has committed since, and purged what was read
            is_halfway = carried_over is not None and bool(plan.rescaled)
            form = plan.fingerprint_before_rescale if is_halfway else plan.fingerprint
            builder = replace(
                self._builder,
                clock=self.ledger.clock,
                carried_over=carried_over,
                rescaled=rescaled,
                fingerprint=without_stores(form, plan.fillable) if waits else form,
                topics=topics,
                positions=starts,
                changelogs=changelogs if number < 0 else self.ledger.changelogs,
            )
            with step(TAKEOVER, self._at_step):
                written = self._write_manifest(builder, self._was_last_at)
            if written is not None and number >= 0 and plan.has_changes and self.changes is None:
                self.changes = plan
            if written is not None and not is_halfway and not waits:
                break
            if written is not None:
                number = None
                continue
            self._recover_ledger()  # the previous owner committed first
        else:
            raise self._fenced(self.ledger.number + 1)
        self._took_over_at = self._hooks.threads.seconds()
        self._catch_up()
        try:
            self.sinks.start(self.ledger, self._log)
        except CheckpointCorruptedError as error:
            raise self._explain_damage(error) from error
        self._ownership.delete_earlier_epochs()
        self._clean_up(self.ledger.tasks, purge=True)

    def _prepare_state(
        self,
        plan: ChangePlan,
        migrations: Mapping[str, ValueMigration],
        divider: Divider | None,
        backfill: Backfill | None,
        positions: Mapping[TopicPartition, int],
    ) -> tuple[CarriedOver | None, Rescaled | None]:
        """Fills new stores, and carries the state over to a new form, or divides it if only task counts change."""
        filled = None
        if backfill is not None and plan.fillable:
            filled = backfill(plan, self.ledger, positions, self._ownership.renew)
        carried_over = carry_over(
            plan, self._storage, self.ledger, migrations,
            filled=filled, at_step=self._at_step, on_task=self._ownership.renew,
        )  # fmt: skip
        # Sub-topologies are compared by their numbers, which a new form may have changed.
        rescaled = self._divide(divider, plan.fingerprint) if divider and carried_over is None else None
        return carried_over, rescaled

    def _divide(self, divider: Divider, fingerprint: Fingerprint) -> Rescaled | None:
        """Divides the state of sub-topologies whose number of tasks has changed. The lease is renewed meanwhile."""

        def tell(progress: Progress) -> None:
            self._ownership.renew()
            divider.on_progress(progress)

        return replace(divider, on_progress=tell).divide(self._storage, self.ledger, fingerprint, self._at_step)

    def _recover_ledger(self) -> None:
        """Reads the manifests, and before them the clocks: see `_write_manifest`."""
        self._was_last_at = self._read_clocks()
        self.ledger = recovery.recover_ledger(self._storage, self._options.keep)

    def _read_latest_marker(self) -> None:
        """Reads marker and manifests again if the previous owner has delivered and committed between the two.

        A broker that has just started may show an earlier marker for a moment. If it still does so after
        `marker_timeout_ms`, the log is another one, and `check_deliveries` raises an error.
        """
        left = self._options.marker_timeout_ms  # counts pauses: time in which the process is suspended does not count
        while self._delivery.last < self.ledger.delivered:
            self._delivery.read_marker()
            if self._delivery.last >= self.ledger.delivered:
                self._recover_ledger()
            elif left > 0:
                left -= _MARKER_PAUSE
                self._hooks.threads.sleep(_MARKER_PAUSE / 1000)
            else:
                return

    def _catch_up(self) -> None:
        """Delivers the batches that the log lacks.

        The previous owner may have delivered some of them since the marker was read, and purged their files. Then the
        marker shows it, but a broker that has just started may show an earlier marker for a moment.
        """
        left = self._options.marker_timeout_ms
        while True:
            self._delivery.read_marker()
            try:
                undelivered = recovery.find_undelivered(self._storage, self.ledger, self._delivery.last)
                return self._delivery.catch_up(undelivered, partial(read_blob, self._storage))
            except CheckpointCorruptedError as error:
                found = self._explain_damage(error)
                if found is not error or left <= 0:
                    raise found from error
            left -= _MARKER_PAUSE
            self._hooks.threads.sleep(_MARKER_PAUSE / 1000)

    # --------------------------------------------------------------------------------------------------------- batches
    @property
    def number(self) -> int:
        """The number of the next batch."""
        return self.ledger.number + 1

    @property
    def delivered(self) -> int:
        """The number of the last batch that the log has."""
        return self._delivery.last

    @property
    def damaged_tasks(self) -> frozenset[TaskId]:
        """Tasks whose deltas cannot be read any more: each has to write its whole state in the next batch."""
        return self._cleaner.damaged_tasks

    def commit(
        self,
        number: int,
        clock: int,
        receipts: Sequence[Receipt],
        *,
        topics: Mapping[str, str] | None = None,
        positions: Mapping[TopicPartition, int] | None = None,
    ) -> Manifest:
        """Commits batch `number`. Blocks while `max_undelivered` batches are in delivery, or a sink is far behind.

        `topics` and `positions` are of topics that are read from the next batch on.
        """
        self.check()
        if number != self.number:
            raise self._fenced(number)
        self.sinks.await_room()
        self._ownership.renew()
        check_receipts(receipts, number, {task: head.version for task, head in self.ledger.tasks.items()})
        builder = replace(
            self._builder,
            clock=clock,
            receipts=receipts,
            merged=self._cleaner.take_merged(),
            topics=topics or {},
            positions=positions or {},
        )
        with step(MANIFEST, self._at_step):
            written = self._write_manifest(builder, self._was_last_at)
        if written is None:
            raise self._fenced(number)
        manifest, data = written
        self._deliver(number, manifest.outboxes, data)
        self.sinks.submit(number, manifest.outboxes)
        self._cleaner.mark_repaired(receipt.task for receipt in receipts if receipt.whole)
        purge = number % self._options.purge_every == 0
        self._clean_up(self.ledger.tasks if purge else [receipt.task for receipt in receipts], purge=purge)
        return manifest

    def estimate_wait(self, lead: float) -> float:
        """Estimates in how many seconds to begin the next batch, which takes `lead` seconds until it is committed.

        The log takes one batch after the other. A batch that begins earlier would only wait for its delivery, and it
        would have fewer records.
        """
        return self._deliveries.estimate_wait(lead)

    def request_snapshots(self) -> None:
        """Requests a merge of every task's state into one file, after the next batch. May be called from any thread."""
        self._cleaner.request_snapshots()

    @property
    def needs_batch(self) -> bool:
        """True when a requested snapshot waits for a manifest, so that a batch is needed even without input."""
        return self._cleaner.needs_batch

    def check(self) -> None:
        """Raises an error of delivery or compaction in the background."""
        try:
            self._deliveries.check()
            self._visible.check()
            self.sinks.check()
            self._cleaner.check()
        except CheckpointCorruptedError as error:
            raise self._explain_damage(error) from error

    def describe_owner(self, describe: Callable[[], dict[str, Any]]) -> None:
        """Sets the function that describes the owner. Its result, plain JSON, is in the lease from the next renewal."""
        self._ownership.describe = describe

    def renew_lease(self) -> None:
        """Renews the lease if a third of it has passed. Call it every few seconds, also between batches."""
        self._ownership.renew()

    def drain(self) -> None:
        """Waits until every committed batch is delivered, also to the sinks whose targets answer."""
        self._drain(None)

    def _drain(self, timeout: float | None) -> bool:
        seconds = self._hooks.threads.seconds
        end = None if timeout is None else seconds() + timeout
        is_sent = self._deliveries.drain(timeout)
        is_visible = self._visible.drain(None if end is None else max(0.0, end - seconds()))
        return self.sinks.drain(None if end is None else max(0.0, end - seconds())) and is_visible and is_sent

    def close(self, timeout: float | None = None, error: str | None = None) -> bool:
        """Delivers the committed batches and releases the lease, so that another instance can start at once.

        Returns False if `timeout` seconds were not enough: the next instance delivers the rest. `error` is why the
        application stops, for `headrace status`.
        """
        is_delivered = False
        try:
            is_delivered = self._drain(timeout)
        finally:
            self.abandon(None if is_delivered or timeout is None else 0.0)
            sinks = [report._asdict() for report in self.sinks.reports()]
            self._ownership.release({"delivered": self.delivered, "sinks": sinks, "error": error})
        return is_delivered

    def abandon(self, timeout: float | None = None) -> None:
        """Stops after the running delivery, or after `timeout` seconds. The next instance delivers the rest."""
        self._deliveries.stop(timeout)
        self._visible.stop(timeout)
        self.sinks.stop(timeout)
        self._cleaner.stop()

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

    # ----------------------------------------------------------------------------------------------------------- steps
    def _write_manifest(
        self, builder: ManifestBuilder, was_last_at: tuple[float, float]
    ) -> tuple[Manifest, bytes] | None:
        """Creates the next manifest. Returns it and its file; None if another instance has created it before.

        `was_last_at` has the clocks of a time at which no manifest followed the previous one. A later owner took over
        after that, and has purged nothing until `purge_delay_ms` later.
        """
        began = self._read_clocks()
        builder = replace(builder, delivered=self._delivery.last)
        manifest, data = builder.build(self.ledger, full_up_to=self._options.full_up_to)
        name = manifest_name(manifest.number)
        # If the answer of an object store is lost, the put is repeated, and the store reports our own file as existing.
        if not self._storage.create(name, data) and self._storage.read(name) != data:
            return None
        if self._may_be_purged(was_last_at) and manifest_numbers(self._storage)[-1] > manifest.number:
            return None
        self._was_last_at = began
        self.ledger.apply(manifest, manifest_digest(data))
        return manifest, data

    def _read_clocks(self) -> tuple[float, float]:
        """Returns the ms of two clocks: the monotonic one stands still while a machine is suspended."""
        return 1000 * self._hooks.threads.seconds(), self._hooks.clock.now()

    def _may_be_purged(self, was_last_at: tuple[float, float]) -> bool:
        """True if another instance may have taken over, and have purged the number that this one has just created."""
        passed = max(now - then for now, then in zip(self._read_clocks(), was_last_at, strict=True))
        return passed >= self._options.purge_delay_ms

    def _deliver(self, number: int, outboxes: Sequence[Outbox], data: bytes) -> None:
        """Queues the delivery of a batch. `data` is the file of its manifest."""

        def read(blob: BlobRef, what: str) -> bytes:
            if blob.file == number:
                return data[blob.offset : blob.offset + blob.size]
            return read_blob(self._storage, blob, what)

        positions = dict(self.ledger.positions)

        def deliver() -> None:
            wait = self._delivery.begin(number, outboxes, read)

            def finish() -> None:
                wait()
                self._hooks.delivered(number, positions)

            self._visible.submit(finish)

        self._deliveries.submit(deliver)

    def _clean_up(self, tasks: Iterable[TaskId], *, purge: bool) -> None:
        self.ledger.forget_outboxes(min(self._delivery.last, self.sinks.recorded(self._delivery.last)))
        self._purge_is_due |= purge
        passed = 1000 * (self._hooks.threads.seconds() - self._took_over_at)
        starts_purge = self._purge_is_due and passed >= self._options.purge_delay_ms
        self._purge_is_due &= not starts_purge
        self._cleaner.start(self.ledger, tasks, purge=starts_purge)

    def _explain_damage(self, error: CheckpointCorruptedError) -> StreamsError:
        """Returns FencedError if another instance has taken over: it purges files that this one needs. Else `error`."""
        last = manifest_numbers(self._storage)[-1]
        if last > self.ledger.number and read_manifest(self._storage, last)[0].epoch > self._builder.epoch:
            return self._fenced(last)
        return error

    def _fenced(self, number: int) -> FencedError:
        return FencedError(
            f"{manifest_name(number)} of {self._storage.describe()} cannot be written in epoch {self._builder.epoch}: "
            "another instance has taken over, and this one must stop"
        )
