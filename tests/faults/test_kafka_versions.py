"""Deliveries to a cluster whose leaders die, and to brokers of earlier versions."""

from __future__ import annotations

import os
from typing import Any

import confluent_kafka.admin
import pytest

from headrace.errors import LogUnavailableError
from headrace.log.kafka import KafkaLog
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.testing import KafkaBroker
from headrace.testing.broker import KafkaCluster

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


def leader_of(cluster: KafkaCluster, topic: str) -> KafkaBroker:
    admin: Any = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.address.removeprefix("kafka://")})
    return cluster.nodes[admin.list_topics(topic, timeout=60).topics[topic].partitions[0].leader]


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
        except LogUnavailableError:
            continue
        return
    pytest.fail(f"batch {number} could not be delivered")


if IS_LONG:  # it fetches the jars of another version

    def test_the_oldest_broker_that_is_claimed_takes_deliveries():
        with KafkaBroker(version=OLDEST) as broker, KafkaLog(broker.address) as log:
            log.create_topic("out", 2)
            for number in range(4):
                assert log.deliver("app", number, items(number))
            assert not log.deliver("app", 3, items(3))
            assert values(log) == expected(4)
            log.commit("group", {TopicPartition("out", 0): 2})
            assert log.committed("group") == {TopicPartition("out", 0): 2}
