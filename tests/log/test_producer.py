"""Sending: partitions, serdes, batches, retries, errors, threads."""

import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace import serde
from headrace.clients.consumer import Consumer
from headrace.clients.producer import Producer
from headrace.errors import (
    LogBusyError,
    LogUnavailableError,
    ProducerFencedError,
    RecordTooLargeError,
    SerializationError,
    UnknownTopicError,
)
from headrace.log.embedded.file_log import FileLog
from headrace.log.open import open_log
from headrace.log.protocol import Item, Log, ProducerSequence
from headrace.model.ids import TopicPartition
from headrace.model.partitioner import partition_of
from headrace.model.record import RecordMetadata
from tests.clocks import ManualClock
from tests.log.harness import NOW, A, B, rows, values

LONG = 3_600_000  # a linger that no test waits for


class Unreliable:
    """A log whose appends fail as they are told to, before or after they have been stored."""

    def __init__(self, log: Log, *troubles: Exception, stored: bool = True) -> None:
        self._log, self._troubles, self._stored = log, list(troubles), stored
        self.sequences: list[ProducerSequence | None] = []

    def __getattr__(self, name: str):
        return getattr(self._log, name)

    def append(self, items: Sequence[Item], *, sequence: ProducerSequence | None = None) -> list[int]:
        self.sequences.append(sequence)
        trouble = self._troubles.pop(0) if self._troubles else None
        if trouble is None or self._stored:
            offsets = self._log.append(items, sequence=sequence)
        if trouble is not None:
            raise trouble
        return offsets  # pyright: ignore[reportPossiblyUnboundVariable]


def producer_on(log: Any, **options: Any) -> Producer:
    return Producer(log, **options)


@pytest.fixture(autouse=True)
def no_threads_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


# ------------------------------------------------------------------------------------------------------- where to
def test_a_key_goes_where_kafka_sends_it(log: Log):
    with Producer(log, key=serde.STRING, value=serde.STRING) as producer:
        sent = [producer.send("b", f"key {i}", "v") for i in range(30)]
        partitions = [delivery.result().partition for delivery in sent]
    assert partitions == [partition_of(f"key {i}".encode(), 3) for i in range(30)]
    assert set(partitions) == {0, 1, 2}


def test_records_without_a_key_stay_together_and_move_on_with_each_batch(log: Log):
    with Producer(log, linger=LONG) as producer:
        for _ in range(4):
            for _ in range(5):
                producer.send("b", None, b"v")
            producer.flush()
    assert [len(rows(log, TopicPartition("b", i))) for i in range(3)] == [10, 5, 5]


def test_a_partition_or_a_partitioner_may_be_given(log: Log):
    seen = []

    def by_length(topic, key, value, partitions):
        seen.append((topic, key, value, partitions))
        return len(value) if value else None

    with Producer(log, value=serde.STRING, partitioner=by_length) as producer:
        assert producer.send("b", b"k", "xx").result() == RecordMetadata("b", 2, 0)
        assert producer.send("b", b"k", "xx", partition=1).result() == RecordMetadata("b", 1, 0)
        assert producer.send("b", b"k", "xx", partitioner=lambda *_: 0).result() == RecordMetadata("b", 0, 0)
        assert producer.send("b", b"k", "").result().partition == partition_of(b"k", 3)
        for partition in (3, -1):
            with pytest.raises(UnknownTopicError, match=f"no partition {partition}: it has 3"):
                producer.send("b", b"k", "x", partition=partition)
        with pytest.raises(UnknownTopicError, match="no topic 'x'"):
            producer.send("x", b"k", "x")
    assert seen[0] == ("b", b"k", "xx", 3)


def test_new_partitions_are_used(log: Log):
    with Producer(log, linger=0) as producer:
        assert producer.send("a", b"k3", b"").result().partition == 0
        log.add_partitions("a", 100)
        assert producer.send("a", b"k3", b"").result().partition == partition_of(b"k3", 100)


