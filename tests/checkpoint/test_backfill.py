"""A new store is filled from history: afterwards it is that of a run which had it from the start."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace import Materialized, StreamsBuilder
from headrace.checkpoint.backfill_checkpoint import (
    FilledStores,
    backfill_address,
    begin_backfill,
    check_rows_in_flight,
    discard_backfill,
    find_ranges,
    form_of_part,
)
from headrace.checkpoint.recovery import recover_ledger
from headrace.checkpoint.steps import MANIFEST, RECEIPT, TAKEOVER, TASK_RUN
from headrace.checkpoint.storage import open_storage
from headrace.errors import CheckpointMismatchError
from headrace.spark.backfill import DiscardingLog, describe_history
from headrace.topology.ancestry import keep_ancestors
from tests.checkpoint.cluster import Cluster, Ground, Killed, Killer, outputs
from tests.checkpoint.programs import TEXTS, Program
from tests.checkpoint.test_changed_topologies import PARTITIONS, TOPICS, build, cells, feed, ground, program, rows


def little():
    """Reads all topics, and has one of the stores."""
    builder = StreamsBuilder()
    builder.stream("orders", **TEXTS).group_by_key().count(store=Materialized("counts"))
    for topic in TOPICS[1:]:
        builder.stream(topic, **TEXTS).to("out", **TEXTS)
    return builder.build()


LITTLE = Program(little, {}, PARTITIONS)
EVERYTHING = program(first=True)


def filling(checkpoint, killer=None, limit=50):
    """What fills the new stores of a cluster: another cluster, in the checkpoint of the backfill."""

    def prepare(cluster):
        def fill(plan, ledger, positions, renew):
            counts = {topic.removeprefix(cluster.prefix): count for topic, count in cluster.counts.items()}
            part = keep_ancestors(cluster.graph, plan.fillable, TOPICS, counts)
            check_rows_in_flight(cluster.storage, ledger, plan, part.graph.internal_topics)
            discard_backfill(str(checkpoint))
            storage = open_storage(backfill_address(str(checkpoint)))
            ranges = find_ranges(cluster.log.extents(sorted(part.topics)), positions)
            ids = {topic: cluster.log.topic(topic).id for topic in part.topics}
            begin_backfill(storage, "app", form_of_part(part, cluster.fingerprint), ids, ranges)
            topology: Any = SimpleNamespace(graph=lambda: part.graph)
            log = DiscardingLog(cluster.log)
            where = Ground(log=log, storage=storage, clock=cluster.ground.clock)
            inner = Cluster(
                where, Program(lambda: topology, {}), limit=limit, **({} if killer is None else {"at_step": killer})
            )
            inner.run()
            inner.close()
            renew()
            numbers = {whole: number for number, whole in part.numbers.items()}
            return FilledStores(storage, recover_ledger(storage, 1), numbers, plan.fillable)

        return fill

    return prepare


def run(where, changed, **options):
    cluster = Cluster(where, changed, limit=50, **options)
    cluster.run()
    return cluster


def test_every_kind_of_store_is_filled_as_if_it_had_been_there_from_the_start(tmp_path):
    changed, fresh = ground(tmp_path, "changed"), ground(tmp_path, "fresh")
    for where in (changed, fresh):
        feed(where.log, 0, 3, 8)
    run(changed, LITTLE).close()
    run(fresh, EVERYTHING).close()
    written = [{at: len(some) for at, some in outputs(where.log).items()} for where in (changed, fresh)]
    ours = Cluster(changed, EVERYTHING, limit=50, backfill=filling(tmp_path / "changed"))
    assert {at: len(some) for at, some in outputs(changed.log).items()} == written[0]  # nothing was written
    theirs = Cluster(fresh, EVERYTHING, limit=50)
    stores = set(theirs.graph.stores)
    assert {"windows", "sessions", "customers", "latest", "seen", "recent", "news-counts"} <= stores
    assert rows(ours, stores) == rows(theirs, stores)
    assert cells(ours) == cells(theirs)
    for where, cluster in ((changed, ours), (fresh, theirs)):
        feed(where.log, 8, 3, 8)
        cluster.run()
    assert rows(ours, stores) == rows(theirs, stores)
    tails = [
        {at: [row[1:] for row in some[start[at] :]] for at, some in outputs(where.log).items()}
        for where, start in zip((changed, fresh), written, strict=True)
    ]
    assert tails[0] == tails[1]
    ours.close()
    theirs.close()


def test_other_stores_are_not_touched(tmp_path):
    where = ground(tmp_path, "one")
    feed(where.log, 0, 3, 4)
    first = run(where, LITTLE)
    known = rows(first, {"counts"})
    tasks, stage = first.coordinator.ledger.tasks, first.sources["orders"]
    chains = {task.partition: head.chain for task, head in tasks.items() if task.subtopology == stage}
    first.close()
    second = Cluster(where, EVERYTHING, backfill=filling(tmp_path / "one"))
    assert {key[1:]: value for key, value in rows(second, {"counts"}).items()} == {k[1:]: v for k, v in known.items()}
    ledger, stage = second.coordinator.ledger, second.sources["orders"]
    for task, head in ledger.tasks.items():
        if task.subtopology == stage:
            assert head.chain[:-1] == chains[task.partition]
    second.close()


STEPS = (TASK_RUN, RECEIPT, MANIFEST, TAKEOVER)


def test_a_kill_during_a_backfill_leaves_the_old_form_and_after_it_the_new_one(tmp_path):
    where, fresh = ground(tmp_path, "one"), ground(tmp_path, "fresh")
    for some in (where, fresh):
        feed(some.log, 0, 3, 2)
    run(where, LITTLE).close()
    theirs = run(fresh, EVERYTHING)
    before = recover_ledger(where.storage, 1)
    for moment in (f"{when} {what}" for when in ("before", "after") for what in STEPS):
        with pytest.raises(Killed):
            Cluster(where, EVERYTHING, backfill=filling(tmp_path / "one", Killer(moment, 1)))
        after = recover_ledger(where.storage, 1)
        assert (after.number, after.fingerprint) == (before.number, before.fingerprint)
    for killer in (Killer("before takeover", 1), Killer("before delta written", 2)):
        with pytest.raises(Killed):
            Cluster(where, EVERYTHING, backfill=filling(tmp_path / "one"), at_step=killer)
        assert recover_ledger(where.storage, 1).number == before.number
    ours = Cluster(where, EVERYTHING, backfill=filling(tmp_path / "one"))
    stores = set(theirs.graph.stores)
    assert rows(ours, stores) == rows(theirs, stores)
    ours.close()
    theirs.close()


def test_after_a_kill_at_the_manifest_the_next_start_goes_on_with_the_filled_stores(tmp_path):
    where = ground(tmp_path, "one")
    feed(where.log, 0, 3, 4)
    run(where, LITTLE).close()
    with pytest.raises(Killed):
        Cluster(where, EVERYTHING, backfill=filling(tmp_path / "one"), at_step=Killer("after takeover", 1))
    again = run(where, EVERYTHING)  # without a backfill: the stores are not new any more
    assert rows(again, {"sessions"}) != {}
    again.close()


def test_without_a_backfill_a_new_store_begins_empty_and_a_killed_one_leaves_nothing(tmp_path):
    where = ground(tmp_path, "one")
    feed(where.log, 0, 3, 4)
    run(where, LITTLE).close()
    with pytest.raises(Killed):
        Cluster(where, EVERYTHING, backfill=filling(tmp_path / "one", Killer("after manifest", 1)))
    discard_backfill(str(tmp_path / "one"))
    assert not (tmp_path / "one" / "backfill").exists()
    second = run(where, EVERYTHING)
    assert rows(second, {"sessions", "news-counts"}) == {}
    second.close()


def test_a_store_is_filled_also_where_the_sub_topology_gets_more_tasks(tmp_path):
    """The state is divided first: each of these is a manifest of its own."""
    where, fresh = ground(tmp_path, "one"), ground(tmp_path, "fresh")
    for some in (where, fresh):
        feed(some.log, 0, 5, 4)

    def words(partitions, stores):
        builder = StreamsBuilder()
        orders = builder.stream("orders", **TEXTS).repartition(name="by", partitions=partitions, **TEXTS)
        for store in stores:
            orders.group_by_key().count(store=store)
        return Program(builder.build, {}, PARTITIONS)

    run(where, words(2, ["counts"])).close()
    run(fresh, words(5, ["counts", "again"])).close()
    for killer in (Killer("after takeover", 1), Killer("before takeover", 1)):
        with pytest.raises(Killed):
            Cluster(where, words(5, ["counts", "again"]), backfill=filling(tmp_path / "one"), at_step=killer)
        fingerprint = recover_ledger(where.storage, 1).fingerprint
        assert fingerprint is not None
        shape = fingerprint.groups[1]
        assert [store.name for store in shape.stores] == ["counts"]
    ours = Cluster(where, words(5, ["counts", "again"]), backfill=filling(tmp_path / "one"))
    theirs = Cluster(fresh, words(5, ["counts", "again"]))
    assert rows(ours, {"counts", "again"}) == rows(theirs, {"counts", "again"}) != {}
    ours.close()
    theirs.close()


def test_rows_in_flight_that_the_backfill_would_process_twice_are_refused(tmp_path):
    """The answers of a foreign-key join arrive in the next batch: the application was killed before that."""
    where = ground(tmp_path, "one")
    feed(where.log, 0, 3, 4)

    def joined(extra):
        builder = StreamsBuilder()
        left, right = builder.table("orders", store="l", **TEXTS), builder.table("customers", store="r", **TEXTS)
        found = left.join(right, lambda a, b: a + b, on=lambda value: value[:2], store="j").to_stream()
        found.to("out", **TEXTS)
        if extra:
            found.group_by_key().count(store="again")
        return Program(builder.build, {}, PARTITIONS)

    first = Cluster(where, joined(extra=False), limit=3)
    while not first.coordinator.ledger.carried:
        assert first.run_batch()
    first.close()
    with pytest.raises(CheckpointMismatchError, match="a backfill would process them twice"):
        Cluster(where, joined(extra=True), backfill=filling(tmp_path / "one"))
    run(where, joined(extra=False)).close()
    second = Cluster(where, joined(extra=True), backfill=filling(tmp_path / "one"))
    assert rows(second, {"again"}) != {}
    second.close()


def test_the_subscriptions_of_a_foreign_key_join_that_is_added_are_filled(tmp_path):
    """Its tables were there before; without its responses nothing is in flight afterwards."""

    def joined(join):
        builder = StreamsBuilder()
        left, right = builder.table("orders", store="l", **TEXTS), builder.table("customers", store="r", **TEXTS)
        if join:
            found = left.join(right, lambda a, b: a + b, on=lambda value: value[:2], name="of").to_stream()
            found.to("out", **TEXTS)
        return Program(builder.build, {}, PARTITIONS)

    where, fresh = ground(tmp_path, "one"), ground(tmp_path, "fresh")
    for some in (where, fresh):
        feed(some.log, 0, 4, 4)
    run(where, joined(join=False)).close()
    run(fresh, joined(join=True)).close()
    ours = Cluster(where, joined(join=True), limit=50, backfill=filling(tmp_path / "one"))
    theirs = Cluster(fresh, joined(join=True), limit=50)
    stores = set(theirs.graph.stores)
    assert rows(ours, stores) == rows(theirs, stores) != {}
    ours.close()
    theirs.close()


def test_only_what_leads_to_a_store_runs_again():
    graph = build(first=True).graph()
    counts = dict.fromkeys(graph.internal_topics, 2)
    part = keep_ancestors(graph, {"news-counts"}, TOPICS, counts)
    assert part.topics == {"news"}
    assert list(part.graph.stores) == ["news-counts"]
    assert part.numbers == {0: 0}
    sessions = keep_ancestors(graph, {"sessions"}, TOPICS, counts)
    assert (sessions.topics, list(sessions.graph.stores)) == ({"orders"}, ["sessions"])
    windows = keep_ancestors(graph, {"windows"}, TOPICS, counts)
    assert (windows.topics, len(windows.numbers)) == ({"orders"}, 2)
    assert all(topic.partitions == 2 for topic in windows.graph.internal_topics.values())
    assert all(
        name not in part.graph.nodes for name, node in graph.nodes.items() if getattr(node, "topic", "") == "out"
    )


def test_the_plan_says_from_which_time_on_the_log_has_the_history(tmp_path):
    where = ground(tmp_path, "one")
    feed(where.log, 0, 4, 10)
    first = run(where, LITTLE)
    positions = dict(first.coordinator.ledger.positions)
    part = keep_ancestors(EVERYTHING.build().graph(), {"news-counts"}, TOPICS, {})
    first.close()
    read = sum(offset for at, offset in positions.items() if at.topic == "news")
    assert describe_history(where.log, part, positions) == f"{read} records of news, from the first one"
    nothing = dict.fromkeys(positions, 0)
    assert describe_history(where.log, part, nothing) is None
