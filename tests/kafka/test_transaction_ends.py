"""Ends of transactions that arrive late, or not at all: a proxy is between the brokers, the clients and each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from headrace.errors import LogUnavailableError, ProducerFencedError, StreamsError
from headrace.log.kafka import KafkaLog, delivery
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.testing import KafkaBroker
from tests.kafka.proxy import (
    END_TXN,
    WRITE_TXN_MARKERS,
    KafkaProxy,
    Request,
    ask_broker,
    choose_markers,
    pretend_markers_written,
    read_markers,
)

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
TIMEOUT = {"producer.transaction.timeout.ms": 1000}


@pytest.fixture(scope="module")
def proxy() -> Iterator[KafkaProxy]:
    proxy = KafkaProxy()
    advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}
    broker = KafkaBroker(settings={**SETTINGS, **advertised})
    proxy.target = broker.port
    yield proxy
    broker.close()
    proxy.close()


@pytest.fixture(autouse=True)
def passed_on(proxy: KafkaProxy) -> Iterator[None]:
    yield
    proxy.on_request = lambda request: None


def open_kafka(proxy: KafkaProxy, **settings: int) -> KafkaLog:
    return KafkaLog(f"kafka://127.0.0.1:{proxy.port}", settings)


def items(topic: str, number: int) -> list[tuple[TopicPartition, Records]]:
    return [(TopicPartition(topic, p), Records([b"k"], [b"%d/%d" % (number, p)], [1 + number])) for p in range(2)]


def values(log: KafkaLog, topic: str) -> list[list[bytes | None]]:
    found = [log.read(TopicPartition(topic, partition), 0) for partition in range(2)]
    return [[row[2] for chunk in chunks for row in chunk.rows()] for chunks in found]


def expected(batches: int) -> list[list[bytes]]:
    return [[b"%d/%d" % (number, partition) for number in range(batches)] for partition in range(2)]


@pytest.mark.parametrize("turn", [2, 3])
def test_a_committed_transaction_that_hangs_in_the_cluster_is_ended_again(
    proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, turn: int
):
    """As after a broker that has lost the end of a transaction in its restart: the coordinator takes it for written."""
    name, lost = f"hanging-{turn}", list[Request]()
    monkeypatch.setattr(delivery, "HANGING", 1.0)

    def lose_one(request: Request) -> bytes | None:
        if request.api != WRITE_TXN_MARKERS or lost:
            return None
        lost.append(request)
        return pretend_markers_written(request)

    with open_kafka(proxy) as log:
        log.create_topic(name, 2)
        for number in range(turn + 3):
            if number == turn:
                proxy.on_request = lose_one
            log.deliver(name, number, items(name, number))
        assert lost
        assert "its transaction is ended again" in caplog.text
        assert values(log, name) == expected(turn + 3)
        assert log.delivered(name) == turn + 2


def test_an_end_of_a_transaction_that_arrives_after_its_timeout_delivers_nothing_and_the_next_start_continues(
    proxy: KafkaProxy,
):
    name, arrived, go_on = "late", threading.Event(), threading.Event()

    def hold_back(request: Request) -> bytes | None:
        if request.api == END_TXN and not arrived.is_set():
            arrived.set()
            go_on.wait(60)
        return None

    with open_kafka(proxy) as log:
        log.create_topic(name, 2)
    with open_kafka(proxy, **TIMEOUT) as log:
        log.deliver(name, 0, items(name, 0))
        proxy.on_request = hold_back
        failed = list[Exception]()

        def deliver() -> None:
            try:
                log.deliver(name, 1, items(name, 1))
            except ProducerFencedError as error:
                failed.append(error)

        delivering = threading.Thread(target=deliver)
        delivering.start()
        assert arrived.wait(60)
        with open_kafka(proxy) as reader:
            while reader.extents([name])[TopicPartition(name, 0)].end < 4:  # a record and an end for each batch
                arrived.wait(0.05)
        go_on.set()
        delivering.join(120)
        assert not delivering.is_alive()
    with open_kafka(proxy) as log:
        for number in range(1 + log.delivered(name), 3):
            log.deliver(name, number, items(name, number))
        assert values(log, name) == expected(3)


def test_a_new_instance_does_not_commit_a_transaction_whose_abort_was_lost(proxy: KafkaProxy):
    """A broker loses the abort of batch 1, in the partition of the markers alone.

    The next transaction of the same producer there would end it, too: as a commit, if that one is committed.
    """
    name, arrived, go_on = "lost-abort", threading.Event(), threading.Event()
    lost: list[Request] = []

    def on_request(request: Request) -> bytes | None:
        if request.api == END_TXN and not arrived.is_set():
            arrived.set()
            go_on.wait(60)
        if request.api == WRITE_TXN_MARKERS and not lost and not any(some.is_commit for some in read_markers(request)):
            lost.append(request)
            ask_broker(proxy.target, choose_markers(request, lambda topic: topic != f"{name}-delivered".encode()))
            return pretend_markers_written(request)
        return None

    with open_kafka(proxy) as first, open_kafka(proxy, **{"default.api.timeout.ms": 3000}) as second:
        first.create_topic(name, 2)
        first.deliver(name, 0, items(name, 0))
        proxy.on_request = on_request
        fenced = list[StreamsError]()

        def deliver() -> None:
            try:
                first.deliver(name, 1, items(name, 1))
            except StreamsError as error:
                fenced.append(error)

        delivering = threading.Thread(target=deliver)
        delivering.start()
        assert arrived.wait(60)
        with pytest.raises(LogUnavailableError, match="a transaction hangs in the cluster"):
            second.deliver(name, 1, items(name, 1))
        assert lost
        assert second.delivered(name) == 0
        # What `kafka-transactions.sh abort` does.
        ask_broker(proxy.target, choose_markers(lost[0], lambda topic: topic == f"{name}-delivered".encode()))
        for number in (1, 2):
            second.deliver(name, number, items(name, number))
        go_on.set()
        delivering.join(120)
        assert fenced
        assert values(second, name) == expected(3)
        assert second.delivered(name) == 2
