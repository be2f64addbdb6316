"""Reading: positions, groups, serdes, waiting; and looking after it all."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import serde
from headrace.clients.admin import Admin
from headrace.clients.consumer import Consumer, ConsumerRecord
from headrace.errors import (
    GroupInUseError,
    LogUnavailableError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    SerializationError,
    UnknownTopicError,
)
from headrace.log.embedded.file_log import FileLog
from headrace.log.protocol import Chunk, Extent, Log, Records
from headrace.model.ids import TopicPartition
from tests.clocks import ManualClock
from tests.log.harness import NOW, A, B, records, until

B1, B2 = TopicPartition("b", 1), TopicPartition("b", 2)


def consumer(log: Log, clock: ManualClock, group: str | None = None, **options) -> Consumer:
    return Consumer(log, group, clock=clock, **{"auto_offset_reset": "earliest", **options})


def put(log: Log, at: TopicPartition, *values: bytes | None) -> None:
    log.append([(at, records(*values))])


def in_turn(clock: ManualClock, *readers: Consumer) -> None:
    """Time goes on, and members look around."""
    clock.advance(1000)
    for reader in readers:
        reader.poll()


def seen(polled: list[ConsumerRecord]) -> list[bytes]:
    return [record.value for record in polled]


# --------------------------------------------------------------------------------------------------------- reading
def test_records_come_with_all_that_is_known_of_them(log: Log, clock: ManualClock):
    log.append([(A, Records([b"key", None], [b"1", None], [5, 6], [(("h", b"x"),), ()]))])
    with consumer(log, clock, key=serde.STRING, value=serde.STRING) as reader:
        reader.subscribe("a")
        assert reader.poll() == [
            ConsumerRecord("a", 0, 0, "key", "1", 5, (("h", b"x"),)),
            ConsumerRecord("a", 0, 1, None, None, 6, ()),
        ]
        assert reader.poll() == []
        assert reader.position(A) == 2


def test_partitions_take_turns(log: Log, clock: ManualClock):
    for at in (A, B, B1):
        put(log, at, *(b"%d" % i for i in range(10)))
    with consumer(log, clock, max_poll_records=15) as reader:
        reader.subscribe("a", "b")
        first, second, third = reader.poll(), reader.poll(), reader.poll()
    assert [len(first), len(second), len(third)] == [15, 15, 0]
    assert len({(record.topic, record.partition) for record in first}) == 2
    for at in (A, B, B1):
        got = [record.offset for record in first + second if (record.topic, record.partition) == at]
        assert got == list(range(10))


def test_waiting_ends_when_a_record_comes(embedded: FileLog, clock: ManualClock, directory: Path):
    waited: list[float] = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        clock.advance(int(seconds * 1000))
        if len(waited) == 3:
            put(embedded, A, b"late")

    with FileLog(directory, clock=clock, clean_every=None, pause=pause) as log, consumer(log, clock) as reader:
        reader.subscribe("a")
        assert seen(reader.poll(timeout=500)) == [b"late"]
        assert clock.now() == NOW + 7
        assert reader.poll(timeout=500) == []
        assert clock.now() == NOW + 507


def test_iteration_ends_when_nothing_comes_and_loses_nothing_when_it_is_left(log: Log, clock: ManualClock):
    put(log, A, *(b"%d" % i for i in range(10)))
    with consumer(log, clock, idle_timeout=100) as reader:
        reader.subscribe("a")
        for record in reader:
            if record.offset == 3:
                break
        assert reader.position(A) == 4
        assert [record.offset for record in reader] == [4, 5, 6, 7, 8, 9]


def test_compacted_offsets_are_passed_over(embedded: FileLog, clock: ManualClock):
    embedded.alter_config("a", {"cleanup.policy": "compact", "delete.retention.ms": 0})
    put(embedded, A, b"1", b"2", None)
    embedded.clean()
    clock.advance(10)
    embedded.clean()
    with consumer(embedded, clock) as reader:
        reader.subscribe("a")
        assert reader.poll() == []
        assert reader.position(A) == 3
        assert reader.poll(timeout=50) == []  # and it does not spin


class Breaking:
    """A log whose first reads of some partitions break off after a record."""

    def __init__(self, log: Log, *partitions: TopicPartition) -> None:
        self._log, self._breaking = log, set(partitions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def read(self, at: TopicPartition, start: int, end: int | None = None) -> Iterator[Chunk]:
        if at not in self._breaking:
            yield from self._log.read(at, start, end)
            return
        self._breaking.remove(at)
        yield from self._log.read(at, start, start + 1)
        raise LogUnavailableError("away")


def test_a_log_that_is_away_in_the_middle_of_a_read_costs_no_record(log: Log, clock: ManualClock):
    for at in (B, B1):
        put(log, at, b"1", b"2", b"3")
    breaking: Any = Breaking(log, B, B1)
    with consumer(breaking, clock, max_poll_records=100) as reader:
        reader.subscribe("b")
        found = [record for _ in range(6) for record in reader.poll()]
    for at in (B, B1):
        assert [r.offset for r in found if (r.topic, r.partition) == at] == [0, 1, 2]


def test_a_log_that_is_away_at_once_is_told_of(log: Log, clock: ManualClock):
    class Away(Breaking):
        def read(self, at: TopicPartition, start: int, end: int | None = None) -> Iterator[Chunk]:
            raise LogUnavailableError("away")
            yield

    put(log, A, b"1")
    away: Any = Away(log)
    with consumer(away, clock) as reader:
        reader.subscribe("a")
        for _ in range(2):
            with pytest.raises(LogUnavailableError):
                reader.poll()
        assert reader.position(A) == 0


def test_a_record_that_cannot_be_decoded_is_named_and_can_be_skipped(log: Log, clock: ManualClock):
    put(log, A, b"1", b"not a number", b"3")
    with consumer(log, clock, value=serde.JSON) as reader:
        reader.subscribe("a")
        assert seen(reader.poll()) == [1]
        for _ in range(2):
            with pytest.raises(
                SerializationError, match=r"offset 1 of a-0 cannot be decoded: .*seek\(.*, 2\) skips it"
            ):
                reader.poll()
        reader.seek(A, 2)
        assert seen(reader.poll()) == [3]


# -------------------------------------------------------------------------------------------------------- positions
def test_where_reading_starts(log: Log, clock: ManualClock):
    put(log, A, b"1", b"2")
    with consumer(log, clock, auto_offset_reset="latest") as reader:
        reader.subscribe("a")
        assert reader.poll() == []
        put(log, A, b"3")
        assert seen(reader.poll()) == [b"3"]
    with consumer(log, clock, auto_offset_reset="none") as reader:
        reader.subscribe("a")
        with pytest.raises(OffsetOutOfRangeError, match="a-0 would be read from nowhere: nothing is committed"):
            reader.poll()
    with pytest.raises(ValueError, match="'earliest', 'latest' or 'none', not 'first'"):
        Consumer(log, auto_offset_reset="first")  # pyright: ignore[reportArgumentType]


def test_seeking(log: Log, clock: ManualClock):
    put(log, A, b"1", b"2", b"3")
    put(log, B, b"4")
    with consumer(log, clock) as reader:
        reader.subscribe("a", "b")
        reader.seek(A, 1)
        assert sorted(seen(reader.poll())) == [b"2", b"3", b"4"]
        reader.seek_to_beginning(A)
        assert seen(reader.poll()) == [b"1", b"2", b"3"]
        reader.seek_to_beginning()
        assert len(reader.poll()) == 4
        reader.seek(A, 0)
        reader.seek_to_end()
        assert reader.poll() == []
        assert (reader.position(A), reader.position(B)) == (3, 1)
        with pytest.raises(ValueError, match="0 or more"):
            reader.seek(A, -1)
        with pytest.raises(ValueError, match=r"b-7 is not assigned to this consumer \(it has: a-0, b-0"):
            reader.position(TopicPartition("b", 7))


def test_records_that_were_removed_meanwhile(log: Log, clock: ManualClock):
    for i in range(6):
        put(log, A, b"%d" % i)
    with consumer(log, clock, max_poll_records=2) as reader:
        reader.subscribe("a")
        assert seen(reader.poll()) == [b"0", b"1"]
        log.delete_records({A: 4})
        assert seen(reader.poll() + reader.poll() + reader.poll()) in (
            [b"4", b"5"],
            [b"2", b"3", b"4", b"5"],  # it had them already
        )
        log.delete_topic("a")
        log.create_topic("a")
        put(log, A, b"new")
        assert seen(reader.poll()) == [b"new"]
    with consumer(log, clock, auto_offset_reset="none") as reader, pytest.raises(OffsetOutOfRangeError):
        reader.assign(A)


def test_single_partitions_can_be_read(log: Log, clock: ManualClock):
    put(log, B, b"0")
    put(log, B1, b"1")
    with consumer(log, clock, "g") as reader:
        reader.assign(B1)
        assert seen(reader.poll()) == [b"1"]
        reader.commit()
        assert reader.committed(B1) == 1
        reader.assign(B, B1)
        assert seen(reader.poll()) == [b"0"]
        reader.subscribe()
        assert (reader.assignment, reader.poll()) == (frozenset(), [])
    with consumer(log, clock) as reader:
        with pytest.raises(ValueError, match="no group to commit for"):
            reader.commit()
        with pytest.raises(UnknownTopicError, match="no topic 'x'"):
            reader.subscribe("x")


# ----------------------------------------------------------------------------------------------------------- groups
def test_a_group_goes_on_where_it_has_committed(log: Log, clock: ManualClock):
    put(log, A, b"1", b"2", b"3")
    with consumer(log, clock, "g", auto_commit=False, max_poll_records=2) as reader:
        reader.subscribe("a")
        reader.poll()
        reader.commit()
        reader.poll()
    with consumer(log, clock, "g", auto_commit=False) as reader:
        reader.subscribe("a")
        assert seen(reader.poll()) == [b"3"]
        reader.commit({A: 1})
    with consumer(log, clock, "g") as reader:
        reader.subscribe("a")
        assert seen(reader.poll()) == [b"2", b"3"]
    with consumer(log, clock, "other") as reader:
        reader.subscribe("a")
        assert len(reader.poll()) == 3
    assert log.committed("g") == log.committed("other") == {A: 3}


def test_what_was_polled_is_committed_from_time_to_time(log: Log, clock: ManualClock):
    put(log, A, b"1", b"2")
    reader = consumer(log, clock, "g", max_poll_records=1)
    reader.subscribe("a")
    reader.poll()
    clock.advance(5000)
    assert log.committed("g") == {}
    reader.poll()
    assert log.committed("g") == {A: 1}  # the second may still be at work
    reader.close()
    assert log.committed("g") == {A: 2}


def test_members_share_the_partitions_and_give_them_up(log: Log, clock: ManualClock):
    for at in (B, B1, B2):
        put(log, at, b"1", b"2")
    events: list[tuple[str, int, list[int]]] = []

    def member(number: int) -> Consumer:
        reader = consumer(log, clock, "g")
        reader.subscribe(
            "b",
            on_assign=lambda got: events.append(("+", number, sorted(at.partition for at in got))),
            on_revoke=lambda lost: events.append(("-", number, sorted(at.partition for at in lost))),
        )
        return reader

    one, two = member(1), member(2)
    got = one.poll()
    assert len(got) == 6
    assert two.poll() == []
    until(lambda: bool(in_turn(clock, one, two) or two.assignment), True)
    assert two.poll() == []  # the first has committed what it gave up
    assert sorted([*one.assignment, *two.assignment]) == [B, B1, B2]
    assert events[0] == ("+", 1, [0, 1, 2])
    assert sorted(events[1:]) == sorted([("-", 1, events[1][2]), ("+", 2, events[1][2])])
    one.close()
    until(lambda: in_turn(clock, two) or two.assignment, frozenset({B, B1, B2}))
    put(log, B, b"3")
    assert seen(two.poll()) == [b"3"]
    two.close()


def test_a_dead_members_partitions_are_taken_over_from_its_last_commit(log: Log, clock: ManualClock):
    put(log, A, b"1", b"2")
    dead = consumer(log, clock, "g", session_timeout=3000)
    dead.subscribe("a")
    assert len(dead.poll()) == 2
    with consumer(log, clock, "g", session_timeout=3000) as heir:
        heir.subscribe("a")
        assert heir.poll(timeout=2999) == []
        until(lambda: seen(heir.poll(timeout=2000)), [b"1", b"2"])
        with pytest.raises(ProducerFencedError, match="no longer a member"):
            dead.commit()
        assert dead.poll() == []  # it was not dead, but has to join again
        assert dead.assignment == frozenset()
        heir.commit()
    assert log.committed("g") == {A: 2}
    dead.close()


def test_new_partitions_are_found(log: Log, clock: ManualClock):
    with consumer(log, clock) as alone, consumer(log, clock, "g") as member:
        for reader in (alone, member):
            reader.subscribe("a")
            reader.poll()
        log.add_partitions("a", 2)
        put(log, TopicPartition("a", 1), b"1")
        clock.advance(1000)
        assert seen(alone.poll()) == [b"1"]
        until(lambda: in_turn(clock) or seen(member.poll()), [b"1"])


# ------------------------------------------------------------------------------------------------------------ admin
def test_admin_looks_after_topics(log: Log):
    admin = Admin(log)
    topic = admin.create_topic("c", partitions=2, config={"retention.ms": 5})
    put(log, TopicPartition("c", 1), b"1", b"2")
    assert admin.topics() == ["a", "b", "c"]
    assert admin.describe("c").topic == topic
    assert admin.describe("c").extents == {0: Extent(0, 0), 1: Extent(0, 2)}
    assert admin.delete_records({TopicPartition("c", 1): 1}) == {TopicPartition("c", 1): 1}
    assert admin.alter_config("c", {"retention.ms": None}).config["retention.ms"] == "-1"
    assert admin.add_partitions("c", 3).partitions == 3
    admin.delete_topic("c")
    assert admin.topics() == ["a", "b"]
    admin.close()
    assert list(log.topics()) == ["a", "b"]


def test_admin_looks_after_groups(log: Log, clock: ManualClock):
    put(log, A, *(b"%d" % i for i in range(10)))  # at 10, 11, ... ms
    with Admin(log) as admin:
        with consumer(log, clock, "g", max_poll_records=4) as reader:
            reader.subscribe("a")
            reader.poll()
            reader.commit()
            assert admin.lag("g") == {A: 6}
            assert list(admin.groups()["g"].members.values()) == [{A}]
            with pytest.raises(GroupInUseError):
                admin.reset_offsets("g", "a", to="earliest")
        assert admin.reset_offsets("g", "a", to="earliest") == {A: 0}
        assert admin.reset_offsets("g", "a", "b", to="latest") == {A: 10, B: 0, B1: 0, B2: 0}
        assert admin.lag("g") == {A: 0, B: 0, B1: 0, B2: 0}
        assert admin.reset_offsets("g", "a", to=15) == {A: 5}
        assert admin.reset_offsets("g", "a", to=99) == {A: 10}
        admin.delete_group("g")
        assert dict(admin.groups()) == {}
        assert admin.lag("g") == {}
