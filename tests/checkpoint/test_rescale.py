"""State that is divided among more or fewer tasks: every row is where its key is, and nothing else has changed."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from pathlib import Path

import pytest

from headrace import (
    Buffer,
    EmitStrategy,
    JoinWindows,
    KeyPartitioner,
    Materialized,
    Processor,
    Record,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    serde,
)
from headrace.checkpoint.steps import RESCALE, TAKEOVER
from headrace.checkpoint.storage import ObjectStorage, open_storage
from headrace.config import Config
from headrace.errors import CheckpointMismatchError
from headrace.model.ids import TaskId, TopicPartition
from headrace.model.partitioner import partition_of
from headrace.runtime.partitioning import CELLS
from headrace.state.task_state import PREFIX, table_prefix
from tests.checkpoint.cluster import Cluster, Ground, Killed, Killer
from tests.checkpoint.memory_log import MemoryLog
from tests.checkpoint.programs import TEXTS, Program

pytestmark = pytest.mark.slow

KEYS = [f"key {n}" for n in range(40)]
HOUR = 3_600_000


def every_store(partitions: int) -> Topology:
    """Every kind of store of the DSL, behind a repartition with so many partitions."""
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXTS).repartition(name="by-key", partitions=partitions, **TEXTS)
    other = builder.stream("other", **TEXTS).repartition(name="other-by-key", partitions=partitions, **TEXTS)
    grouped = stream.group_by_key(**TEXTS)
    counts = grouped.count(store="counts")
    counts.to_stream().map_values(str).to("out", **TEXTS)
    windows = grouped.windowed_by(TimeWindows.of(1_000, grace=HOUR)).count(store="windows")
    windows.suppress(Suppressed.until_window_closes(Buffer.unbounded())).to_stream().map(
        lambda key, count: (key.key, f"closed {key.window.start} {count}")
    ).to("out", **TEXTS)
    grouped.windowed_by(SlidingWindows.of(500, grace=HOUR)).count(store="sliding")
    grouped.windowed_by(SessionWindows.of(700, grace=HOUR)).count(store="sessions")
    stream.to_table(store=Materialized("versions", history=HOUR, **TEXTS))
    stream.left_join(other, lambda a, b: f"{a}+{b}", windows=JoinWindows.of(2_000, grace=HOUR)).to("out", **TEXTS)
    return builder.build()


def records(first: int, last: int) -> list[tuple[str, str]]:
    return [(KEYS[n * 7 % len(KEYS)], f"v{n}") for n in range(first, last)]


def program(partitions: int) -> Program:
    return Program(partial(every_store, partitions), {"in": [], "other": []})


def feed(ground: Ground, first: int, last: int) -> None:
    for topic, start in (("in", first), ("other", max(first, 1))):
        rows = ground.log.rows[TopicPartition(topic, 0)]
        rows += [(k.encode(), v.encode(), 10 * n, ()) for n, (k, v) in enumerate(records(start, last), start)]


def new_ground(place: Path | None = None) -> Ground:
    storage = ObjectStorage.at("memory:///", {}) if place is None else open_storage(place / "checkpoint")
    return Ground(log=program(1).log(), storage=storage, state=None if place is None else place / "state")


def outputs_by_key(ground: Ground) -> dict[bytes, list[bytes]]:
    found = defaultdict(list)
    for key, value, _, _ in ground.log.rows[TopicPartition("out", 0)]:
        found[key].append(value)
    return found


def is_join(spec) -> bool:
    return getattr(spec.kind, "retain_duplicates", False)


def rows_of(cluster: Cluster) -> dict[TaskId, set[tuple[bytes, bytes]]]:
    """All rows of the tasks with stores, as far as they do not depend on the neighbours of a key.

    Times in cells do, sequence numbers of join windows do, and updates in a suppress buffer have the old partition.
    """
    joins = tuple(table_prefix(name) for name, spec in cluster.graph.stores.items() if is_join(spec))
    suppressed = tuple(table_prefix(name) for name in cluster.graph.stores if "SUPPRESS" in name)
    (stage,) = (stage.number for stage in cluster.plan.stages.values() if stage.stores)
    return {
        task: {
            (key[:-4] if key.startswith(joins) else key, b"" if key.startswith(suppressed) else value)
            for key, value in rows
            if not key.startswith(CELLS)
        }
        for task, rows in cluster.stores().items()
        if task.subtopology == stage
    }


def run(ground: Ground, partitions: int, **options) -> Cluster:
    cluster = Cluster(ground, program(partitions), limit=50, **options)
    cluster.run()
    return cluster


@pytest.mark.parametrize("before, after", [(4, 6), (8, 2), (1, 5)])
def test_the_state_is_that_of_an_application_with_the_new_number_from_the_start(before, after):
    changed, fresh = new_ground(), new_ground()
    feed(changed, 0, 300)
    run(changed, before).close()
    feed(changed, 300, 600)
    feed(fresh, 0, 600)
    one, other = run(changed, after), run(fresh, after)
    assert {key: sorted(some) for key, some in outputs_by_key(changed).items()} == {
        key: sorted(some) for key, some in outputs_by_key(fresh).items()
    }
    for key, some in outputs_by_key(fresh).items():
        counts = [value for value in some if value.isdigit()]
        assert [value for value in outputs_by_key(changed)[key] if value.isdigit()] == counts
    assert rows_of(one) == rows_of(other)
    one.close()
    other.close()


@pytest.mark.slow
@pytest.mark.parametrize("moment", [f"{when} {name}" for name in (RESCALE, TAKEOVER) for when in ("before", "after")])
def test_a_kill_leaves_the_old_tasks_or_the_new_ones(moment, tmp_path):
    ground, fresh = new_ground(tmp_path), new_ground()
    feed(ground, 0, 100)
    run(ground, 4).close()
    feed(ground, 100, 200)
    with pytest.raises(Killed):
        run(ground, 6, at_step=Killer(moment, 3 if RESCALE in moment else 1))
    feed(fresh, 0, 200)
    after = run(ground, 6)
    expected = run(fresh, 6)
    assert rows_of(after) == rows_of(expected)
    after.close()
    again = run(ground, 4)  # and back
    back = new_ground()
    feed(back, 0, 200)
    assert rows_of(again) == rows_of(run(back, 4))
    again.close()


# ---- windows that close once
def closing(windows, partitions: int) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXTS).repartition(name="by-key", partitions=partitions, **TEXTS)
    counts = (
        stream.group_by_key(**TEXTS).windowed_by(windows).emit_strategy(EmitStrategy.ON_WINDOW_CLOSE).count(store="w")
    )
    counts.to_stream().map(lambda key, count: (key.key, f"{key.window.start}-{key.window.end} {count}")).to(
        "out", **TEXTS
    )
    return builder.build()


@pytest.mark.parametrize(
    "windows, ahead",  # 160 closes the first window, which then is still in the store
    [
        (TimeWindows.of(100, grace=50), 160),
        (SessionWindows.of(30, grace=50), 500),
        (SlidingWindows.of(60, grace=50), 500),
    ],
)
def test_a_window_is_emitted_once_though_tasks_were_at_different_times(windows, ahead):
    """A new task gets keys of a task that has closed their windows, and of one that has not."""
    log = MemoryLog(**{"in": 1, "out": 1})
    ground = Ground(log=log, storage=ObjectStorage.at("memory:///", {}))
    rows = log.rows[TopicPartition("in", 0)]
    config = Config.of({"application.id": "app", "statestore.cache.max.bytes": 0, "emit.interval.ms": 0})

    def go_on(partitions: int) -> Counter[tuple[bytes, bytes]]:
        cluster = Cluster(ground, Program(partial(closing, windows, partitions), {"in": []}), limit=200, config=config)
        cluster.run()
        cluster.close()
        return Counter((key, value.split()[0]) for key, value, _, _ in log.rows[TopicPartition("out", 0)])

    rows += [(key.encode(), b"v", 10, ()) for key in KEYS]
    rows += [(key.encode(), b"v", ahead, ()) for key in KEYS if partition_of(key.encode(), 4) == 0]
    early = {key for key, _ in go_on(4)}
    assert early == {key.encode() for key in KEYS if partition_of(key.encode(), 4) == 0}
    rows += [(key.encode(), b"v", 5_000 * n, ()) for n in (1, 2) for key in KEYS]
    found = go_on(6)
    assert set(found.values()) == {1}
    firsts = {key for key, window in found if int(window.split(b"-")[0]) <= 10}
    assert firsts == {key.encode() for key in KEYS}


# ---- what cannot be divided
class Totals(Processor):
    def init(self, context):
        self.store = context.store("totals")

    def process(self, record: Record) -> None:
        self.store.put(record.key, (self.store.get(record.key) or 0) + 1)


def processing(partitions: int, *, declared: bool = False, partitioner=None) -> Topology:
    builder = StreamsBuilder()
    store = Stores.key_value("totals", key=serde.STRING, value=serde.LONG)
    builder.add_store(store.partitioned_by_key() if declared else store)
    stream = builder.stream("in", **TEXTS).repartition(
        name="by-key", partitions=partitions, partitioner=partitioner, **TEXTS
    )
    stream.process(Totals, "totals")
    return builder.build()


def two_runs(one, other) -> Cluster:
    ground = new_ground()
    feed(ground, 0, 50)
    first = Cluster(ground, Program(one, {}), limit=50)
    first.run()
    first.close()
    return Cluster(ground, Program(other, {}), limit=50)


def test_the_store_of_a_processor_must_be_declared():
    with pytest.raises(CheckpointMismatchError, match=r"store totals belongs to a processor.*partitioned_by_key"):
        two_runs(partial(processing, 2), partial(processing, 4))
    two_runs(partial(processing, 2), partial(processing, 4, declared=True)).close()


def test_a_partitioner_of_its_own_is_refused():
    own = {"partitioner": lambda topic, key, value, count: 0, "declared": True}
    with pytest.raises(CheckpointMismatchError, match="the partitioner of by-key-repartition is a function of its own"):
        two_runs(partial(processing, 2, **own), partial(processing, 4, **own))


def by_last_digit(key: str, partitions: int) -> int:
    return int(key[-1]) * 7 % partitions


class Doubled(Totals):
    """Has another key than the records, which is made of theirs."""

    def process(self, record: Record) -> None:
        super().process(Record(f"{record.key}/{len(record.key)}", record.value, record.timestamp))


@pytest.mark.parametrize("before, after", [(2, 5), (6, 4), (3, 1)])
def test_state_behind_a_declared_partitioner_is_divided_by_it(before, after):
    def build(partitions: int) -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream("in", **TEXTS).repartition(
            name="by-key", partitions=partitions, partitioner=KeyPartitioner(by_last_digit), **TEXTS
        )
        stream.group_by_key().count(store="counts")
        stream.group_by_key().windowed_by(TimeWindows.of(100)).count(store="windows")
        store = Stores.key_value("totals", key=serde.STRING, value=serde.LONG)
        builder.add_store(store.partitioned_by_key(lambda key: key.partition("/")[0]))
        stream.process(Doubled, "totals")
        return builder.build()

    cluster = two_runs(partial(build, before), partial(build, after))
    found = {}
    for task, rows in cluster.stores().items():
        for key, value in rows:
            if key[:PREFIX] in (table_prefix("counts"), table_prefix("totals")):
                name = key[PREFIX:].decode().partition("/")[0]
                assert task.partition == by_last_digit(name, after)
                found[key] = value
    assert len(found) == 2 * len(KEYS)
    cluster.run()
    cluster.close()


def test_topics_of_one_sub_topology_need_one_partitioner():
    def build(partitions: int, other) -> Topology:
        builder = StreamsBuilder()
        first = builder.stream("in", **TEXTS).repartition(
            name="one", partitions=partitions, partitioner=KeyPartitioner(by_last_digit), **TEXTS
        )
        second = builder.stream("in", **TEXTS).repartition(
            name="two", partitions=partitions, partitioner=other, **TEXTS
        )
        first.merge(second).group_by_key().count(store="counts")
        return builder.build()

    with pytest.raises(CheckpointMismatchError, match="one-repartition, two-repartition have different partitioners"):
        two_runs(partial(build, 2, None), partial(build, 4, None))
    same = KeyPartitioner(by_last_digit)
    two_runs(partial(build, 2, same), partial(build, 4, same)).close()


def test_a_declared_partitioner_that_is_another_than_before_is_refused():
    first = {"partitioner": KeyPartitioner(by_last_digit), "declared": True}
    second = {"partitioner": KeyPartitioner(lambda key, count: 0), "declared": True}
    with pytest.raises(CheckpointMismatchError, match="by its KeyPartitioner belongs to task 1_0"):
        two_runs(partial(processing, 2, **first), partial(processing, 4, **second))


def test_a_key_that_is_not_where_its_hash_says_is_refused():
    """What was written with a partitioner that is gone now."""
    own = partial(processing, 2, declared=True, partitioner=lambda topic, key, value, count: 0)
    with pytest.raises(
        CheckpointMismatchError, match=r"store totals has a key in task 1_0 that by its hash belongs to"
    ):
        two_runs(own, partial(processing, 4, declared=True))
