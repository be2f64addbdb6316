"""Source topics that get more partitions while an application with state reads them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from headrace import Materialized, StreamsBuilder, Topology
from headrace.checkpoint.steps import AtStep, ignore_step
from headrace.checkpoint.storage import ObjectStorage
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.model.partitioner import partition_of
from tests.checkpoint.cluster import Cluster, Ground, Killed, Killer
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
