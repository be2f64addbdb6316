"""What every log does, whatever it is made of."""

import threading

import pytest

from headrace.errors import (
    ConfigError,
    LogCorruptedError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    RecordTooLargeError,
    TopicExistsError,
    UnknownTopicError,
)
from headrace.log.chunk_format import pack
from headrace.log.embedded.file_log import FileLog
from headrace.log.protocol import Chunk, Extent, Log, ProducerSequence, Records
from headrace.model.ids import TopicPartition
from tests.clocks import ManualClock
from tests.log.harness import NOW, A, B, records, rows, values

B1, B2 = TopicPartition("b", 1), TopicPartition("b", 2)


# ----------------------------------------------------------------------------------------------------------- topics
def test_topics_have_partitions_a_complete_configuration_and_an_id(log: Log):
    topic = log.create_topic("c", 4, {"retention.ms": 1000, "segment.bytes": 1 << 20})
    assert (topic.name, topic.partitions, topic.config["retention.ms"]) == ("c", 4, "1000")
    assert topic.config["cleanup.policy"] == "delete"
    assert list(log.topics()) == ["a", "b", "c"]
    assert log.topic("c") == topic == log.topics()["c"]


def test_a_topic_created_again_is_empty_and_has_another_id(log: Log):
    log.append([(A, records(b"old"))])
    before = log.topic("a").id
    log.delete_topic("a")
    with pytest.raises(UnknownTopicError, match="no topic 'a'"):
        rows(log, A)
    after = log.create_topic("a")
    assert after.id != before
    assert rows(log, A) == []
    with pytest.raises(UnknownTopicError, match="created again"):
        log.read(A, 0, topic_id=before)
    assert list(log.read(A, 0, topic_id=after.id)) == []


def test_partitions_can_be_added_and_not_taken_away(log: Log):
    log.append([(A, records(b"x"))])
    assert log.add_partitions("a", 3).partitions == 3
    log.append([(TopicPartition("a", 2), records(b"y"))])
    assert log.extents(["a"]) == {A: Extent(0, 1), ("a", 1): Extent(0, 0), ("a", 2): Extent(0, 1)}
    with pytest.raises(ValueError, match="has 3 partitions"):
        log.add_partitions("a", 2)


def test_settings_can_be_changed_and_given_back(log: Log):
    assert log.alter_config("a", {"retention.ms": 5, "max.message.bytes": 10}).config["retention.ms"] == "5"
    changed = log.alter_config("a", {"retention.ms": None})
    assert (changed.config["retention.ms"], changed.config["max.message.bytes"]) == ("-1", "10")


@pytest.mark.parametrize(
    "config, message",
    [
        ({"retention.m": 1}, "did you mean 'retention.ms'"),
        ({"colour": "red"}, "no setting 'colour'"),
        ({"retention.ms": "soon"}, "whole number, or -1"),
        ({"retention.bytes": -2}, "retention.bytes"),
        ({"cleanup.policy": "burn"}, "'delete', 'compact'"),
        ({"message.timestamp.type": "Now"}, "'CreateTime' or 'LogAppendTime'"),
        ({"max.message.bytes": -1}, "max.message.bytes"),
    ],
)
def test_settings_that_mean_nothing_are_refused(log: Log, config, message):
    with pytest.raises(ConfigError, match=message):
        log.create_topic("c", config=config)
    with pytest.raises(ConfigError, match=message):
        log.alter_config("a", config)


def test_names_and_numbers_of_partitions_are_checked(log: Log):
    for name in ("", "a/b", "..", "x" * 250, "ä"):
        with pytest.raises(ValueError, match="cannot be the name of a topic"):
            log.create_topic(name)
    for count in (0, -1, 10_001):
        with pytest.raises(ValueError, match="1 to 10000 partitions"):
            log.create_topic("c", count)
    with pytest.raises(TopicExistsError, match="'a' already, with 1"):
        log.create_topic("a")
    with pytest.raises(UnknownTopicError, match="no topic 'c'"):
        log.delete_topic("c")
    with pytest.raises(UnknownTopicError, match="there are: a, b"):
        log.extents(["c"])
    with pytest.raises(UnknownTopicError, match="no partition 3"):
        log.append([(TopicPartition("b", 3), records(b"x"))])


