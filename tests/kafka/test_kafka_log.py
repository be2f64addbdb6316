"""What only a Kafka cluster does: transactions of others, compaction, times, clients of any process."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from headrace.errors import ConfigError, LogUnavailableError, OffsetOutOfRangeError
from headrace.log.kafka import KafkaLog
from headrace.log.kafka.clients import kafka
from headrace.log.open import open_log
from headrace.log.protocol import Extent, Records
from headrace.model.ids import TopicPartition
from headrace.testing.broker import _free_port
from tests.clocks import ManualClock
from tests.kafka.room import Room
from tests.log.harness import A, records, rows, until, values

pytestmark = pytest.mark.kafka


@pytest.fixture
def room(warm: KafkaLog):
    with Room(warm, ManualClock(0)) as room:
        room.create_topic("a")
        yield room


def transaction(room: Room, end: Callable[[Any], None], *values: bytes) -> None:
    """Somebody else's transaction."""
    producer = kafka.Producer({
        "bootstrap.servers": room._log.url.removeprefix("kafka://"), "transactional.id": room.prefix + "other",
    })  # fmt: skip
    producer.init_transactions()
    producer.begin_transaction()
    for value in values:
        producer.produce(room.prefix + "a", value, partition=0, timestamp=10)
    producer.flush()
    end(producer)


def test_aborted_records_and_the_marks_of_transactions_are_not_seen(room: Room):
    room.append([(A, records(b"0"))])
    transaction(room, lambda producer: producer.abort_transaction(), b"1", b"2")
    transaction(room, lambda producer: producer.commit_transaction(), b"4")
    room.append([(A, records(b"6"))])
    until(lambda: room.extents(["a"])[A], Extent(0, 7))  # the commit is on its way
    assert [row[0] for row in rows(room, A)] == [0, 4, 6]
    for start in range(8):
        for end in range(start, 8):
            found = [row[0] for chunk in room.read(A, start, end) for row in chunk.rows()]
            assert found == [offset for offset in (0, 4, 6) if start <= offset < end]


def test_a_transaction_that_is_open_holds_back_what_comes_after_it(room: Room):
    def end(producer: Any) -> None:
        room.append([(A, records(b"later"))])
        assert room.extents(["a"])[A] == Extent(0, 0)
        with pytest.raises(OffsetOutOfRangeError):
            room.read(A, 0, 1)
        producer.commit_transaction()

    transaction(room, end, b"open")
    until(lambda: room.extents(["a"])[A], Extent(0, 3))
    assert values(room, A) == [b"open", b"later"]


def test_all_times_come_back(room: Room):
    room.append([(A, Records([None] * 3, [b""] * 3, [0, 1, 2**62]))])
    assert [row[3] for row in rows(room, A)] == [0, 1, 2**62]
    assert room.offsets_for_times({A: 0}) == {A: 0}
    assert room.offsets_for_times({A: 1}) == {A: 1}


def test_the_client_takes_the_time_0_for_now_which_is_why_it_is_written_otherwise(room: Room):
    producer = kafka.Producer({"bootstrap.servers": room._log.url.removeprefix("kafka://")})
    producer.produce(room.prefix + "a", b"x", partition=0, timestamp=0)
    assert producer.flush(30) == 0
    assert [row[3] > 1_000_000_000_000 for row in rows(room, A)] == [True]


def test_retention_that_overtakes_a_reader_is_an_error_that_says_so(room: Room):
    room.append([(A, records(*[b"x"] * 10))])
    reading = room.read(A, 0)
    room.delete_records({A: 5})
    with pytest.raises(OffsetOutOfRangeError, match=r"lost records while it was read: retention removed them"):
        list(reading)
    with pytest.raises(OffsetOutOfRangeError, match="removed by retention"):
        room.read(A, 0)


def test_many_ranges_can_be_read_at_once(room: Room):
    room.append([(A, records(*(b"%d" % i for i in range(1000))))])
    readers = [(row[2] for chunk in room.read(A, 100 * i) for row in chunk.rows()) for i in range(8)]
    assert [next(reader) for reader in readers] == [b"%d" % (100 * i) for i in range(8)]
    for reader in readers[::2]:
        assert len(list(reader)) >= 300
    for reader in readers[1::2]:
        reader.close()
    assert len(values(room, A)) == 1000


def _value_in_child(log: KafkaLog, at: TopicPartition, answers) -> None:
    answers.put([row[2] for chunk in log.read(at, 0) for row in chunk.rows()])


def test_a_log_can_be_used_after_a_fork_and_sent_to_other_processes(room: Room):
    room.append([(A, records(b"x"))])
    log, at = room._log, room._at(A)
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


def test_the_offsets_of_an_application_are_those_of_a_group(room: Room):
    room.append([(A, records(b"1", b"2"))])
    room.commit("application", {A: 2})
    assert room.committed("application") == {A: 2}
    assert room.groups()["application"].members == {}


def test_servers_that_are_not_there_and_settings_that_cannot_be_are_named():
    for address in ("kafka://", "kafka://host", "kafka://host:port"):
        with pytest.raises(ConfigError, match="write kafka://HOST:PORT"):
            open_log(address)
    nowhere = f"kafka://127.0.0.1:{_free_port()}"
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
