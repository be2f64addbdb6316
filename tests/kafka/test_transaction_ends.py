"""Ends of transactions that arrive late, or not at all: a proxy is between the brokers, the clients and each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from headrace.errors import LogUnavailableError, ProducerFencedError, StreamsError
from headrace.log.kafka import KafkaLog, delivery, markers
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
TIMEOUT = {"producer.transaction.timeout.ms": 10_000}


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
def passed_on(proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(delivery, "HANGING", 3.0)
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


def lose_one_end(lost: list[Request]) -> Callable[[Request], bytes | None]:
    """Returns a handler that loses the end of the next transaction, and adds its request to `lost`."""

    def on_request(request: Request) -> bytes | None:
        if request.api != WRITE_TXN_MARKERS or lost:
            return None
        lost.append(request)
        return pretend_markers_written(request)

    return on_request


@pytest.mark.parametrize("turn", [2, 3])
def test_a_committed_transaction_that_hangs_in_the_cluster_is_ended_again(
    proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, turn: int
):
    """As after a broker that has lost the end of a transaction in its restart: the coordinator takes it for written."""
    name, lost = f"hanging-{turn}", list[Request]()
    monkeypatch.setattr(delivery, "HANGING", 1.0)

    with open_kafka(proxy) as log:
        log.create_topic(name, 2)
        for number in range(turn + 3):
            if number == turn:
                proxy.on_request = lose_one_end(lost)
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
        failed = list[ProducerFencedError]()

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
        # The producer is fenced; or its request was given up before the answer came, and it has delivered anew.
        assert log.delivered(name) == (0 if failed else 1)
        for number in range(1 + log.delivered(name), 3):
            log.deliver(name, number, items(name, number))
        assert values(log, name) == expected(3)


@contextmanager
def lost_abort(proxy: KafkaProxy, name: str, *, everywhere: bool = False) -> Iterator[tuple[KafkaLog, list[Request]]]:
    """A second instance, and what a broker has lost as soon as it begins: the abort of batch 1 of the first instance.

    It is lost in the partition of the markers alone, or in all of them. The next transaction of the same producer there
    would end it, too: as a commit, if that one is committed.
    """
    arrived, go_on = threading.Event(), threading.Event()
    lost: list[Request] = []

    def on_request(request: Request) -> bytes | None:
        if request.api == END_TXN and not arrived.is_set():
            arrived.set()
            go_on.wait(60)
        if request.api == WRITE_TXN_MARKERS and not lost and not any(some.is_commit for some in read_markers(request)):
            lost.append(request)
            if not everywhere:
                ask_broker(proxy.target, choose_markers(request, lambda topic: topic != f"{name}-delivered".encode()))
            return pretend_markers_written(request)
        return None

    with open_kafka(proxy) as first, open_kafka(proxy, **{"default.api.timeout.ms": 12_000}) as second:
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
        yield second, lost
        go_on.set()
        delivering.join(120)
        assert fenced
        assert values(second, name) == expected(3)
        assert second.delivered(name) == 2


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_new_instance_aborts_a_transaction_whose_abort_was_lost(
    proxy: KafkaProxy, caplog: pytest.LogCaptureFixture, everywhere: bool
):
    """The records of the coordinator tell that it was aborted."""
    name = f"lost-abort-{everywhere}"
    with lost_abort(proxy, name, everywhere=everywhere) as (second, lost):
        for number in (1, 2):
            second.deliver(name, number, items(name, number))
        assert lost
        assert "it is ended again, as was decided" in caplog.text


def test_a_new_instance_commits_a_transaction_whose_commit_was_lost(
    proxy: KafkaProxy, caplog: pytest.LogCaptureFixture
):
    name, lost = "lost-commit", list[Request]()

    with open_kafka(proxy) as first:
        first.create_topic(name, 2)
        first.deliver(name, 0, items(name, 0))
        proxy.on_request = lose_one_end(lost)
        first.begin_delivery(name, 1, items(name, 1))  # and ends before it has seen it
    with open_kafka(proxy, **{"default.api.timeout.ms": 12_000}) as second:
        assert not second.deliver(name, 1, items(name, 1))
        assert lost
        assert "it is ended again, as was decided" in caplog.text
        for number in range(2, 5):
            second.deliver(name, number, items(name, number))
        assert values(second, name) == expected(5)
        assert second.delivered(name) == 4


def test_a_new_instance_that_cannot_know_the_outcome_does_not_end_a_transaction(
    proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch
):
    """As where ACLs keep the records of the coordinator from the application."""
    monkeypatch.setattr(markers, "find_outcome", lambda *_: None)
    name = "unknown-outcome"
    with lost_abort(proxy, name) as (second, lost):
        with pytest.raises(LogUnavailableError, match="a transaction hangs in the cluster"):
            second.deliver(name, 1, items(name, 1))
        assert lost
        assert second.delivered(name) == 0
        # What `kafka-transactions.sh abort` does.
        ask_broker(proxy.target, choose_markers(lost[0], lambda topic: topic == f"{name}-delivered".encode()))
        for number in (1, 2):
            second.deliver(name, number, items(name, number))