def test_of_many_topics_an_error_names_those_that_are_most_alike(log: Log):
    for number in range(10):
        log.create_topic(f"orders-{number}")
    with pytest.raises(UnknownTopicError, match=r"there is no topic 'order-3' \(there are: orders-0, .*orders-9\b"):
        log.topic("order-3")


# ---------------------------------------------------------------------------------------------------------- records
def test_records_come_back_as_they_were(log: Log):
    headers = ((), (("h", b"1"), ("h", None)), ())
    log.append([(A, Records([b"k", None, b""], [None, b"", b"v"], [5, 3, 2**62], headers))])
    assert rows(log, A) == [
        (0, b"k", None, 5, ()),
        (1, None, b"", 3, (("h", b"1"), ("h", None))),
        (2, b"", b"v", 2**62, ()),
    ]


def test_one_append_goes_to_many_partitions(log: Log):
    assert log.append([(A, records(b"1", b"2")), (B, records(b"3")), (A, pack(records(b"4"))), (B1, records())]) == [
        0, 0, 2, 0,
    ]  # fmt: skip
    assert log.append([(A, records(b"5"))]) == [3]
    assert log.append([]) == []
    assert (values(log, A), values(log, B), values(log, B1)) == ([b"1", b"2", b"4", b"5"], [b"3"], [])
    assert log.extents(["b", "a"]) == {A: Extent(0, 4), B: Extent(0, 1), B1: Extent(0, 0), B2: Extent(0, 0)}


def test_an_append_that_cannot_be_stored_completely_is_not_stored_at_all(log: Log):
    for bad in ((TopicPartition("x", 0), records(b"2")), (TopicPartition("a", 1), records(b"2"))):
        with pytest.raises(UnknownTopicError):
            log.append([(A, records(b"1")), bad])
    with pytest.raises(LogCorruptedError, match="arrived damaged"):
        log.append([(A, records(b"1")), (B, pack(records(b"2"))[:-1])])
    with pytest.raises(ValueError, match="same length"):
        log.append([(A, Records([b"1"], [b"1", b"2"], [1]))])
    assert rows(log, A) == []


def test_what_is_of_the_wrong_type_is_refused(log: Log):
    for bad in (Records([1], [b""], [1]), Records([b""], [b""], ["soon"]), Records([b""], [b""], [2**63])):  # pyright: ignore[reportArgumentType]
        with pytest.raises((TypeError, OverflowError)):
            log.append([(A, bad)])
    with pytest.raises(TypeError):
        log.deliver(object(), 0, [(A, records(b"1"))])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="packed with offsets"):
        log.append([(A, pack(records(b"1"), [7]))])
    assert rows(log, A) == []


def test_ranges_are_read_exactly(log: Log):
    for i in range(5):
        log.append([(A, records(*(b"%d" % (3 * i + j) for j in range(3))))])
    for start in range(16):
        for end in range(start, 16):
            assert [row[0] for row in rows(log, A, start, end)] == list(range(start, end))
    assert [row[2] for row in rows(log, A, 4, 8)] == [b"4", b"5", b"6", b"7"]


def test_offsets_that_are_not_there_are_an_error(log: Log):
    log.append([(A, records(b"1", b"2"))])
    for start, end in ((0, 3), (3, 3), (-1, 1), (3, None)):
        with pytest.raises(OffsetOutOfRangeError, match="has offsets 0 to 2") as caught:
            log.read(A, start, end)
        assert (caught.value.at, caught.value.earliest, caught.value.end) == (A, 0, 2)


def test_a_range_that_was_seen_is_looked_for_again_only_if_it_does_not_come(log: Log):
    log.append([(A, records(*(b"%d" % i for i in range(6))))])
    log.delete_records({A: 2})

    def seen(start: int, end: int, *, more: bool) -> list[int]:
        return [offset for chunk in log.read(A, start, end, has_more=more) for offset in chunk.offsets]

    assert [seen(2, 3, more=True), seen(3, 3, more=True), seen(3, 6, more=False)] == [[2], [], [3, 4, 5]]
    for start, end in ((0, 4), (4, 7), (7, 8)):
        with pytest.raises(OffsetOutOfRangeError, match="has offsets 2 to 6"):
            seen(start, end, more=False)


