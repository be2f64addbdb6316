"""Source topics that get more partitions while an application with state reads them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from headrace import Materialized, StreamsBuilder, Topology
from headrace.checkpoint.change_plan import ARCHIVE
from headrace.checkpoint.coordinator import CommitHooks
from headrace.checkpoint.steps import AtStep, ignore_step
from headrace.checkpoint.storage import ObjectStorage
from headrace.checkpoint.store_edits import prune_stores
from headrace.errors import CheckpointMismatchError
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.model.partitioner import partition_of
from headrace.state.task_state import PREFIX, table_prefix
from tests.checkpoint.cluster import ME, Cluster, Ground, Killed, Killer
from tests.checkpoint.memory_log import MemoryLog
from tests.checkpoint.programs import TEXTS, Program

KEYS = [f"key {n}" for n in range(30)]


def append_all() -> Topology:
    """The values of each key in the order of their records."""
    builder = StreamsBuilder()
    grouped = builder.stream("in", **TEXTS).group_by_key(**TEXTS)
    store = Materialized("all", **TEXTS)
    grouped.aggregate(lambda: "", lambda key, value, all_of: f"{all_of} {value}".strip(), store=store).to_stream().to(
        "out", **TEXTS
    )
    return builder.build()


def join_tables() -> Topology:
    builder = StreamsBuilder()
    left, right = builder.table("left", **TEXTS), builder.table("right", **TEXTS)
    left.join(right, lambda a, b: f"{a}+{b}").to_stream().to("out", **TEXTS)
    return builder.build()


def join_by_reference() -> Topology:
    builder = StreamsBuilder()
    left, right = builder.table("left", **TEXTS), builder.table("right", **TEXTS)
    left.join(right, lambda a, b: f"{a}+{b}", on=lambda value: f"key {int(value) % 7}").to_stream().to("out", **TEXTS)
    return builder.build()


class Producer:
    """Writes numbered records by key; it knows a number of partitions, which may be an old one."""

    def __init__(self, log: MemoryLog, partitions: int) -> None:
        self.log, self.partitions, self.sent = log, partitions, defaultdict[str, list[str]](list)

    def send(self, count: int, topic: str = "in") -> None:
        for _ in range(count):
            number = sum(map(len, self.sent.values()))
            key = KEYS[number * 7 % len(KEYS)]
            self.sent[key].append(f"{number}")
            at = TopicPartition(topic, partition_of(key.encode(), self.partitions) or 0)
            self.log.append([(at, Records.from_rows([(key.encode(), f"{number}".encode(), 1_000 + number, ())]))])


def grow(log: MemoryLog, topic: str, partitions: int) -> None:
    log.topics()[topic] = replace(log.topics()[topic], partitions=partitions)


def latest(log: MemoryLog) -> dict[str, str]:
    """The last value that was written for each key: the longest, if nothing was lost or turned around."""
    found: dict[str, str] = {}
    for partition in range(log.topic("out").partitions):
        for key, value, _, _ in log.rows[TopicPartition("out", partition)]:
            found[key.decode()] = max(found.get(key.decode(), ""), value.decode(), key=len)
    return found


def expected(producer: Producer) -> dict[str, str]:
    return {key: " ".join(values) for key, values in producer.sent.items()}


def live(ground: Ground, program: Program, killer: AtStep = ignore_step, batches: int = 1_000, limit: int = 5) -> None:
    """One life of the application, which may be killed."""
    cluster = None
    try:
        cluster = Cluster(ground, program, limit=limit, at_step=killer)
        cluster.run(batches)
        cluster.close()
    except Killed:
        if cluster is not None:
            cluster.kill()


@pytest.mark.parametrize("moment", [None, "before takeover", "after takeover", "after rescale", "before manifest"])
def test_every_record_reaches_the_task_that_has_its_key(moment):
    log, program = MemoryLog(**{"in": 4, "out": 1}), Program(append_all, {})
    ground, producer = Ground(log=log, storage=ObjectStorage.at("memory:///", {})), Producer(log, 4)
    producer.send(100)
    live(ground, program)
    for partitions in (6, 7):
        producer.send(40)  # unread when the topic grows
        grow(log, "in", partitions)
        producer.send(40)  # with the old number
        if moment is not None:
            live(ground, program, Killer(moment, 1))
        live(ground, program, batches=2, limit=3)
        producer.send(20)
        producer.partitions = partitions  # the producer has learnt it
        producer.send(60)
        live(ground, program, limit=100)
    assert latest(log) == expected(producer)


def counts(*names: str, topic: str = "in", table: bool = False, join: bool = False) -> Program:
    """Counts of a topic by key, in stores with these names. A table beside them has more stores, and can be joined."""

    def build() -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream(topic, **TEXTS)
        if table:
            right = builder.table("right", store="right", **TEXTS)
            for name in ("copy", "second copy"):
                right.map_values(str.upper, store=name.replace(" ", "-"))
            if join:
                stream.join(right, lambda a, b: f"{a}+{b}").to("out", **TEXTS)
        for name in names:
            stream.group_by_key(**TEXTS).count(store=name)
        stream.to("out", **TEXTS)
        return builder.build()

    return Program(build, {})


def counted(ground: Ground, program: Program, store: str) -> dict[str, int]:
    """The counts of all tasks added up; each key is in the task of its hash."""
    found: dict[str, int] = {}
    with_state = Cluster(ground, program, limit=100)
    with_state.run()
    for task, rows in with_state.stores().items():
        for place, value in rows:
            if place[:PREFIX] == table_prefix(store) and task.subtopology < ARCHIVE:
                key = place[PREFIX:].decode()
                assert key not in found
                assert partition_of(key.encode(), with_state.tasks[task.subtopology]) == task.partition
                found[key] = int.from_bytes(value[-8:], "big")
    with_state.close()
    return found


def sent_counts(producer: Producer) -> dict[str, int]:
    return {key: len(values) for key, values in producer.sent.items()}


def test_the_data_of_a_removed_store_does_not_hinder_growth_and_stays_until_it_is_pruned():
    log = MemoryLog(**{"in": 2, "out": 1})
    ground, producer = Ground(log=log, storage=ObjectStorage.at("memory:///", {})), Producer(log, 2)
    producer.send(60)
    live(ground, counts("kept", "gone"))
    live(ground, counts("kept"))
    grow(log, "in", 5)
    producer.send(60)
    assert counted(ground, counts("kept"), "kept") == sent_counts(producer)
    with pytest.raises(CheckpointMismatchError, match="store gone was in 2 tasks and now is in 5"):
        Cluster(ground, counts("kept", "gone"))
    hooks = CommitHooks(process=ME, has_exited=lambda *_: True)
    assert prune_stores(ground.storage, (), hooks) == ["gone"]
    assert counted(ground, counts("kept"), "kept") == sent_counts(producer)


def test_a_store_that_is_added_after_the_growth_has_each_key_in_one_task():
    """The records that are unread then are in old partitions, also if nothing had state when the topic grew."""
    log = MemoryLog(**{"in": 2, "out": 1})
    ground, producer = Ground(log=log, storage=ObjectStorage.at("memory:///", {})), Producer(log, 2)
    producer.send(60)
    live(ground, counts())
    grow(log, "in", 5)
    live(ground, counts())
    later = Producer(log, 2)
    later.send(60)
    later.partitions = 5
    later.send(60)
    assert counted(ground, counts("new"), "new") == sent_counts(later)


ALONE, JOINED = {"table": True}, {"table": True, "join": True}


@pytest.mark.parametrize(
    "forms, last", [([ALONE], JOINED), ([ALONE, JOINED], ALONE), ([{}], {}), ([ALONE, {"topic": "right"}], JOINED)]
)
def test_what_has_grown_is_known_after_its_sub_topology_has_changed(forms, last):
    """A join that is added or removed makes two sub-topologies one, or one two; a source may be away for a while."""
    log = MemoryLog(**{"in": 2, "right": 5, "out": 1})
    ground, producer = Ground(log=log, storage=ObjectStorage.at("memory:///", {})), Producer(log, 2)
    producer.send(60)
    live(ground, counts("all", **forms[0]))
    grow(log, "in", 5)
    for form in forms:
        live(ground, counts(*(() if "topic" in form else ("all",)), **form))
    producer.send(60)  # with the old number
    producer.partitions = 5
    producer.send(60)
    assert counted(ground, counts("all", **last), "all") == sent_counts(producer)


def test_topics_that_are_joined_grow_together():
    log, program = MemoryLog(left=2, right=2, out=1), Program(join_tables, {})
    ground = Ground(log=log, storage=ObjectStorage.at("memory:///", {}))
    left, right = Producer(log, 2), Producer(log, 2)
    for producer, topic in ((left, "left"), (right, "right")):
        producer.send(40, topic)
    live(ground, program)
    grow(log, "left", 4)
    left.partitions = 4
    left.send(40, "left")
    alone = Cluster(ground, program, limit=100)
    assert alone.tasks == {0: 2}  # it goes on with the old number
    alone.run()
    alone.close()
    grow(log, "right", 4)
    right.send(40, "right")  # with the old number
    both = Cluster(ground, program, limit=100)
    assert both.tasks[0] == 4
    both.run()
    both.close()
    last = {key: f"{left.sent[key][-1]}+{right.sent[key][-1]}" for key in KEYS}
    rows = log.rows[TopicPartition("out", 0)]
    assert {key.decode(): value.decode() for key, value, _, _ in rows} == last


@pytest.mark.parametrize("grown", [("left",), ("right",), ("left", "right")])
@pytest.mark.parametrize("batches", [0, 2])  # with 2, subscriptions and responses are on their way
def test_answers_of_a_foreign_key_join_find_the_new_task_of_who_asked(grown, batches):
    """The right side keeps for every subscription the task of its left row."""
    log, program = MemoryLog(left=2, right=2, out=1), Program(join_by_reference, {})
    ground = Ground(log=log, storage=ObjectStorage.at("memory:///", {}))
    left, right = Producer(log, 2), Producer(log, 2)
    for producer, topic in ((left, "left"), (right, "right")):
        producer.send(60, topic)
    live(ground, program, batches=batches or 1_000)
    for topic in grown:
        grow(log, topic, 5)
    for producer, topic, count in ((left, "left", 5), (right, "right", 30)):  # most left rows ask no more
        producer.send(count, topic)  # with the old number
        producer.partitions = log.topic(topic).partitions
        producer.send(count, topic)
    live(ground, program, limit=100)
    values = {key: sent[-1] for key, sent in left.sent.items()}
    expected = {key: f"{value}+{right.sent[f'key {int(value) % 7}'][-1]}" for key, value in values.items()}
    assert {key.decode(): value.decode() for key, value, _, _ in log.rows[TopicPartition("out", 0)]} == expected
