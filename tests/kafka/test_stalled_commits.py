"""Commits of offsets to a broker that stands still: they give up like every request, and none is lost or overtaken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from headrace.errors import LogBusyError, LogUnavailableError
from headrace.log.kafka import KafkaLog
from headrace.log.kafka.topics import Topics
from headrace.model.ids import TopicPartition
from headrace.testing import KafkaBroker

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
AT = TopicPartition("a", 0)
QUICK = {"default.api.timeout.ms": 5000, "socket.timeout.ms": 1000, "reconnect.backoff.max.ms": 200}


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:
        with KafkaLog(broker.address) as log:
            log.create_topic(AT.topic)
        yield broker


@pytest.fixture
def log(broker: KafkaBroker) -> Iterator[KafkaLog]:
    with KafkaLog(broker.address, QUICK) as log:
        yield log
        broker.resume()


def commit(log: KafkaLog, group: str, offset: int, **more: str) -> None:
    """Commits until the broker answers: it may create the topic of the offsets first, or have just been resumed."""
    while True:
        with suppress(LogUnavailableError, LogBusyError):
            return log.commit(group, {AT: offset}, **more)


def committed(broker: KafkaBroker, group: str) -> dict[TopicPartition, int]:
    with KafkaLog(broker.address) as patient:
        return patient.committed(group)


def stall_after_topics(broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker still tells what the topic is, and then stands still."""
    get = Topics.get

    def answer(topics: Topics, *names: str) -> dict[str, Any]:
        found = get(topics, *names)
        broker.pause()
        return found

    monkeypatch.setattr(Topics, "get", answer)


def test_an_observer_gives_up_and_its_commit_does_not_overtake_a_later_one(
    broker: KafkaBroker, log: KafkaLog, monkeypatch: pytest.MonkeyPatch
):
    commit(log, "g", 1)
    with monkeypatch.context() as patch:
        stall_after_topics(broker, patch)
        with pytest.raises(LogUnavailableError, match="setting the offsets of the group 'g' got no answer"):
            log.commit("g", {AT: 2})
    broker.resume()
    commit(log, "g", 3)
    assert committed(broker, "g") == {AT: 3}


def test_a_member_gives_up_and_goes_on_when_the_broker_does(broker: KafkaBroker, log: KafkaLog):
    def join(holding: frozenset[TopicPartition] = frozenset()) -> frozenset[TopicPartition]:
        return log.join("h", "one", [AT.topic], holding, 120_000).partitions

    held = join()
    while not held:
        held = join()
    commit(log, "h", 1, member="one")
    broker.pause()
    with pytest.raises(LogUnavailableError, match="committing offsets got no answer"):
        log.commit("h", {AT: 2}, member="one")
    assert join(held) == held  # the member answers while its commit waits
    broker.resume()
    commit(log, "h", 3, member="one")
    assert committed(broker, "h") == {AT: 3}


def test_a_log_is_closed_while_a_commit_waits(broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch):
    with KafkaLog(broker.address, QUICK) as log:
        commit(log, "i", 1)
        stall_after_topics(broker, monkeypatch)
        with pytest.raises(LogUnavailableError):
            log.commit("i", {AT: 2})
    broker.resume()