# ------------------------------------------------------------------------------------------------------ what is sent
def test_times_and_headers_are_kept(log: Log, clock: ManualClock):
    with Producer(log, clock=clock) as producer:
        producer.send("a", None, b"1", headers=[("h", b"x"), ("h", None)])
        producer.send("a", None, b"2", timestamp=5)
        producer.send("a", None, None, timestamp=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
        with pytest.raises(ValueError, match="0 or more"):
            producer.send("a", None, b"", timestamp=-1)
        with pytest.raises(ValueError, match="without an offset from UTC"):
            producer.send("a", None, b"", timestamp=datetime(1970, 1, 1))  # noqa: DTZ001
    assert [row[2:] for row in rows(log, A)] == [
        (b"1", NOW, (("h", b"x"), ("h", None))),
        (b"2", 5, ()),
        (None, 1000, ()),
    ]


def test_what_a_serde_refuses_is_an_error_at_once(log: Log):
    with Producer(log, value=serde.LONG) as producer:
        with pytest.raises(SerializationError, match="the value of a record for 'a' cannot be encoded: LONG"):
            producer.send("a", b"k", "text")  # pyright: ignore[reportCallIssue, reportArgumentType]
        with pytest.raises(SerializationError, match="the key of a record for 'a'"):
            producer.send("a", "text", 1)  # pyright: ignore[reportCallIssue, reportArgumentType]
        producer.send("a", "text", 1, key_serde=serde.STRING)
        producer.send("a", None, "text", value_serde=serde.STRING)
    assert [row[1:3] for row in rows(log, A)] == [(b"text", bytes(7) + b"\x01"), (None, b"text")]


def test_what_a_topic_refuses_is_an_error_at_once(log: Log):
    log.alter_config("a", {"max.message.bytes": 10})
    log.alter_config("b", {"cleanup.policy": "compact"})
    with Producer(log) as producer:
        with pytest.raises(RecordTooLargeError, match="11 bytes is too large for the topic 'a'"):
            producer.send("a", b"k", b"x" * 10)
        with pytest.raises(ValueError, match="compacted: a record for it needs a key"):
            producer.send("b", None, b"x")


# --------------------------------------------------------------------------------------------------------- batches
def test_records_wait_for_each_other_and_are_appended_once(log: Log):
    watched = Unreliable(log)
    producer = producer_on(watched, linger=LONG)
    sent = [producer.send(topic, b"%d" % i, b"v") for i in range(100) for topic in ("a", "b")]
    assert not any(delivery.done() for delivery in sent)
    assert (len(watched.sequences), rows(log, A)) == (0, [])
    assert sent[0].offset == 0  # asking for it ends the wait
    producer.flush()
    assert all(delivery.done() for delivery in sent)
    assert len(watched.sequences) == 1
    assert [delivery.result().offset for delivery in sent[::2]] == list(range(100))
    producer.close()


def test_a_full_batch_does_not_wait(log: Log):
    producer = Producer(log, linger=LONG, batch_size=1000)
    sent = [producer.send("a", None, b"x" * 100) for _ in range(20)]
    sent[0]._batch._stored.wait(30)
    assert sent[0].done()
    producer.close()
    assert len(rows(log, A)) == 20


def test_a_sender_that_is_faster_than_the_log_has_to_wait(log: Log):
    with Producer(log, buffer_size=2000, linger=0) as producer:
        for i in range(300):
            producer.send("a", None, b"%0100d" % i)
            assert producer._size <= 2200
    assert values(log, A) == [b"%0100d" % i for i in range(300)]


def test_many_threads_may_use_one_producer(log: Log):
    with Producer(log, linger=1) as producer:

        def send(name: int) -> None:
            for i in range(50):
                producer.send("a", b"%d" % name, b"%d" % i)

        threads = [threading.Thread(target=send, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for name in range(6):
        assert [row[2] for row in rows(log, A) if row[1] == b"%d" % name] == [b"%d" % i for i in range(50)]


# ---------------------------------------------------------------------------------------------------------- trouble
@pytest.mark.parametrize("stored", [True, False])
def test_after_an_unclear_outcome_nothing_is_lost_or_stored_twice(log: Log, stored):
    trouble = [LogBusyError("who knows"), LogBusyError("still not")]
    unreliable = Unreliable(log, *trouble, stored=stored)
    with producer_on(unreliable) as producer:
        assert producer.send("a", None, b"1").result().offset == 0
        assert producer.send("a", None, b"2").result().offset == 1
    assert values(log, A) == [b"1", b"2"]
    assert len(set(unreliable.sequences[:3])) == 1
    assert len(set(unreliable.sequences)) == 2


def test_a_producer_that_was_idle_for_too_long_gets_a_new_id(log: Log):
    unreliable = Unreliable(log, ProducerFencedError("idle"), stored=False)
    with producer_on(unreliable) as producer:
        producer.send("a", None, b"1")
    first, second = unreliable.sequences
    assert first is not None
    assert second is not None
    assert first.producer_id != second.producer_id
    assert values(log, A) == [b"1"]


def test_an_error_is_raised_where_the_result_is_asked_for_and_only_once(log: Log):
    producer = producer_on(Unreliable(log, *[LogUnavailableError("full")] * 2, stored=False), linger=LONG)
    asked = producer.send("a", None, b"1")
    with pytest.raises(LogUnavailableError, match="full"):
        asked.result()
    assert str(asked.exception()) == "full"
    producer.flush()  # result() has raised the error
    producer.send("a", None, b"2")
    with pytest.raises(LogUnavailableError, match="full"):
        producer.flush()  # nothing else has raised this one
    assert producer.send("a", None, b"3").exception() is None
    producer.close()
    assert values(log, A) == [b"3"]


def test_a_topic_that_is_gone_fails_only_its_own_records(log: Log):
    producer = Producer(log, linger=LONG)
    lost, kept = producer.send("b", b"k", b"1"), producer.send("a", b"k", b"2")
    log.delete_topic("b")
    with pytest.raises(UnknownTopicError, match="no topic 'b'"):
        producer.close()
    assert isinstance(lost.exception(), UnknownTopicError)
    assert kept.result() == RecordMetadata("a", 0, 0)


def test_an_error_in_a_with_block_is_the_one_that_is_seen(log: Log):
    def run() -> None:
        with producer_on(Unreliable(log, LogUnavailableError("full"))) as producer:
            producer.send("a", None, b"1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()


def test_waiting_for_a_delivery_can_end(log: Log):
    hold = threading.Event()

    class Slow(Unreliable):
        def append(self, items, *, sequence=None):
            hold.wait()
            return super().append(items, sequence=sequence)

    producer = producer_on(Slow(log))
    sent = producer.send("a", None, b"1")
    with pytest.raises(LogBusyError, match="a-0 was not stored within 1 ms"):
        sent.result(timeout=1)
    with pytest.raises(LogBusyError, match="within 1 ms"):
        sent.exception(timeout=1)
    hold.set()
    producer.close()
    assert sent.offset == 0


def test_a_producer_closes_the_log_that_it_opened(embedded: FileLog):
    with Producer(embedded.url) as producer:
        assert embedded._resources.users == 2
        producer.send("a", None, b"1")
    assert embedded._resources.users == 1
    log = open_log(embedded.url)
    with Producer(log) as producer:
        producer.send("b", b"k", b"1", partition=0)
    assert values(log, B) == [b"1"]
    log.close()


def test_flush_waits_no_longer_than_its_timeout(tmp_path):
    """Another process holds the log's lock, so nothing can be stored until it is gone."""
    with FileLog(tmp_path) as log:
        log.create_topic("a")
        stored, release = log.append, threading.Event()

        def append_later(items, **options):
            release.wait()
            return stored(items, **options)

        log.append = append_later
        producer = Producer(log)
        delivery = producer.send("a", b"k", b"v")
        with pytest.raises(LogBusyError, match="not every record was stored within 20 ms"):
            producer.flush(20)
        with pytest.raises(LogBusyError):
            producer.flush(timedelta(milliseconds=1))
        release.set()
        producer.flush(timedelta(seconds=10))
        assert delivery.result().offset == 0
        producer.close()


def test_the_old_names_of_the_serdes_work_and_warn(log):
    with pytest.warns(DeprecationWarning, match="key_serde= is now key="):
        Producer(log, key_serde=serde.STRING).close()
    with pytest.warns(DeprecationWarning, match="value_serde= is now value="):
        Consumer(log, value_serde=serde.STRING).close()
