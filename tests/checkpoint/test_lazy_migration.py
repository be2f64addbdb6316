"""Values of another form are migrated when they are read, and all of them by `headrace state migrate`."""

from functools import partial
from typing import Any

import pytest

from headrace import Materialized, Processor, SessionWindows, Stores, StreamsBuilder, TimeWindows, serde
from headrace.checkpoint.recovery import recover_ledger
from headrace.errors import CheckpointMismatchError, SerializationError
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.query.catalog import catalog_from_checkpoint, catalog_from_topology
from headrace.query.export import export_rows
from headrace.state.task_state import PREFIX, table_prefix, tables_of_store
from tests.checkpoint.cluster import Cluster, Killed, Killer
from tests.checkpoint.programs import CONFIG, TEXTS, Program
from tests.checkpoint.test_changed_topologies import ground

STORES = ("plain", "stamped", "recent", "windows", "sessions", "versions")


class Sums(Processor):
    """Adds 1 to a number in each store of a processor."""

    def init(self, context):
        self.plain, self.recent = context.store("plain"), context.store("recent")
        self.versions = context.store("versions")

    def process(self, record):
        for store in (self.plain, self.recent):
            store.put(record.key, (store.get(record.key) or 0) + 1)
        found = self.versions.get(record.key)
        self.versions.put(record.key, (0 if found is None else found.value) + 1, record.timestamp)


def build(new, *, migrate=float, partitions=2):
    """All kinds of stores with values: numbers that are whole, and in the new form are not."""
    value: Any = (
        {"value": serde.DOUBLE, "migrate": migrate, "migrate_from": serde.LONG} if new else {"value": serde.LONG}
    )
    own: Any = serde.DOUBLE if new else serde.LONG
    builder = StreamsBuilder()
    stream = builder.stream("orders", **TEXTS).repartition(name="by", partitions=partitions, **TEXTS)
    grouped = stream.group_by_key()
    one = (lambda: 0), (lambda _key, _value, total: total + 1)
    grouped.aggregate(*one, store=Materialized("stamped", **value))
    grouped.windowed_by(TimeWindows.of(100, grace=500)).aggregate(*one, store=Materialized("windows", **value))
    merged = (lambda _key, a, b: a + b)  # fmt: skip
    sessions = grouped.windowed_by(SessionWindows.of(30, grace=500))
    sessions.aggregate(*one, merger=merged, store=Materialized("sessions", **value))
    for spec in (
        Stores.key_value("plain", key=serde.STRING, value=own),
        Stores.lru("recent", 50, key=serde.STRING, value=own),
        Stores.versioned("versions", 10_000, key=serde.STRING, value=own),
    ):
        builder.add_store((spec.migrated_from(serde.LONG, migrate) if new else spec).partitioned_by_key())
    stream.process(Sums, "plain", "recent", "versions")
    return builder.build()


def program(new, **options):
    return Program(partial(build, new, **options), {}, 2)


def feed(log, numbers, keys=4):
    for number in numbers:
        for key in range(keys):
            row = (f"k{key}".encode(), b"x", 10 * number, ())
            log.append([(TopicPartition("orders", 0), Records.from_rows([row]))])


def run(where, changed, **options):
    cluster = Cluster(where, changed, limit=100, **options)
    cluster.run()
    return cluster


def read(where, cluster):
    """Every store as a query reads it."""
    ledger = recover_ledger(where.storage, 1)
    assert ledger.fingerprint is not None
    graph = cluster.graph
    catalog = catalog_from_topology(graph, CONFIG, ledger.fingerprint)
    return {
        store: sorted(
            row[:-1]
            for task in catalog.describe(store).tasks
            for row in export_rows(where.storage, ledger.number, catalog, store, task)
        )
        for store in STORES
    }


def unmigrated(where):
    fingerprint = recover_ledger(where.storage, 1).fingerprint
    assert fingerprint is not None
    return {shape.name for group in fingerprint.groups for shape in group.stores if shape.unmigrated}


def raw(cluster):
    prefixes = {table_prefix(table) for store in STORES for table in tables_of_store(store)}
    return {
        (task, key): value
        for task, some in cluster.raw_stores().items()
        for key, value in some
        if key[:PREFIX] in prefixes
    }


