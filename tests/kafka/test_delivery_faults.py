"""Deliveries while brokers die, stand still or are taken over: a read-committed consumer sees all records, once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import Any

import confluent_kafka
import pytest

from headrace.clients.consumer import Consumer
from headrace.errors import LogBusyError, LogUnavailableError, ProducerFencedError, StreamsError
from headrace.log.kafka import KafkaLog
from headrace.log.kafka import producer as kafka_producer
from headrace.log.kafka.markers import marker_partition
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.testing import KafkaBroker, assert_eventually
from headrace.testing.broker import free_port

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
kafka: Any = confluent_kafka
_NAMES = (f"case-{i}" for i in count())
QUICK = {"default.api.timeout.ms": 10_000, "socket.timeout.ms": 1000, "socket.connection.setup.timeout.ms": 1000} | {
    "reconnect.backoff.max.ms": 200
}


PATIENT = {"default.api.timeout.ms": 180_000}
NOTICED: dict[str, bool] = {}  # restarts of a broker: after its cluster has noticed that it was away
AT_ONCE, CLEAN = {"at_once": True}, {"at_once": True, "clean": True}


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture
def log(broker: KafkaBroker) -> Iterator[KafkaLog]:
    with KafkaLog(broker.address, QUICK) as log:
        yield log


@pytest.fixture
def case(log: KafkaLog) -> str:
    """The name of an application, and of the topic that it writes to."""
    name = next(_NAMES)
    log.create_topic(name, 2)
    return name


class Hooked:
    """A producer with which something happens before or after its commit."""

    def __init__(self, producer: Any, around: Callable[[Callable[[], None]], None]) -> None:
        self._producer, self._around = producer, around

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def commit_transaction(self, timeout: float) -> None:
        self._around(lambda: self._producer.commit_transaction(timeout))


def hook(monkeypatch: pytest.MonkeyPatch, around: Callable[[Callable[[], None]], None], *, producers: int = 2) -> None:
    """The next producers for deliveries, two of which take turns, are hooked; those after them are as usual."""
    create, is_hooked = kafka_producer.create_client, iter([True] * producers)

    def hooked(kind: Any, settings: Any, fixed: dict[str, Any]) -> Any:
        producer = create(kind, settings, fixed)
        return Hooked(producer, around) if "transactional.id" in fixed and next(is_hooked, False) else producer

    monkeypatch.setattr(kafka_producer, "create_client", hooked)


def await_ends(broker: KafkaBroker, name: str) -> None:
    """Waits until all partitions have the end of the last transaction: Kafka may lose it if the broker dies before."""
    common = {"bootstrap.servers": broker.bootstrap, "group.id": "ends"}
    levels = ("read_committed", "read_uncommitted")
    readers = [kafka.Consumer({**common, "isolation.level": level}) for level in levels]
    places = [TopicPartition(name, 0), TopicPartition(name, 1), marker_partition(name)]
    try:
        for at in places:
            place = kafka.TopicPartition(at.topic, at.partition)
            assert_eventually(lambda at=place: len({reader.get_watermark_offsets(at, 10) for reader in readers}) == 1)
    finally:
        for reader in readers:
            reader.close()


def items(name: str, number: int) -> list[tuple[TopicPartition, Records]]:
    return [(TopicPartition(name, p), Records([b"k"], [b"%d/%d" % (number, p)], [1 + number])) for p in range(2)]


def stubbornly(log: KafkaLog, name: str, number: int) -> None:
    """As an application that is started again whenever its log was away for too long."""
    end = time.monotonic() + 240
    while time.monotonic() < end:
        with suppress(LogUnavailableError, LogBusyError):
            log.deliver(name, number, items(name, number))
            return
    pytest.fail(f"batch {number} of {name} could not be delivered")


def await_assignment(consumer: Consumer, *places: TopicPartition) -> None:
    while True:
        with suppress(StreamsError):
            return consumer.assign(*places)


def check(log: KafkaLog, name: str, batches: int) -> None:
    for partition in range(2):
        chunks = log.read(TopicPartition(name, partition), 0)
        values = [row[2] for chunk in chunks for row in chunk.rows()]
        assert values == [b"%d/%d" % (number, partition) for number in range(batches)]
    assert log.delivered(name) == batches - 1


# --------------------------------------------------------------------------------------------------------- brokers
def test_a_broker_that_comes_after_the_application_is_waited_for():
    port = free_port()
    with ThreadPoolExecutor(1) as threads, KafkaLog(f"kafka://127.0.0.1:{port}", PATIENT) as log:
        topics = threads.submit(log.topics)
        with KafkaBroker(port=port):
            assert topics.result(PATIENT["default.api.timeout.ms"] / 1000) == {}
            log.create_topic("first", 2)
            assert log.deliver("first", 0, items("first", 0))


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_broker_that_restarts_at_once_between_deliveries_changes_nothing(
    broker: KafkaBroker, log: KafkaLog, case: str, is_clean: bool
):
    for number in range(4):
        stubbornly(log, case, number)
        if number == 1:
            broker.restart(at_once=True, clean=is_clean)
    check(log, case, 4)


@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize("way", [NOTICED, AT_ONCE, CLEAN], ids=["noticed", "at once", "cleanly"])
def test_a_broker_that_dies_while_a_batch_is_delivered(
    broker: KafkaBroker, log: KafkaLog, case: str, monkeypatch, is_committed: bool, way: dict[str, bool]
):
    def around(commit: Callable[[], None]) -> None:
        if is_committed:  # and the answer is lost
            commit()
            if way == NOTICED:
                await_ends(broker, case)
        broker.restart(**way)
        raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TIMED_OUT))

    hook(monkeypatch, around)
    for number in range(3):
        stubbornly(log, case, number)
    check(log, case, 3)


def test_a_broker_that_is_away_is_waited_for_and_then_named(broker: KafkaBroker, log: KafkaLog, case: str):
    stubbornly(log, case, 0)
    broker.kill()
    with pytest.raises(LogUnavailableError, match="no answer"):
        log.deliver(case, 1, items(case, 1))
    broker.restart()
    stubbornly(log, case, 1)
    check(log, case, 2)


def test_a_broker_that_stands_still_during_a_commit_for_longer_than_a_request_may_take(
    broker: KafkaBroker, log: KafkaLog, case: str, monkeypatch
):
    def around(commit: Callable[[], None]) -> None:
        broker.pause()
        try:
            commit()
        finally:
            broker.resume()

    hook(monkeypatch, around)
    for number in range(3):
        stubbornly(log, case, number)
    check(log, case, 3)


def test_a_broker_that_dies_at_any_time_while_a_consumer_reads(broker: KafkaBroker, log: KafkaLog, case: str):
    batches, over, seen = 60, threading.Event(), dict[int, list[bytes]]({0: [], 1: []})

    def read() -> None:
        with KafkaLog(broker.address, QUICK) as own, Consumer(own, auto_offset_reset="earliest") as consumer:
            await_assignment(consumer, TopicPartition(case, 0), TopicPartition(case, 1))
            while not over.is_set() or min(map(len, seen.values())) < batches:
                try:
                    for record in consumer.poll(100):
                        seen[record.partition].append(record.value)
                except StreamsError:
                    continue

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(batches):
        if number in {20, 40}:
            troublemaker = threading.Thread(target=broker.restart)
            troublemaker.start()
        stubbornly(log, case, number)
        if number in {30, 50}:
            troublemaker.join()  # pyright: ignore[reportPossiblyUnboundVariable]
    over.set()
    reader.join(300)
    assert seen == {p: [b"%d/%d" % (number, p) for number in range(batches)] for p in range(2)}
    check(log, case, batches)


def test_a_transaction_that_had_to_be_aborted_for_a_reason_that_passes_is_done_again(
    broker: KafkaBroker, log: KafkaLog, case: str, monkeypatch
):
    log.deliver(case, 0, items(case, 0))
    answers = iter([None, kafka.KafkaError.NOT_ENOUGH_REPLICAS])

    def around(commit: Callable[[], None]) -> None:
        code = next(answers, None)
        if code is None:
            return commit()
        raise kafka.KafkaException(kafka.KafkaError(code, "too few", False, False, True))

    hook(monkeypatch, around)
    with KafkaLog(broker.address, QUICK) as second:
        for number in (1, 2):
            assert second.deliver(case, number, items(case, number))
    assert list(answers) == []
    check(log, case, 3)


def test_the_open_transaction_of_another_producer_hides_deliveries_but_does_not_stop_them(
    broker: KafkaBroker, log: KafkaLog, case: str, caplog
):
    log.deliver(case, 0, items(case, 0))
    other = kafka.Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"{case}-other"})
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(case, b"never", partition=0)
    other.flush(30)
    for number in (1, 2):
        assert log.deliver(case, number, items(case, number))
    assert log.extents([case])[TopicPartition(case, 0)].end < log.extents([case])[TopicPartition(case, 1)].end
    assert caplog.text.count("not visible yet") == 1
    other.abort_transaction(30)
    log.deliver(case, 3, items(case, 3))
    check(log, case, 4)


# --------------------------------------------------------------------------------------------------- two instances
def test_of_two_instances_the_first_is_fenced(broker: KafkaBroker, log: KafkaLog, case: str):
    log.deliver(case, 0, items(case, 0))
    with KafkaLog(broker.address, QUICK) as second:
        second.deliver(case, 1, items(case, 1))
        for _ in range(2):
            with pytest.raises(ProducerFencedError, match="another instance"):
                log.deliver(case, 1, items(case, 1))
        second.deliver(case, 2, items(case, 2))
        check(second, case, 3)


@pytest.mark.parametrize("turn", [1, 2])
def test_a_new_instance_fences_both_producers_of_the_first(broker: KafkaBroker, log: KafkaLog, case: str, turn: int):
    for number in range(turn):
        log.deliver(case, number, items(case, number))
    with KafkaLog(broker.address, QUICK) as second:
        second.deliver(case, turn, items(case, turn))
        with pytest.raises(ProducerFencedError, match="another instance"):
            log.deliver(case, turn, items(case, turn))
        check(second, case, turn + 1)


def test_batches_that_are_in_delivery_at_the_same_time_are_seen_in_order(log: KafkaLog, case: str):
    waits = [log.begin_delivery(case, number, items(case, number)) for number in range(6)]
    for wait in waits:
        wait()
    check(log, case, 6)


def test_an_instance_that_is_taken_over_in_the_middle_of_a_commit(
    broker: KafkaBroker, log: KafkaLog, case: str, monkeypatch
):
    with KafkaLog(broker.address, QUICK) as second:

        def around(commit: Callable[[], None]) -> None:
            assert second.deliver(case, 0, items(case, 0))
            commit()

        hook(monkeypatch, around)
        with pytest.raises(ProducerFencedError, match="another instance"):
            log.deliver(case, 0, items(case, 0))
        second.deliver(case, 1, items(case, 1))
        check(second, case, 2)
