"""What only a Kafka cluster does: transactions of others, compaction, times, clients of any process."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import ConfigError, LogUnavailableError, OffsetOutOfRangeError
from headrace.log.kafka import KafkaLog
from headrace.log.kafka import reader as kafka_reader
from headrace.log.kafka.clients import kafka
from headrace.log.open import open_log
from headrace.log.protocol import Extent, Records
from headrace.model.ids import TopicPartition
from headrace.testing.broker import free_port
from tests.clocks import ManualClock
from tests.kafka.prefixed_log import PrefixedLog
from tests.log.harness import A, records, rows, until, values

pytestmark = pytest.mark.kafka


@pytest.fixture
def prefixed(warm: KafkaLog):
    with PrefixedLog(warm, ManualClock(0)) as prefixed:
        prefixed.create_topic("a")
        yield prefixed


def transaction(prefixed: PrefixedLog, end: Callable[[Any], None], *values: bytes) -> None:
    """Somebody else's transaction."""
    producer = kafka.Producer({
        "bootstrap.servers": prefixed._log.url.removeprefix("kafka://"), "transactional.id": prefixed.prefix + "other",
    })  # fmt: skip
    producer.init_transactions()
    producer.begin_transaction()
    for value in values:
        producer.produce(prefixed.prefix + "a", value, partition=0, timestamp=10)
    producer.flush()
    end(producer)


def test_aborted_records_and_the_marks_of_transactions_are_not_seen(prefixed: PrefixedLog):
    prefixed.append([(A, records(b"0"))])
    transaction(prefixed, lambda producer: producer.abort_transaction(), b"1", b"2")
    transaction(prefixed, lambda producer: producer.commit_transaction(), b"4")
    until(lambda: prefixed.extents(["a"])[A], Extent(0, 6))  # its mark, at 5, is on its way
    prefixed.append([(A, records(b"6"))])
    until(lambda: prefixed.extents(["a"])[A], Extent(0, 7))
    assert [row[0] for row in rows(prefixed, A)] == [0, 4, 6]
    for start in range(8):
        for end in range(start, 8):
            found = [row[0] for chunk in prefixed.read(A, start, end) for row in chunk.rows()]
            assert found == [offset for offset in (0, 4, 6) if start <= offset < end]


def test_a_transaction_that_is_open_holds_back_what_comes_after_it(prefixed: PrefixedLog):
    def end(producer: Any) -> None:
        prefixed.append([(A, records(b"later"))])
        assert prefixed.extents(["a"])[A] == Extent(0, 0)
        with pytest.raises(OffsetOutOfRangeError):
            prefixed.read(A, 0, 1)
        producer.commit_transaction()

    transaction(prefixed, end, b"open")
    until(lambda: prefixed.extents(["a"])[A], Extent(0, 3))
    assert values(prefixed, A) == [b"open", b"later"]


def test_an_offset_that_a_leader_did_not_give_is_asked_for_again(prefixed: PrefixedLog, monkeypatch):
    """The client reports an answer that was lost as the offset -1001, without an error."""
    prefixed.append([(A, records(b"0"))])
    ask_all, lost = kafka_reader.ask_all, Future[Any]()
    lost.set_result(SimpleNamespace(offset=kafka.OFFSET_INVALID))

    def lose_answers(*given: Any) -> Any:
        monkeypatch.setattr(kafka_reader, "ask_all", ask_all)
        return dict.fromkeys(ask_all(*given), lost)

    monkeypatch.setattr(kafka_reader, "ask_all", lose_answers)
    assert prefixed.extents(["a"])[A] == Extent(0, 1)
    assert kafka_reader.ask_all is ask_all


def test_all_times_come_back(prefixed: PrefixedLog):
    prefixed.append([(A, Records([None] * 3, [b""] * 3, [0, 1, 2**62]))])
    assert [row[3] for row in rows(prefixed, A)] == [0, 1, 2**62]
    assert prefixed.offsets_for_times({A: 0}) == {A: 0}
    assert prefixed.offsets_for_times({A: 1}) == {A: 1}


def test_the_client_takes_the_time_0_for_now_which_is_why_it_is_written_otherwise(prefixed: PrefixedLog):
    producer = kafka.Producer({"bootstrap.servers": prefixed._log.url.removeprefix("kafka://")})
    producer.produce(prefixed.prefix + "a", b"x", partition=0, timestamp=0)
    assert producer.flush(30) == 0
    assert [row[3] > 1_000_000_000_000 for row in rows(prefixed, A)] == [True]


def test_retention_that_overtakes_a_reader_is_an_error_that_says_so(prefixed: PrefixedLog):
    prefixed.append([(A, records(*[b"x"] * 10))])
    reading = prefixed.read(A, 0)
    prefixed.delete_records({A: 5})
    with pytest.raises(OffsetOutOfRangeError, match=r"lost records while it was read: retention removed them"):
        list(reading)
    with pytest.raises(OffsetOutOfRangeError, match="removed by retention"):
        prefixed.read(A, 0)


def test_many_ranges_can_be_read_at_once(prefixed: PrefixedLog):
    prefixed.append([(A, records(*(b"%d" % i for i in range(1000))))])
    readers = [(row[2] for chunk in prefixed.read(A, 100 * i) for row in chunk.rows()) for i in range(8)]
    assert [next(reader) for reader in readers] == [b"%d" % (100 * i) for i in range(8)]
    for reader in readers[::2]:
        assert len(list(reader)) >= 300
    for reader in readers[1::2]:
        reader.close()
    assert len(values(prefixed, A)) == 1000


def _value_in_child(log: KafkaLog, at: TopicPartition, answers) -> None:
    answers.put([row[2] for chunk in log.read(at, 0) for row in chunk.rows()])


def test_a_log_can_be_used_after_a_fork_and_sent_to_other_processes(prefixed: PrefixedLog):
    prefixed.append([(A, records(b"x"))])
    log, at = prefixed._log, prefixed._at(A)
    assert list(log.read(at, 0))  # its clients are connected
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_value_in_child, args=(log, at, answers))
    child.start()
    assert answers.get(timeout=60) == [b"x"]
    child.kill()
    child.join()
    answers.close()
    with pickle.loads(pickle.dumps(log)) as copy:
        assert len(list(copy.read(at, 0))) == 1


def test_the_offsets_of_an_application_are_those_of_a_group(prefixed: PrefixedLog):
    prefixed.append([(A, records(b"1", b"2"))])
    prefixed.commit("application", {A: 2})
    assert prefixed.committed("application") == {A: 2}
    assert prefixed.groups()["application"].members == {}


def test_servers_that_are_not_there_and_settings_that_cannot_be_are_named():
    for address in ("kafka://", "kafka://host", "kafka://host:port"):
        with pytest.raises(ConfigError, match="write kafka://HOST:PORT"):
            open_log(address)
    nowhere = f"kafka://127.0.0.1:{free_port()}"
    with (
        KafkaLog(nowhere, {"default.api.timeout.ms": 500}) as log,
        pytest.raises(LogUnavailableError, match=r"got no answer: .* Are the brokers running"),
    ):
        log.topics()
    with (
        KafkaLog(nowhere, {"admin.colour": "red"}) as log,
        pytest.raises(ConfigError, match='No such configuration property: "colour"'),
    ):
        log.topics()