def test_it_can_be_confirmed_that_topics_are_those_that_they_were(log: Log):
    ids = {name: log.topic(name).id for name in ("a", "b")}
    assert log.confirm_topics(ids)() == {name: log.topic(name).partitions for name in ("a", "b")}
    assert log.confirm_topics({})() == {}
    log.add_partitions("b", 7)
    assert log.confirm_topics(ids)()["b"] == 7
    log.delete_topic("a")
    with pytest.raises(UnknownTopicError, match="no topic 'a'"):
        log.confirm_topics(ids)()
    log.create_topic("a")
    with pytest.raises(UnknownTopicError, match="'a' was deleted and created again"):
        log.confirm_topics(ids)()


def test_large_and_many_records_are_fine(log: Log):
    log.alter_config("a", {"max.message.bytes": 20 << 20})
    large = [b"%d" % i + bytes(range(256)) * 40_000 for i in range(3)]  # 10 MB each
    log.append(
        [(A, records(*large)), (B, Records([None] * 120_000, [b"%d" % i for i in range(120_000)], range(120_000)))]
    )
    assert values(log, A) == large
    chunks = list(log.read(B, 0))
    assert [offset for chunk in chunks for offset in chunk.offsets] == list(range(120_000))
    assert all(isinstance(chunk, Chunk) and len(chunk) <= 50_000 for chunk in chunks)
    assert rows(log, B, 119_999) == [(119_999, None, b"119999", 119_999, ())]


def test_records_over_the_limit_are_refused(log: Log):
    log.alter_config("a", {"max.message.bytes": 1000})
    log.append([(A, Records([b"k" * 400], [b"v" * 500], [1]))])
    for bad in (
        Records([b"k" * 500], [b"v" * 501], [1]),
        Records([b"1"], [b"2"], [1], [(("header", b"h" * 993),)]),
        pack(records(b"x" * 1001, key=None)),
    ):
        with pytest.raises(RecordTooLargeError, match=r"whose max\.message\.bytes is 1000"):
            log.append([(A, bad)])
    log.append([(A, records(*[b"x" * 100] * 50))])  # many small ones are fine
    assert len(rows(log, A)) == 51


def test_exactly_the_limit_is_not_over_it(embedded: FileLog):
    embedded.alter_config("a", {"max.message.bytes": 10})
    embedded.append([(A, Records([b"12345"], [b"12345"], [1]))])
    with pytest.raises(RecordTooLargeError):
        embedded.append([(A, Records([b"12345"], [b"123456"], [1]))])


def test_the_log_gives_the_time_where_it_is_told_to(log: Log):
    log.alter_config("a", {"message.timestamp.type": "LogAppendTime"})
    log.append([(A, records(b"1", b"2", at=5)), (B, records(b"3", at=5))])
    first, second = (row[3] for row in rows(log, A))
    assert first == second > 5
    assert [row[3] for row in rows(log, B)] == [5]


def test_the_time_that_the_log_gives_is_its_clocks(embedded: FileLog, clock: ManualClock):
    log = embedded
    log.alter_config("a", {"message.timestamp.type": "LogAppendTime"})
    log.append([(A, records(b"1", b"2", at=5)), (B, records(b"3", at=5))])
    clock.advance(7)
    log.append([(A, pack(records(b"4", at=5)))])
    assert [row[3] for row in rows(log, A)] == [NOW, NOW, NOW + 7]
    assert [row[3] for row in rows(log, B)] == [5]


def test_offsets_are_found_by_time(log: Log):
    log.append([(A, Records([None] * 3, [b""] * 3, [10, 30, 20]))])
    log.append([(A, Records([None] * 2, [b""] * 2, [5, 40]))])
    for time, offset in ((0, 0), (10, 0), (11, 1), (25, 1), (31, 4), (40, 4), (41, None)):
        assert log.offsets_for_times({A: time, B: 0}) == {A: offset, B: None}
    log.delete_records({A: 2})
    assert log.offsets_for_times({A: 0, B: 0}) == {A: 2, B: None}
    assert log.offsets_for_times({A: 25}) == {A: 4}


def test_records_can_be_deleted_from_the_front(log: Log):
    for i in range(4):
        log.append([(A, records(b"%d" % i, b"%d'" % i))])
    assert log.delete_records({A: 3}) == {A: 3}
    assert values(log, A) == [b"1'", b"2", b"2'", b"3", b"3'"]
    with pytest.raises(OffsetOutOfRangeError, match="has offsets 3 to 8, not 2 to 8"):
        log.read(A, 2)
    assert log.delete_records({A: 1}) == {A: 3}
    assert log.delete_records({A: -1, B: 0}) == {A: 8, B: 0}
    assert rows(log, A) == []
    assert log.append([(A, records(b"new"))]) == [8]
    with pytest.raises(OffsetOutOfRangeError, match="ends at offset 9"):
        log.delete_records({A: 10})


