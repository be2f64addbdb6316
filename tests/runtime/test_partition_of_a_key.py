"""Which task has a key of a store: the hash of the key as its topic has it, or what a partitioner says."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import KeyPartitioner, Materialized, StreamsBuilder, TimeWindows, serde
from headrace.config import Config
from headrace.errors import StreamsError
from headrace.model.partitioner import partition_of
from headrace.runtime.partitioning import find_partition
from headrace.topology.subtopologies import plan

CONFIG = Config.of({"application.id": "shop"})
COUNT = 5


def task_of(store: str, build: Any, key: Any, **options: Any) -> int:
    """Finds the partition of a key of the store, in the sub-topology that has it."""
    builder = StreamsBuilder()
    build(builder.stream("orders", key=serde.STRING, value=serde.LONG))
    graph = builder.build().graph()
    (stage,) = (stage for stage in plan(graph).stages.values() if store in stage.stores)
    return find_partition(graph, stage, CONFIG, key, COUNT, **options)


def by_hash(raw: bytes) -> int:
    return partition_of(raw, COUNT) or 0


@pytest.mark.parametrize("key", ["tea", "milk", "sugar", "é"])
def test_a_key_is_hashed_as_the_topic_has_it(key):
    assert task_of("n", lambda orders: orders.group_by_key().count(store="n"), key) == by_hash(key.encode())
    stored = Materialized("n", key=serde.JSON)  # other bytes than those of the topic
    assert task_of("n", lambda orders: orders.group_by_key().count(store=stored), key) == by_hash(key.encode())
    windows = TimeWindows.of(60_000)
    found = task_of("n", lambda orders: orders.group_by_key().windowed_by(windows).count(store="n"), key)
    assert found == by_hash(key.encode())


def repartitioned(partitioner: Any) -> Any:
    return lambda orders: orders.repartition(partitioner=partitioner).group_by_key().count(store="n")


def test_a_declared_partitioner_decides():
    by_length = KeyPartitioner[str](lambda key, partitions: len(key) % partitions)
    assert task_of("n", repartitioned(by_length), "sugar!") == 1
    assert task_of("n", repartitioned(by_length), "tea") == 3


def test_a_function_is_asked_for():
    def by_value(topic: str, key: str, value: int, partitions: int) -> int:
        return value % partitions

    with pytest.raises(StreamsError, match=r"which task has the key 'tea' is not known: .*give it as partitioner="):
        task_of("n", repartitioned(by_value), "tea")
    given = KeyPartitioner[str](lambda key, partitions: 4)
    assert task_of("n", repartitioned(by_value), "tea", partitioner=given) == 4
