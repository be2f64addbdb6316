"""Deliveries to a cluster whose leaders die, and to brokers of earlier versions."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import confluent_kafka.admin
import pytest

from headrace.errors import LogBusyError, LogUnavailableError, StreamsError
from headrace.log.kafka import KafkaLog
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.testing import KafkaBroker
from headrace.testing.broker import KafkaCluster
from tests.log.harness import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

IS_LONG = "HEADRACE_FAULTS" in os.environ  # of `make test-faults`
QUICK = {"socket.timeout.ms": 1000, "socket.connection.setup.timeout.ms": 1000, "reconnect.backoff.max.ms": 200}
OLDEST = "3.9.1"  # that docs/running.md claims


def items(number: int) -> list[tuple[TopicPartition, Records]]:
    return [(TopicPartition("out", p), Records([b"k"], [b"%d/%d" % (number, p)], [1 + number])) for p in range(2)]


def values(log: KafkaLog) -> list[list[bytes | None]]:
    found = [log.read(TopicPartition("out", partition), 0) for partition in range(2)]
    return [[row[2] for chunk in chunks for row in chunk.rows()] for chunks in found]


def expected(batches: int) -> list[list[bytes]]:
    return [[b"%d/%d" % (number, partition) for number in range(batches)] for partition in range(2)]


def partitions_of(cluster: KafkaCluster, topic: str) -> list[Any]:
    """The partitions of a topic, by Kafka's own client, which may have to ask twice: a broker may not know it yet."""
    admin: Any = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.address.removeprefix("kafka://")})
    found: dict[int, Any] = {}

    def is_known() -> bool:
        described = admin.list_topics(topic, timeout=60).topics[topic]
        found.update({} if described.error else described.partitions)
        return bool(found)

    until(is_known, True)
    return [found[number] for number in sorted(found)]


def leader_of(cluster: KafkaCluster, topic: str) -> KafkaBroker:
    return cluster.nodes[partitions_of(cluster, topic)[0].leader]


def replicas_of(cluster: KafkaCluster, topic: str) -> list[int]:
    """The brokers that have a replica of each partition, counted."""
    return [len(set(partition.replicas)) for partition in partitions_of(cluster, topic)]


@pytest.fixture(scope="module")
def cluster() -> Generator[KafkaCluster]:
    with KafkaCluster(3) as cluster:
        yield cluster


def test_a_topic_that_a_client_has_created_exists_for_it_though_some_brokers_do_not_know_it_yet(cluster: KafkaCluster):
    with KafkaLog(cluster.address) as log:
        for name in [f"new-{number}" for number in range(40)]:
            log.create_topic(name, 2)
            for _ in range(4):
                assert log.topic(name).config["max.message.bytes"]
            log.append([(TopicPartition(name, 1), Records([b"k"], [b"v"], [1]))])


def test_a_topic_has_as_many_replicas_as_it_is_created_with(cluster: KafkaCluster):
    with KafkaLog(cluster.address, {"replication.factor": 2}) as log:
        log.create_topic("out", 2, replication_factor=3)
        assert replicas_of(cluster, "out") == [3, 3]
        assert log.deliver("app", 0, items(0))
        assert replicas_of(cluster, "app-delivered") == [2]
        with pytest.raises(StreamsError, match="replica"):
            log.create_topic("more", replication_factor=4)
        with KafkaLog(cluster.address) as default:
            default.create_topic("default")
        assert replicas_of(cluster, "default") == [3]


def test_leaders_of_three_brokers_that_die_one_after_the_other_lose_nothing_and_repeat_nothing():
    with KafkaCluster(3) as cluster, KafkaLog(cluster.address, QUICK) as log:
        log.create_topic("out", 2)
        number = 0
        for topic in ("out", "app-delivered") if IS_LONG else ("app-delivered",):
            for _ in range(2):
                log.deliver("app", number, items(number))
                number += 1
            leader = leader_of(cluster, topic)
            leader.kill()
            for _ in range(2):
                deliver_stubbornly(log, number)
                number += 1
            if IS_LONG:
                leader.restart()
        assert values(log) == expected(number)
        assert log.delivered("app") == number - 1


def deliver_stubbornly(log: KafkaLog, number: int) -> None:
    """As an application that is started again when its log was away for too long."""
    for _ in range(5):
        try:
            log.deliver("app", number, items(number))
        except (LogUnavailableError, LogBusyError):
            continue
        return
    pytest.fail(f"batch {number} could not be delivered")


@pytest.mark.long  # it fetches the jars of another version
def test_the_oldest_broker_that_is_claimed_takes_deliveries():
    with KafkaBroker(version=OLDEST) as broker, KafkaLog(broker.address) as log:
        log.create_topic("out", 2)
        for number in range(4):
            assert log.deliver("app", number, items(number))
        assert not log.deliver("app", 3, items(3))
        assert values(log) == expected(4)
        log.commit("group", {TopicPartition("out", 0): 2})
        assert log.committed("group") == {TopicPartition("out", 0): 2}