# -------------------------------------------------------------------------------------------------------- producers
def test_an_append_that_comes_twice_is_stored_once(log: Log):
    one, two = log.new_producer(), log.new_producer()
    assert one != two
    assert log.append([(A, records(b"1")), (B, records(b"x"))], sequence=ProducerSequence(one, 0)) == [0, 0]
    assert log.append([(A, records(b"2"))], sequence=ProducerSequence(two, 0)) == [1]
    assert log.append([(A, records(b"1")), (B, records(b"x"))], sequence=ProducerSequence(one, 0)) == [0, 0]
    assert log.append([(A, records(b"3"))], sequence=ProducerSequence(one, 1)) == [2]
    assert log.append([(A, records(b"3"))], sequence=ProducerSequence(one, 1)) == [2]
    assert (values(log, A), values(log, B)) == ([b"1", b"2", b"3"], [b"x"])


def test_a_gap_in_a_producers_appends_is_an_error(log: Log):
    producer = log.new_producer()
    for sequence in (ProducerSequence(producer, 1), ProducerSequence(producer + 7, 0)):
        with pytest.raises(ProducerFencedError):
            log.append([(A, records(b"1"))], sequence=sequence)
    log.append([(A, records(b"1"))], sequence=ProducerSequence(producer, 0))
    log.append([(A, records(b"2"))], sequence=ProducerSequence(producer, 1))
    with pytest.raises(ProducerFencedError, match="appends number 0 after number 1"):
        log.append([(A, records(b"1"))], sequence=ProducerSequence(producer, 0))


# ------------------------------------------------------------------------------------------------------- deliveries
def test_a_batch_is_delivered_once_and_in_order(log: Log):
    assert log.delivered("app") == -1
    assert log.deliver("app", 0, [(A, records(b"1")), (B, records(b"2"))])
    assert not log.deliver("app", 0, [(A, records(b"1")), (B, records(b"2"))])
    assert log.deliver("app", 1, [])
    assert log.deliver("other", 0, [(A, records(b"3"))])
    assert (log.delivered("app"), log.delivered("other"), log.delivered("third")) == (1, 0, -1)
    assert values(log, A) == [b"1", b"3"]
    for number in (0, 3):
        with pytest.raises(ProducerFencedError, match=f"batch {number} of 'app' cannot be delivered: batch 1 was"):
            log.deliver("app", number, [(A, records(b"4"))])
    with pytest.raises(ProducerFencedError, match="no batch was"):
        log.deliver("third", 1, [])
    assert len(rows(log, A)) == 2


def test_a_batch_that_cannot_be_stored_is_not_delivered(log: Log):
    with pytest.raises(UnknownTopicError):
        log.deliver("app", 0, [(A, records(b"1")), (TopicPartition("x", 0), records(b"2"))])
    assert log.delivered("app") == -1
    assert rows(log, A) == []
    log.create_topic("x")
    assert log.deliver("app", 0, [(A, records(b"1")), (TopicPartition("x", 0), records(b"2"))])


def test_deliveries_can_be_marked_and_forgotten(log: Log):
    log.mark_delivered("app", 41)
    assert log.deliver("app", 42, [])
    log.mark_delivered("app", None)
    assert log.delivered("app") == -1
    assert log.deliver("app", 0, [])


def test_of_two_who_deliver_the_same_batch_one_does(log: Log):
    start = threading.Barrier(8)
    outcomes: list[bool] = []

    def run() -> None:
        start.wait()
        outcomes.append(log.deliver("app", 0, [(A, records(b"1"))]))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [False] * 7 + [True]
    assert values(log, A) == [b"1"]


# ---------------------------------------------------------------------------------------------------------- waiting
def test_waiting_ends_with_a_record_or_with_patience(log: Log, clock: ManualClock):
    log.append([(B, records(b"1"))])
    assert log.wait({A: 0, B: 0}, 1000)
    assert clock.now() == NOW
    assert not log.wait({A: 0, B: 1}, 1000)
    assert clock.now() == NOW + 1000
    assert not log.wait({}, 10)
