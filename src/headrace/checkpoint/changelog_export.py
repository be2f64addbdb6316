"""The topics in which Kafka Streams keeps copies of its stores: their names, their settings, and what is in them.

The state of an application, written to the topics where Kafka Streams looks for it: a Java application goes on.

Only what a topic lacks is written, and what is gone is deleted there. So it may be done again, also after a failure in
the middle, and a Java application that still has a copy of its own on disk learns what has changed since.
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
from headrace.checkpoint.delta_files import read_delta
from headrace.checkpoint.fingerprint import Fingerprint, fingerprint_of
from headrace.checkpoint.ledger import Ledger
from headrace.checkpoint.ownership import Ownership, this_process
from headrace.checkpoint.restore import MemoryEngines, restore
from headrace.checkpoint.storage import Storage
from headrace.config import Config
from headrace.errors import StreamsError
from headrace.log.protocol import Log, Records
from headrace.model.clock import SystemClock
from headrace.model.ids import TaskId, TopicPartition
from headrace.plan.subtopologies import plan
from headrace.runtime.serdes import resolved, serdes_of
from headrace.serde.internal import UNDECLARED
from headrace.state.changelog_records import Row, entries_of, rows_of
from headrace.state.spec import BufferKind, Kind, SessionKind, SubscriptionKind, VersionedKind, WindowKind
from headrace.state.task_state import TaskState
from headrace.topology.graph import Graph

DAY = 86_400_000  # ms that Kafka Streams keeps records longer than the store does, by default
LONGEST = 2**63 - 1


def changelog_name(application: str, store: str) -> str:
    """
    >>> changelog_name("shop", "totals")
    'shop-totals-changelog'
    """
    return f"{application}-{store}-changelog"


def changelog_settings(kind: Kind, additional_retention: int = DAY) -> dict[str, str]:
    """The settings with which Kafka Streams creates the topic; windows stay in it longer than in the store.

    >>> changelog_settings(SessionKind(1000))
    {'cleanup.policy': 'compact,delete', 'retention.ms': '86401000'}
    """
    match kind:
        case WindowKind(retention=retention) | SessionKind(retention=retention):
            return {
                "cleanup.policy": "compact,delete",
                "retention.ms": str(min(retention + additional_retention, LONGEST)),
            }
        case VersionedKind(history=history):
            return {"cleanup.policy": "compact", "min.compaction.lag.ms": str(min(history + DAY, LONGEST))}
        case _:
            return {"cleanup.policy": "compact"}


def not_shared(graph: Graph, config: Config, store: str) -> str | None:
    """Why the state of a store cannot pass from one implementation to the other; None if it can."""
    if isinstance(graph.stores[store].kind, BufferKind):
        return "it holds back records in a form of its own (suppress, an outer join, or a join with grace)"
    if isinstance(graph.stores[store].kind, SubscriptionKind):
        return "it remembers the subscriptions of a foreign-key join in a form of its own"
    if any(getattr(node, "on_close", False) and getattr(node, "store", "") == store for node in graph.nodes.values()):
        return "nothing in it says which of its windows were emitted when they closed"
    if resolved(graph.stores[store], serdes_of(config)).value is UNDECLARED:
        return "its values have no serde, so that Headrace keeps them in a form of its own (declare one: value=...)"
    return None


def logged_rows(log: Log, topic: str, partition: int, end: int) -> Iterator[Row]:
    """The records of a partition up to an offset; 0: there need be no such partition."""
    at = TopicPartition(topic, partition)
    start = 0 if end == 0 else log.extents([topic])[at].earliest
    for chunk in log.read(at, start, end) if start < end else ():
        for _, key, value, timestamp, _ in chunk.rows():
            if key is not None:
                yield key, value, timestamp


_LEASE = 15_000  # ms
_AT_ONCE = 5_000  # records


class Export(NamedTuple):
    """What some partitions of a changelog got, or would get."""

    store: str
    topic: str
    partitions: int
    entries: int  # that the store holds
    written: int
    deleted: int


Told = Callable[[Export], None]


@dataclass(frozen=True)
class Exporter:
    """Writes the state as of the last manifest; nobody may be running on the checkpoint in the meantime."""

    storage: Storage
    log: Log
    application: str
    graph: Graph
    config: Config

    @cached_property
    def ledger(self) -> Ledger:
        """To be read by the owner only: nobody goes on from there, then."""
        return recovery.recover(self.storage, 1)

    def run(self, *, dry_run: bool = False) -> Iterator[Export]:
        """What every partition of every changelog got, one after the other; in a dry run nothing is written."""
        with self._owned() as owner:
            fingerprint = self._checked()
            self._refuse_unshared(fingerprint)
            if not dry_run:  # first of all: it is refused while a Java application runs
                self.log.commit(self.application, self.ledger.positions)
            topics = self.log.topics()
            for number, partition, stores in self._tasks(fingerprint, shared=True):
                state = self._state(TaskId(number, partition), stores)
                tasks = self._counts(fingerprint)[number]
                for store in stores:
                    topic = changelog_name(self.application, store)
                    there = topics.get(topic)
                    if there is not None and there.partitions != tasks:
                        raise StreamsError(
                            f"the topic {topic} has {there.partitions} partitions, but {tasks} tasks have the store "
                            f"{store!r}: delete the topic, and it is made anew"
                        )
                    if there is None and partition == 0 and not dry_run:
                        additional = self.config.windowstore_changelog_additional_retention_ms
                        settings = changelog_settings(self.graph.stores[store].kind, additional)
                        self.log.create_topic(topic, tasks, settings)
                    yield self._partition(owner, state, store, partition, is_new=there is None, dry_run=dry_run)

    @contextmanager
    def _owned(self) -> Generator[Ownership]:
        before = recovery.recover(self.storage, 1)
        if before.number < 0:
            raise StreamsError(f"there is no state in {self.storage.describe()} that could be written to changelogs")
        recovery.identify(self.storage, self.application, before)
        clock, me = SystemClock(), this_process()
        owner = Ownership.claim(self.storage, clock, me=me, lease=_LEASE, above=before.epoch)
        try:
            yield owner
        finally:
            owner.release()

    # ------------------------------------------------------------------------------------------------ whether it can be
    def _checked(self) -> Fingerprint:
        """What the checkpoint is of, if that is this topology, at rest."""
        ledger = self.ledger
        if ledger.fingerprint is None:
            raise StreamsError(f"{self.application!r} was reset and has not run since: there is no state to be written")
        tasks, partitions = self._counts(ledger.fingerprint), ledger.fingerprint.partitions
        planned = plan(self.graph)
        counts = {number: tasks.get(number, 0) for number in planned.stages}
        own = fingerprint_of(self.graph, planned, self.config, tasks=counts, partitions=partitions)
        recovery.check_topology(ledger, own, self.storage)
        lacking = recovery.undelivered(self.storage, ledger, self.log.delivered(self.application))
        if ledger.carried or ledger.changelogs or any(lacking.values()):
            raise StreamsError(
                f"{self.application!r} was stopped before everything that it has read was processed and delivered. Run "
                "it once more, until it ends by itself: headrace run --once"
            )
        return ledger.fingerprint

    @staticmethod
    def _counts(fingerprint: Fingerprint) -> dict[int, int]:
        return {group.number: group.tasks for group in fingerprint.groups}

    def _refuse_unshared(self, fingerprint: Fingerprint) -> None:
        for number, partition, stores in self._tasks(fingerprint, shared=False):
            state = self._state(TaskId(number, partition), stores)
            for store in stores:
                if next(entries_of(state, store), None) is not None:
                    why = not_shared(self.graph, self.config, store)
                    raise StreamsError(
                        f"the store {store!r} cannot be handed over, because {why}, and it is not empty. Let the "
                        "application run until it is"
                    )

    # ------------------------------------------------------------------------------------------------------- its state
    def _tasks(self, fingerprint: Fingerprint, *, shared: bool) -> Iterator[tuple[int, int, Sequence[str]]]:
        """Stage, partition and stores: those that both implementations understand, or the others."""
        for group in fingerprint.groups:
            stores = [shape.name for shape in group.stores if shape.logged]
            chosen = [store for store in stores if (not_shared(self.graph, self.config, store) is None) == shared]
            for partition in range(group.tasks if chosen else 0):
                yield group.number, partition, chosen

    def _state(self, task: TaskId, stores: Sequence[str]) -> TaskState:
        standing, serdes = self.ledger.standing(task), serdes_of(self.config)
        restored = restore(
            MemoryEngines(),
            standing.version,
            lambda: standing.chain,
            lambda link: read_delta(self.storage, task, link),
        )
        return TaskState.open(
            {store: resolved(self.graph.stores[store], serdes) for store in stores},
            restored.engine,
            key=serdes.default_key,
            value=serdes.default_value,
            persistent=self.config.dsl_store_suppliers_class == "persistent",
            dropped=lambda reason, count: None,
        )

    # ------------------------------------------------------------------------------------------------------- its topics
    def _partition(
        self, owner: Ownership, state: TaskState, store: str, partition: int, *, is_new: bool, dry_run: bool
    ) -> Export:
        topic = changelog_name(self.application, store)
        at = TopicPartition(topic, partition)
        held = Held() if is_new else self._held(at)
        several = isinstance(state.specs[store].kind, VersionedKind)
        written = 0
        news = held.news(rows_of(state, store, self.ledger.clock), several=several)
        while rows := list(islice(news, _AT_ONCE)):
            if not dry_run:
                self.log.append([(at, Records.from_rows([(*row, ()) for row in rows]))])
            written += len(rows)
            owner.beat()
        gone = held.gone(self.ledger.clock, several=several)
        if gone and not dry_run:
            self.log.append([(at, Records.from_rows([(*row, ()) for row in gone]))])
        return Export(store, topic, 1, held.seen, written, len(gone))

    def _held(self, at: TopicPartition) -> Held:
        held = Held()
        for row in logged_rows(self.log, *at, self.log.extents([at.topic])[at].end):
            held.add(row)
        return held


class Held:
    """What a partition of a changelog says already."""

    def __init__(self) -> None:
        self.seen = 0
        self._rows: dict[bytes, list[bytes]] = {}  # digests, by key
        self._live: dict[bytes, int] = {}  # the time of the last record, if it has a value
        self._last = -1

    def add(self, row: Row) -> None:
        key, value, timestamp = row
        self._rows.setdefault(key, []).append(_digest(row))
        self._last = max(self._last, timestamp)
        if value is None:
            self._live.pop(key, None)
        else:
            self._live[key] = timestamp

    def news(self, rows: Iterator[Row], *, several: bool) -> Iterator[Row]:
        """The rows that it does not say; `several`: a key may have more than one, else the last one counts."""
        for row in rows:
            self.seen += 1
            self._last = max(self._last, row[2])
            said = self._rows.get(row[0], ())
            self._live.pop(row[0], None)
            if _digest(row) not in (said if several else said[-1:]):
                yield row

    def gone(self, clock: int, *, several: bool) -> list[Row]:
        """What has to be deleted, since no row was about it. A version is deleted by the time of events."""
        return [(key, None, self._last if several else clock) for key in self._live]


def _digest(row: Row) -> bytes:
    _, value, timestamp = row
    return blake2b(b"%d %d " % (timestamp, value is not None) + (value or b""), digest_size=16).digest()


def no_progress(part: Export) -> None:
    """Is told nothing."""


def exported(exporter: Exporter, *, dry_run: bool, told: Told) -> list[Export]:
    """What every changelog got; `told` hears of each of its partitions."""
    found: dict[str, Export] = {}
    for part in exporter.run(dry_run=dry_run):
        told(part)
        sums = found.get(part.store, Export(part.store, part.topic, 0, 0, 0, 0))
        counts = (had + more for had, more in zip(sums[2:], part[2:], strict=True))
        found[part.store] = Export(part.store, part.topic, *counts)
    return list(found.values())
