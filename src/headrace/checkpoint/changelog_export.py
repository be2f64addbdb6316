"""Changelog topics of Kafka Streams: their names and settings, reading them, and exporting stores to them.

`ChangelogExporter` writes the state of an application to the topics where Kafka Streams looks for it, so that a Java
application can continue. (`spark.changelogs` fills stores from such topics.) It writes only the records that a topic
lacks, and deletes from the topic what is not in the store. So an export can be repeated, also after a failure, and a
Java application that still has its own copy on disk gets exactly the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple

from headrace.checkpoint import recovery
from headrace.checkpoint.files import read_delta
from headrace.checkpoint.fingerprint import Fingerprint, compute_fingerprint
from headrace.checkpoint.ledger import Ledger
from headrace.checkpoint.ownership import Ownership, this_process
from headrace.checkpoint.restore import MemoryEngineProvider, restore
from headrace.checkpoint.storage import Storage
from headrace.config import Config
from headrace.errors import StreamsError
from headrace.log.protocol import Log, Records
from headrace.model.clock import SystemClock
from headrace.model.ids import TaskId, TopicPartition
from headrace.runtime.serdes import resolved, serdes_of
from headrace.serde.internal import UNDECLARED
from headrace.state.changelog_records import Row, entries_of, rows_of
from headrace.state.spec import BufferKind, Kind, SessionKind, SubscriptionKind, VersionedKind, WindowKind
from headrace.state.task_state import TaskState
from headrace.topology.graph import Graph
from headrace.topology.subtopologies import plan

DAY = 86_400_000  # ms: Kafka Streams' default of windowstore.changelog.additional.retention.ms
MAX_MS = 2**63 - 1  # of a Kafka setting


def changelog_name(application: str, store: str) -> str:
    """
    >>> changelog_name("shop", "totals")
    'shop-totals-changelog'
    """
    return f"{application}-{store}-changelog"


def changelog_settings(kind: Kind, additional_retention: int = DAY) -> dict[str, str]:
    """Returns the settings with which Kafka Streams creates the topic. Windows stay in it longer than in the store.

    >>> changelog_settings(SessionKind(1000))
    {'cleanup.policy': 'compact,delete', 'retention.ms': '86401000'}
    """
    match kind:
        case WindowKind(retention=retention) | SessionKind(retention=retention):
            return {
                "cleanup.policy": "compact,delete",
                "retention.ms": str(min(retention + additional_retention, MAX_MS)),
            }
        case VersionedKind(history=history):
            return {"cleanup.policy": "compact", "min.compaction.lag.ms": str(min(history + DAY, MAX_MS))}
        case _:
            return {"cleanup.policy": "compact"}


def why_not_portable(graph: Graph, config: Config, store: str) -> str | None:
    """Returns why Kafka Streams and Headrace cannot exchange the state of a store; None if they can."""
    if isinstance(graph.stores[store].kind, BufferKind):
        return "it holds back records in a form of its own (suppress, an outer join, or a join with grace)"
    if isinstance(graph.stores[store].kind, SubscriptionKind):
        return "it remembers the subscriptions of a foreign-key join in a form of its own"
    if any(getattr(node, "on_close", False) and getattr(node, "store", "") == store for node in graph.nodes.values()):
        return "nothing in it says which of its windows were emitted when they closed"
    if resolved(graph.stores[store], serdes_of(config)).value is UNDECLARED:
        return "its values have no serde, so that Headrace keeps them in a form of its own (declare one: value=...)"
    return None


def read_changelog(log: Log, topic: str, partition: int, end: int) -> Iterator[Row]:
    """Yields the records of a partition up to an offset. For offset 0 the partition need not exist."""
    at = TopicPartition(topic, partition)
    start = 0 if end == 0 else log.extents([topic])[at].earliest
    for chunk in log.read(at, start, end) if start < end else ():
        for _, key, value, timestamp, _ in chunk.rows():
            if key is not None:
                yield key, value, timestamp


_LEASE_MS = 15_000
_CHUNK = 5_000  # records that are appended at a time


class Export(NamedTuple):
    """The counts of an export to some partitions of a changelog. A dry run counts what it would write."""

    store: str
    topic: str
    partitions: int
    entries: int  # in the store
    written: int
    deleted: int


OnExport = Callable[[Export], None]


@dataclass(frozen=True)
class ChangelogExporter:
    """Exports the state of the last manifest. It owns the checkpoint while it runs, so that no batch is committed."""

    storage: Storage
    log: Log
    application: str
    graph: Graph
    config: Config

    @cached_property
    def ledger(self) -> Ledger:
        """The last state. Read it only while the exporter owns the checkpoint."""
        return recovery.recover_ledger(self.storage, 1)

    def run(self, *, dry_run: bool = False) -> Iterator[Export]:
        """Exports partition by partition. A dry run writes nothing."""
        with self._own_checkpoint() as owner:
            fingerprint = self._check_state()
            self._check_portable(fingerprint)
            if not dry_run:  # first, because the log rejects it while a Java application runs
                self.log.commit(self.application, self.ledger.positions)
            topics = self.log.topics()
            for number, partition, stores in self._tasks(fingerprint, portable=True):
                state = self._open_state(TaskId(number, partition), stores)
                tasks = self._task_counts(fingerprint)[number]
                for store in stores:
                    topic = changelog_name(self.application, store)
                    existing = topics.get(topic)
                    if existing is not None and existing.partitions != tasks:
                        raise StreamsError(
                            f"the topic {topic} has {existing.partitions} partitions, but {tasks} tasks have the store "
                            f"{store!r}: delete the topic, and the export creates it again"
                        )
                    if existing is None and partition == 0 and not dry_run:
                        additional = self.config.windowstore_changelog_additional_retention_ms
                        settings = changelog_settings(self.graph.stores[store].kind, additional)
                        self.log.create_topic(topic, tasks, settings)
                    yield self._export_partition(
                        owner, state, store, partition, is_new=existing is None, dry_run=dry_run
                    )

    @contextmanager
    def _own_checkpoint(self) -> Generator[Ownership]:
        before = recovery.recover_ledger(self.storage, 1)
        if before.number < 0:
            raise StreamsError(f"there is no state in {self.storage.describe()} to write to changelogs")
        recovery.identify_checkpoint(self.storage, self.application, before)
        owner = Ownership.claim(
            self.storage, SystemClock(), process=this_process(), lease_ms=_LEASE_MS, last_epoch=before.epoch
        )
        try:
            yield owner
        finally:
            owner.release()

    # --------------------------------------------------------------------------------------------------------- checks
    def _check_state(self) -> Fingerprint:
        """Returns the fingerprint of the checkpoint. Raises unless the topology fits and every batch is delivered."""
        ledger = self.ledger
        if ledger.fingerprint is None:
            raise StreamsError(f"{self.application!r} was reset and has not run since: there is no state to write")
        tasks, partitions = self._task_counts(ledger.fingerprint), ledger.fingerprint.partitions
        planned = plan(self.graph)
        counts = {number: tasks.get(number, 0) for number in planned.stages}
        own = compute_fingerprint(self.graph, planned, self.config, tasks=counts, partitions=partitions)
        recovery.check_topology(ledger, own, self.storage)
        undelivered = recovery.find_undelivered(self.storage, ledger, self.log.delivered(self.application))
        if ledger.carried or ledger.changelogs or any(undelivered.values()):
            raise StreamsError(
                f"{self.application!r} was stopped before it had processed and delivered everything that it has read. "
                "Run it to the end of its input first: headrace run --once"
            )
        old = [shape.name for group in ledger.fingerprint.groups for shape in group.stores if shape.unmigrated]
        if old:
            raise StreamsError(
                f"the store {old[0]!r} has values in an earlier form, and a changelog can have only one: first migrate "
                "all of them, with headrace state migrate"
            )
        return ledger.fingerprint

    @staticmethod
    def _task_counts(fingerprint: Fingerprint) -> dict[int, int]:
        return {group.number: group.tasks for group in fingerprint.groups}

    def _check_portable(self, fingerprint: Fingerprint) -> None:
        for number, partition, stores in self._tasks(fingerprint, portable=False):
            state = self._open_state(TaskId(number, partition), stores)
            for store in stores:
                if next(entries_of(state, store), None) is not None:
                    why = why_not_portable(self.graph, self.config, store)
                    raise StreamsError(
                        f"the store {store!r} cannot be exported, because {why}, and it is not empty. Let the "
                        "application run until it is"
                    )

    # ----------------------------------------------------------------------------------------------------------- state
    def _tasks(self, fingerprint: Fingerprint, *, portable: bool) -> Iterator[tuple[int, int, Sequence[str]]]:
        """Yields sub-topology, partition and stores of every task: the portable stores, or the others."""
        for group in fingerprint.groups:
            stores = [shape.name for shape in group.stores if shape.logged]
            chosen = [
                store for store in stores if (why_not_portable(self.graph, self.config, store) is None) == portable
            ]
            for partition in range(group.tasks if chosen else 0):
                yield group.number, partition, chosen

    def _open_state(self, task: TaskId, stores: Sequence[str]) -> TaskState:
        head, serdes = self.ledger.head(task), serdes_of(self.config)
        restored = restore(
            MemoryEngineProvider(),
            head.version,
            lambda: head.chain,
            lambda delta: read_delta(self.storage, task, delta),
        )
        return TaskState.open(
            {store: resolved(self.graph.stores[store], serdes) for store in stores},
            restored.engine,
            key=serdes.default_key,
            value=serdes.default_value,
            persistent=self.config.dsl_store_suppliers_class == "persistent",
            dropped=lambda reason, count: None,
        )

    # ---------------------------------------------------------------------------------------------------------- topics
    def _export_partition(
        self, owner: Ownership, state: TaskState, store: str, partition: int, *, is_new: bool, dry_run: bool
    ) -> Export:
        topic = changelog_name(self.application, store)
        at = TopicPartition(topic, partition)
        existing = ExistingRecords() if is_new else self._read_existing(at)
        is_versioned = isinstance(state.specs[store].kind, VersionedKind)
        written = 0
        missing = existing.missing(rows_of(state, store, self.ledger.clock), is_versioned=is_versioned)
        while rows := list(islice(missing, _CHUNK)):
            if not dry_run:
                self.log.append([(at, Records.from_rows([(*row, ()) for row in rows]))])
            written += len(rows)
            owner.renew()
        stale = existing.stale(self.ledger.clock, is_versioned=is_versioned)
        if stale and not dry_run:
            self.log.append([(at, Records.from_rows([(*row, ()) for row in stale]))])
        return Export(store, topic, 1, existing.seen, written, len(stale))

    def _read_existing(self, at: TopicPartition) -> ExistingRecords:
        existing = ExistingRecords()
        for row in read_changelog(self.log, *at, self.log.extents([at.topic])[at].end):
            existing.add(row)
        return existing


class ExistingRecords:
    """The records that a partition of a changelog has already."""

    def __init__(self) -> None:
        self.seen = 0  # rows of the store
        self._rows: dict[bytes, list[bytes]] = {}  # digests, by key
        self._live: dict[bytes, int] = {}  # timestamp of the last record by key, if it has a value
        self._last = -1

    def add(self, row: Row) -> None:
        key, value, timestamp = row
        self._rows.setdefault(key, []).append(_digest(row))
        self._last = max(self._last, timestamp)
        if value is None:
            self._live.pop(key, None)
        else:
            self._live[key] = timestamp

    def missing(self, rows: Iterator[Row], *, is_versioned: bool) -> Iterator[Row]:
        """Yields the rows that the partition lacks. Only a versioned store has several rows per key."""
        for row in rows:
            self.seen += 1
            self._last = max(self._last, row[2])
            existing = self._rows.get(row[0], ())
            self._live.pop(row[0], None)
            if _digest(row) not in (existing if is_versioned else existing[-1:]):
                yield row

    def stale(self, clock: int, *, is_versioned: bool) -> list[Row]:
        """Returns tombstones for the keys of which `missing` saw no row. Versioned stores delete by event time."""
        return [(key, None, self._last if is_versioned else clock) for key in self._live]


def _digest(row: Row) -> bytes:
    _, value, timestamp = row
    return blake2b(b"%d %d " % (timestamp, value is not None) + (value or b""), digest_size=16).digest()


def ignore_export(part: Export) -> None:
    """Does nothing: an export without progress reports."""


def export_changelogs(exporter: ChangelogExporter, *, dry_run: bool, on_export: OnExport) -> list[Export]:
    """Exports all stores. Returns the sums by changelog, and calls `on_export` for every partition."""
    found: dict[str, Export] = {}
    for part in exporter.run(dry_run=dry_run):
        on_export(part)
        sums = found.get(part.store, Export(part.store, part.topic, 0, 0, 0, 0))
        counts = (had + more for had, more in zip(sums[2:], part[2:], strict=True))
        found[part.store] = Export(part.store, part.topic, *counts)
    return list(found.values())
