"""A topology changes between two starts. `test_change_matrix` has the changes that need no decision, one by one."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from headrace import (
    Buffer,
    JoinWindows,
    Materialized,
    Processor,
    Punctuation,
    Record,
    SessionWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    serde,
)  # fmt: skip
from headrace.checkpoint.change_plan import ARCHIVE
from headrace.checkpoint.coordinator import CommitHooks
from headrace.checkpoint.copy import copy_checkpoint
from headrace.checkpoint.recovery import recover_ledger
from headrace.checkpoint.steps import DELTA_WRITTEN, TAKEOVER
from headrace.checkpoint.storage import open_storage
from headrace.checkpoint.store_edits import prune_stores, remove_store, rename_store
from headrace.errors import CheckpointMismatchError, StreamsError, UnknownStoreError
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.model.partitioner import partition_of
from headrace.state.task_state import LOGGED, PREFIX, table_prefix, tables_of_store
from headrace.state.values import encode_cell
from tests.checkpoint.cluster import ME, Cluster, Ground, Killer, run_to_end
from tests.checkpoint.memory_log import MemoryLog
from tests.checkpoint.programs import CONFIG, TEXTS, Program

PARTITIONS, HOUR = 2, 3_600_000
TOPICS = ("orders", "payments", "customers", "news")


class Remember(Processor):
    """Keeps the last values in two stores, and tells every 50 ms of stream time how many records it has seen."""

    def init(self, context):
        self.context, self.all, self.last = context, context.store("seen"), context.store("recent")
        context.schedule(50, Punctuation.STREAM_TIME, self.tell)

    def process(self, record):
        self.all.put(record.key, (self.all.get(record.key) or 0) + 1)
        self.last.put(record.key, record.value)

    def tell(self, now):
        self.context.forward(Record("told", str(now), now))


def build(
    *,
    filtered=False,  # an operator more, before all others: generated names shift
    first=False,  # a sub-topology more, before all others: the others get new numbers
    counts="counts",
    named=True,
    customers=True,
    extra=None,
    retention=None,
    caching=True,
    logging=True,
    value=None,
    size=100,
    grace=200,
    history=10_000,
    steady=False,  # no window closes, and no entry is evicted: stream time decides nothing
    behind=None,  # all state is behind repartitions with so many partitions
    more=False,  # more kinds of stores, each with a key for every key of the orders
    again=False,  # one of them is in a sub-topology of its own, with the same keys
    wide=False,  # its values have another form, to which the old ones are migrated
):
    """All kinds of stores: key-value, LRU, window, session, versioned, join windows, buffers, references."""
    builder = StreamsBuilder()
    grace, late, most = (HOUR, HOUR, 1_000_000) if steady else (grace, 100, 5)
    if first:
        builder.stream("news", **TEXTS).group_by_key().count(store="news-counts")
    orders = builder.stream("orders", **TEXTS)
    if behind:
        orders = orders.repartition(name="orders-by-key", partitions=behind, **TEXTS)
    if filtered:
        orders = orders.filter(lambda _, value: bool(value))
    value = value or {}
    orders.group_by_key().count(
        store=Materialized(counts, caching=caching, logging=logging, **value)
    ).to_stream().map_values(lambda count: str(round(count))).to("out", **TEXTS)
    words = orders.group_by(lambda _, value: value[:1], **TEXTS)
    if steady:  # an internal topic whose number of partitions is not given keeps the one that it has
        letters = orders.select_key(lambda _, value: value[:1])
        words = letters.repartition(name="by-letter", partitions=PARTITIONS, **TEXTS).group_by_key(**TEXTS)
    windows = words.windowed_by(TimeWindows.of(size, grace=grace))
    windows.count(store=Materialized("windows" if named else None, retention=retention)).suppress(
        Suppressed.until_window_closes(Buffer.unbounded())
    ).to_stream(lambda window, _: window.key).map_values(str).to("out", **TEXTS)
    of_doubles: dict[str, Any] = {"value": serde.DOUBLE, "migrate": float, "migrate_from": serde.LONG}
    counted: dict[str, Any] = of_doubles if wide else {"value": serde.LONG}
    sessions = orders.group_by_key().windowed_by(SessionWindows.of(40, grace=HOUR if steady else 200))
    sessions.count(store=Materialized("sessions", **(counted if wide else {})))
    if more:
        again = orders.repartition(name="again", partitions=PARTITIONS, **TEXTS) if again else orders
        again.group_by_key(**TEXTS).reduce(lambda _, new: new, store=Materialized("moving", **TEXTS))
        orders.group_by_key().windowed_by(TimeWindows.of(50, grace=HOUR)).count(store=Materialized("hours", **counted))
        orders.map_values(len).to_table(store=Materialized("lengths", key=serde.STRING, history=history, **counted))
    payments = builder.stream("payments", **TEXTS)
    if behind:
        payments = payments.repartition(name="payments-by-key", partitions=behind, **TEXTS)
    windows, name = JoinWindows.of(60, grace=late), "pay" if named else None
    orders.outer_join(payments, lambda a, b: f"{a}+{b}", windows=windows, name=name).to("out", **TEXTS)
    seen, recent = Stores.key_value("seen", key=serde.STRING, value=serde.LONG), Stores.lru("recent", most, **TEXTS)
    if wide:
        seen = Stores.key_value("seen", key=serde.STRING, value=serde.DOUBLE).migrated_from(serde.LONG, float)
        recent = Stores.lru("recent", most, key=serde.STRING, value=serde.JSON).migrated_from(serde.STRING, str)
    for store in (seen, recent):
        builder.add_store(store.partitioned_by_key() if steady else store)
    payments.process(Remember, "seen", "recent").to("out", **TEXTS)
    if customers:
        kept = Materialized("customers", history=history)
        if behind:
            stream = builder.stream("customers", **TEXTS).repartition(name="by-name", partitions=behind, **TEXTS)
            table = stream.to_table(store=kept)
        else:
            table = builder.table("customers", store=kept, **TEXTS)
        latest = orders.to_table(store="latest")
        latest.join(
            table.to_stream().to_table(store="current"), lambda a, b: f"{a} of {b}", on=lambda value: value[:2]
        ).to_stream().to("out", **TEXTS)
    if extra is not None:
        extra(builder, orders, payments)
    return builder.build()


def feed(log, start, keys, rounds, partitions=PARTITIONS, topics=TOPICS):
    """Writes a record for every key in every round. There are at most 15 customers, to whom all orders refer."""
    for number in range(start, start + rounds):
        for topic in topics:
            found = defaultdict(list)
            for key in range(min(keys, 15) if topic == "customers" else keys):
                time = 20 * number + key % 20
                text, value = f"k{key}", f"{chr(97 + (number + key) % 5)}{key % 3}"
                name = f"{value[0]}{key % 3}" if topic == "customers" else text
                at = TopicPartition(topic, partition_of(name.encode(), partitions) or 0)
                found[at].append((name.encode(), value.encode(), time, ()))
            log.append([(at, Records.from_rows(some)) for at, some in sorted(found.items())])


def ground(tmp_path, name):
    log = MemoryLog(**dict.fromkeys(TOPICS, PARTITIONS), out=PARTITIONS)
    return Ground(log=log, storage=open_storage(tmp_path / name))


def program(**options):
    return Program(lambda: build(**options), {}, PARTITIONS)


def rows(cluster, stores):
    """The rows of some stores and their cells, by partition."""
    prefixes = {table_prefix(table): table for store in stores for table in tables_of_store(store)}
    found = {}
    for task, some in cluster.stores().items():
        for key, value in some:
            if task.subtopology in cluster.plan.stages and key[:PREFIX] in prefixes:
                table = prefixes[key[:PREFIX]]
                # This buffer keeps the topic of each record, whose generated name may have been another.
                found[task, table, key] = value if "SUPPRESS" not in table else b""
    return found


def cells(cluster):
    """The cells by partition, without the bytes in buffers, which have names of topics in them."""
    prefix = table_prefix(LOGGED)
    return {
        (task, key[PREFIX:].decode()): value
        for task, some in cluster.stores().items()
        for key, value in some
        if key.startswith(prefix) and task.subtopology in cluster.plan.stages and not key.endswith(b"/size")
    }


def removed_stores(cluster):
    fingerprint = cluster.coordinator.ledger.fingerprint
    return {store.shape.name for store in fingerprint.removed}


def run(where, changed, limit=50):
    cluster = Cluster(where, changed, limit=limit)
    cluster.run()
    return cluster


def test_outputs_and_state_follow_a_rename_and_a_removal_and_going_back(tmp_path):
    where = ground(tmp_path, "one")
    feed(where.log, 0, 3, 4)
    first = run(where, program())
    known = rows(first, {"customers", "latest", "counts"})
    first.close()
    with pytest.raises(CheckpointMismatchError, match="headrace state rename counts tally"):
        Cluster(where, program(counts="tally"))
    without = run(where, program(customers=False))
    assert removed_stores(without) >= {"customers", "latest"}
    without.close()
    back = run(where, program())
    assert rows(back, {"customers", "latest", "counts"}) == known
    assert removed_stores(back) == set()
    back.close()


HOOKS = CommitHooks(process=ME, has_exited=lambda *_: True)


def test_a_store_is_renamed_with_its_data_or_replaced_by_a_new_one(tmp_path):
    where = ground(tmp_path, "one")
    feed(where.log, 0, 3, 4)
    first = run(where, program())
    known = {key[PREFIX:]: value for (_, _, key), value in rows(first, {"counts"}).items()}
    first.close()
    with pytest.raises(StreamsError, match="has a store windows already"):
        rename_store(where.storage, "counts", "windows", HOOKS)
    with pytest.raises(UnknownStoreError, match="nothing"):
        rename_store(where.storage, "nothing", "tally", HOOKS)
    rename_store(where.storage, "counts", "tally", HOOKS)
    second = run(where, program(counts="tally"))
    assert {key[PREFIX:]: value for (_, _, key), value in rows(second, {"tally"}).items()} == known
    assert removed_stores(second) == set()
    second.close()
    remove_store(where.storage, "tally", HOOKS)
    third = run(where, program(counts="other"))
    assert rows(third, {"other"}) == {}
    assert removed_stores(third) == {"tally"}
    third.close()


def two_counts(*, first=True, inserted=False):
    """Two stores with generated names, which lead to different topics. The second one forgets keys."""
    builder = StreamsBuilder()
    stream = builder.stream("orders", **TEXTS)
    if inserted:
        stream = stream.filter(lambda _, value: True)
    if first:
        stream.group_by_key().reduce(lambda _, new: new).to_stream().to("payments", **TEXTS)
    stream.group_by_key().reduce(lambda _, new: None if new == "e1" else new).to_stream().to("out", **TEXTS)
    return Program(builder.build, {}, PARTITIONS)


def places(cluster):
    return {key[PREFIX:]: value for (_, _, key), value in rows(cluster, cluster.graph.stores).items()}


def test_a_generated_name_that_another_store_takes_leaves_the_data_of_both_apart(tmp_path):
    """Without the first store, the second one gets its number: it must not find the data of the first one."""
    where, fresh = ground(tmp_path, "one"), ground(tmp_path, "fresh")
    for one in (where, fresh):
        feed(one.log, 0, 3, 4)
    first = run(where, two_counts())
    known = rows(first, first.graph.stores)
    names = sorted(first.graph.stores)
    first.close()
    second, expected = run(where, two_counts(first=False)), run(fresh, two_counts(first=False))
    assert list(second.graph.stores) == names[:1]
    assert rows(second, names) == rows(expected, names)
    assert removed_stores(second) == {names[0]}
    second.close()
    expected.close()
    back = run(where, two_counts())
    assert rows(back, names) == known
    assert removed_stores(back) == set()
    back.close()
    gone = run(where, two_counts(first=False))
    gone.close()
    assert prune_stores(where.storage, (), HOOKS) == names[:1]
    shifted = run(where, two_counts(first=False, inserted=True))
    assert places(shifted) == {key[PREFIX:]: value for (_, table, key), value in known.items() if table == names[1]}
    shifted.close()


def test_a_removed_store_with_a_generated_name_does_not_become_another_one_with_its_number(tmp_path):
    where = ground(tmp_path, "one")
    feed(where.log, 0, 3, 4)

    def counted(topic):
        builder = StreamsBuilder()
        builder.stream("news", **TEXTS).to("out", **TEXTS)
        if topic:
            builder.stream(topic, **TEXTS).group_by_key().count()
        return Program(builder.build, {}, PARTITIONS)

    run(where, counted("orders")).close()
    run(where, counted(None)).close()
    other = run(where, counted("payments"))
    assert {value[-1] for value in rows(other, other.graph.stores).values()} == {4}  # from the first record on
    assert removed_stores(other) == {"KSTREAM-AGGREGATE-STATE-STORE-0000000003"}
    other.close()


def test_a_rename_leaves_topics_of_stores_alone_whose_names_begin_alike(tmp_path):
    where = ground(tmp_path, "one")
    feed(where.log, 0, 3, 4)

    def counted(name):
        builder = StreamsBuilder()
        orders = builder.stream("orders", **TEXTS)
        for store in (name, "a-b"):
            orders.group_by(lambda _, value: value[:1], **TEXTS).count(store=store)
        return Program(builder.build, {}, PARTITIONS)

    run(where, counted("a")).close()
    rename_store(where.storage, "a", "x", HOOKS)
    ledger = recover_ledger(where.storage, 1)
    assert ledger.fingerprint is not None
    assert set(ledger.fingerprint.partitions) == {"x-repartition", "a-b-repartition"}
    run(where, counted("x")).close()


def test_sub_topologies_with_other_numbers_of_tasks_change_places(tmp_path):
    """The second one gets the number of the first one, which had fewer tasks: nothing is divided."""

    def counted(*topics):
        builder = StreamsBuilder()
        for topic in topics:
            builder.stream(topic, **TEXTS).group_by_key().count(store=f"{topic}-counts")
        return Program(builder.build, {}, PARTITIONS)

    where = Ground(log=MemoryLog(news=2, orders=5, out=1), storage=open_storage(tmp_path / "one"))
    feed(where.log, 0, 12, 4, 2, ["news"])
    feed(where.log, 0, 12, 4, 5, ["orders"])
    first = run(where, counted("news", "orders"))
    known = {(task.partition, key): value for (task, _, key), value in rows(first, {"orders-counts"}).items()}
    first.close()
    for form in (("orders",), ("orders", "news"), ("news", "orders")):
        changed = run(where, counted(*form))
        found = rows(changed, {"orders-counts"})
        assert {(task.partition, key): value for (task, _, key), value in found.items()} == known
        changed.close()


def test_pruning_deletes_the_data_of_removed_stores_and_no_other(tmp_path):
    where = ground(tmp_path, "one")
    feed(where.log, 0, 3, 4)
    run(where, program(first=True)).close()
    second = run(where, program(customers=False))
    named = {"counts", "windows", "sessions", "seen", "recent"}
    known, tasks = rows(second, named), second.coordinator.ledger.tasks
    assert any(task.subtopology >= ARCHIVE for task in tasks)
    second.close()
    assert prune_stores(where.storage, ["latest"], HOOKS) == ["latest"]
    assert {"customers", "news-counts"} <= set(prune_stores(where.storage, (), HOOKS))
    third = run(where, program(first=True))
    assert all(task.subtopology < ARCHIVE for task in third.coordinator.ledger.tasks)
    assert rows(third, {"latest", "customers", "news-counts"}) == {}
    assert {key[1:]: value for key, value in rows(third, named).items()} == {k[1:]: v for k, v in known.items()}
    third.close()


def test_a_window_of_another_size_is_refused_with_the_reason(tmp_path):
    where = ground(tmp_path, "one")
    feed(where.log, 0, 3, 2)
    run(where, program()).close()
    with pytest.raises(CheckpointMismatchError, match="windows of 100 ms and now has windows of 50 ms"):
        Cluster(where, program(size=50))


def test_a_store_that_is_not_logged_any_more_begins_empty(tmp_path):
    where = ground(tmp_path, "one")
    feed(where.log, 0, 3, 2)
    run(where, program()).close()
    for logging in (False, True):
        cluster = run(where, program(logging=logging))
        assert rows(cluster, {"counts"}) == {}
        assert rows(cluster, {"sessions"}) != {}
        cluster.close()


def test_a_join_that_is_added_merges_two_sub_topologies(tmp_path):
    """Both keep their stores, and the later of their stream times counts."""

    def joined(builder, orders, payments):
        news = builder.stream("news", **TEXTS)
        if join[0]:
            news.join(builder.table("wire", **TEXTS, store="wire"), lambda a, b: a + b).to("out", **TEXTS)
        else:
            news.group_by_key().count(store="news-counts")
            builder.table("wire", **TEXTS, store="wire")
        if join[0]:
            news.group_by_key().count(store="news-counts")

    where, join = ground(tmp_path, "one"), [False]
    where.log.create_topic("wire", PARTITIONS)
    feed(where.log, 0, 3, 2)
    at = TopicPartition("wire", 0)
    where.log.append([(at, Records.from_rows([(b"k1", b"v", 9_000, ())]))])
    first = run(where, program(extra=joined))
    known = {key[1:]: value for key, value in rows(first, {"wire", "news-counts"}).items()}
    first.close()
    join[0] = True
    second = run(where, program(extra=joined))
    assert {key[1:]: value for key, value in rows(second, {"wire", "news-counts"}).items()} == known
    (number,) = {stage.number for stage in second.plan.stages.values() if "wire" in stage.stores}
    (time,) = {v for (task, name), v in cells(second).items() if (*task, name) == (number, 0, "task/stream time")}
    assert time == encode_cell(9_000)
    second.close()


@pytest.mark.parametrize(
    "moment", [f"{when} {what}" for when in ("before", "after") for what in (DELTA_WRITTEN, TAKEOVER)]
)
def test_a_kill_leaves_the_old_or_the_new_form(moment, tmp_path):
    """After a kill both forms can go on: the old one if the manifest was not created, else the new one."""
    old, new = program(named=False), program(named=False, first=True, filtered=True)
    where, undisturbed = ground(tmp_path, "killed"), ground(tmp_path, "undisturbed")
    for one in (where, undisturbed):
        feed(one.log, 0, 3, 4)
        run(one, old).close()
    killer = Killer(moment, 1)
    run_to_end(where, new, killer).close()
    assert killer.landed
    expected = run(undisturbed, new)
    again = run(where, new)
    assert rows(again, again.graph.stores) == rows(expected, expected.graph.stores)
    again.close()
    expected.close()


def test_a_copy_goes_on_beside_the_first_application(tmp_path):
    """It begins in the middle, with rows in flight, and has the same state at the end."""
    where = ground(tmp_path, "one")
    feed(where.log, 0, 3, 6)
    first = Cluster(where, program(), limit=2)
    while not first.coordinator.ledger.carried:
        assert first.run_batch()
    second = Ground(log=where.log, storage=open_storage(tmp_path / "two"))
    copy_checkpoint(where.storage, second.storage, "blue")
    with pytest.raises(StreamsError, match="has a checkpoint already"):
        copy_checkpoint(where.storage, second.storage, "blue")
    first.run()
    beside = Cluster(second, program(), config=replace(CONFIG, application_id="blue"), limit=2)
    assert beside.run() > 0
    stores = set(first.graph.stores)
    assert rows(beside, stores) == rows(first, stores)
    assert cells(beside) == cells(first)
    for cluster in (first, beside):
        cluster.close()