def test_a_start_rewrites_no_value_and_reads_find_the_new_form(tmp_path):
    where, fresh = ground(tmp_path, "one"), ground(tmp_path, "fresh")
    for some in (where, fresh):
        feed(some.log, range(10))
    first = run(where, program(new=False))
    before, chains = raw(first), {task: head.chain for task, head in first.coordinator.ledger.tasks.items()}
    first.close()
    run(fresh, program(new=True)).close()
    second = Cluster(where, program(new=True), limit=100)
    assert raw(second) == before
    assert {task: head.chain for task, head in second.coordinator.ledger.tasks.items()} == chains
    assert unmigrated(where) == set(STORES)
    theirs = Cluster(fresh, program(new=True), limit=100)
    assert read(where, second) == read(fresh, theirs)
    for cluster, some in ((second, where), (theirs, fresh)):
        feed(some.log, range(10, 14), keys=2)  # half of the keys
        cluster.run()
    assert read(where, second) == read(fresh, theirs)
    lists = {key[:PREFIX] for _, key in raw(second)} - {key[:PREFIX] for _, key in before}
    assert lists == {table_prefix(f"{store}/new") for store in STORES} | {table_prefix("versions/past new")}
    second.close()
    again = run(where, program(new=True))  # a start later, the rest is still migrated
    assert read(where, again) == read(fresh, theirs)
    again.close()
    theirs.close()


def test_all_values_are_migrated_on_request_all_or_none(tmp_path):
    where, fresh = ground(tmp_path, "one"), ground(tmp_path, "fresh")
    for some in (where, fresh):
        feed(some.log, range(10))
    run(where, program(new=False)).close()
    for some in (where, fresh):
        feed(some.log, range(10, 12), keys=2)
        run(some, program(new=True)).close()
    assert unmigrated(where) == set(STORES)
    with pytest.raises(Killed):
        Cluster(where, program(new=True), migrates_all=True, at_step=Killer("before takeover", 1))
    with pytest.raises(SerializationError, match="cannot be migrated from LONG to DOUBLE"):
        Cluster(where, program(new=True, migrate=lambda number: 1 / (number - 10)), migrates_all=True)
    assert unmigrated(where) == set(STORES)
    Cluster(where, program(new=True), migrates_all=True).close()
    assert unmigrated(where) == set()
    ours, theirs = Cluster(where, program(new=True)), Cluster(fresh, program(new=True))
    assert raw(ours) == raw(theirs)  # no list is left
    ours.close()
    theirs.close()


def test_a_value_that_cannot_be_migrated_stops_the_batch_and_changes_nothing(tmp_path):
    where = ground(tmp_path, "one")
    feed(where.log, range(10))
    run(where, program(new=False)).close()
    feed(where.log, range(10, 11))
    broken = Cluster(where, program(new=True, migrate=lambda number: 1 / 0), limit=100)
    with pytest.raises(SerializationError, match="mend the function in migrate="):
        broken.run()
    broken.kill()
    mended = run(where, program(new=True))
    assert {row[1] for row in read(where, mended)["plain"]} == {11.0}
    mended.close()


def test_old_values_need_the_function_as_long_as_there_are_any(tmp_path):
    where = ground(tmp_path, "one")
    feed(where.log, range(3))
    run(where, program(new=False)).close()
    run(where, program(new=True)).close()
    with pytest.raises(CheckpointMismatchError, match=r"has values of LONG that are not migrated to DOUBLE yet"):
        Cluster(where, program(new=False))
    ledger = recover_ledger(where.storage, 1)
    assert ledger.fingerprint is not None
    assert set(catalog_from_checkpoint(ledger.fingerprint).stores) == set()
    Cluster(where, program(new=True), migrates_all=True).close()
    ledger = recover_ledger(where.storage, 1)
    assert ledger.fingerprint is not None
    assert set(catalog_from_checkpoint(ledger.fingerprint).stores) == set(STORES)


def test_a_store_with_old_values_is_divided_among_more_tasks(tmp_path):
    where, fresh = ground(tmp_path, "one"), ground(tmp_path, "fresh")
    for some in (where, fresh):
        feed(some.log, range(6), keys=9)
    run(where, program(new=False)).close()
    for some in (where, fresh):
        feed(some.log, range(6, 8), keys=3)
        run(some, program(new=True)).close()
    ours, theirs = run(where, program(new=True, partitions=5)), run(fresh, program(new=True, partitions=5))
    assert read(where, ours) == read(fresh, theirs)
    ours.close()
    theirs.close()
