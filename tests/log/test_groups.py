"""Consumer groups of a log: offsets, members, leases."""

import pytest

from headrace.log.errors import FencedError, GroupInUseError, UnknownGroupError, UnknownTopicError
from headrace.log.groups import share_out
from headrace.log.protocol import Group, Log
from headrace.model.clock import ManualClock
from headrace.model.ids import TopicPartition
from tests.log.harness import A, B, records

B1, B2 = TopicPartition("b", 1), TopicPartition("b", 2)
NONE = frozenset[TopicPartition]()
LEASE = 1000


def join(log: Log, member: str, *holding: TopicPartition, topics: tuple[str, ...] = ("b",)):
    return log.join("g", member, topics, frozenset(holding), LEASE)


# --------------------------------------------------------------------------------------------------------- offsets
def test_groups_remember_where_they_go_on(log: Log):
    assert log.committed("g") == {}
    log.commit("g", {A: 3, B: 1})
    log.commit("g", {B: 2, B2: 7})
    log.commit("other", {A: 1})
    assert log.committed("g") == {A: 3, B: 2, B2: 7}
    assert log.groups() == {"g": Group("g", 0, {}, {A: 3, B: 2, B2: 7}), "other": Group("other", 0, {}, {A: 1})}
    log.delete_group("g")
    assert list(log.groups()) == ["other"]
    with pytest.raises(UnknownGroupError, match="no consumer group 'g'"):
        log.delete_group("g")


def test_offsets_of_a_deleted_topic_are_forgotten(log: Log):
    log.commit("g", {A: 3, B: 1})
    log.delete_topic("a")
    log.create_topic("a")
    assert log.committed("g") == {B: 1}
    with pytest.raises(UnknownTopicError):
        log.commit("g", {TopicPartition("x", 0): 1})
    with pytest.raises(ValueError, match="0 or more, not -1"):
        log.commit("g", {A: -1})


# ---------------------------------------------------------------------------------------------------------- members
def test_a_member_alone_gets_everything(log: Log):
    assert join(log, "m") == (1, {B, B1, B2})
    assert join(log, "m", B, B1, B2) == (1, {B, B1, B2})
    assert log.groups()["g"].members == {"m": {B, B1, B2}}


def test_a_partition_changes_hands_only_when_it_was_given_up(log: Log):
    join(log, "m")
    assert join(log, "n") == (2, NONE)  # B2 is its share, but m still reads it
    assert join(log, "m", B, B1, B2) == (2, {B, B1})  # m learns that it has to give up B2
    assert join(log, "n") == (2, NONE)
    assert join(log, "m", B, B1) == (2, {B, B1})  # and has
    assert join(log, "n") == (2, {B2})
    log.leave("g", "m")
    assert join(log, "n", B2) == (3, {B, B1, B2})


def test_a_member_that_stops_renewing_is_gone(log: Log, clock: ManualClock):
    join(log, "m")
    clock.advance(LEASE - 1)
    assert join(log, "n") == (2, NONE)
    clock.advance(1)
    assert join(log, "n").partitions == {B, B1, B2}
    assert join(log, "m", B, B1, B2).partitions == NONE  # back from a long sleep: all is lost


def test_members_that_want_nothing_in_common_do_not_disturb_each_other(log: Log):
    join(log, "m", topics=("a",))
    assert join(log, "n", topics=("b",)).partitions == {B, B1, B2}
    assert join(log, "m", A, topics=("a",)).partitions == {A}


def test_new_partitions_and_new_topics_are_shared_out(log: Log):
    join(log, "m")
    log.add_partitions("b", 4)
    assert join(log, "m", B, B1, B2) == (2, {B, B1, B2, TopicPartition("b", 3)})
    assert join(log, "m", B, topics=("a", "b")).generation == 3
    assert join(log, "m", B, topics=("a", "missing")).partitions == {A}


def test_only_the_holder_of_a_partition_commits_it(log: Log, clock: ManualClock):
    log.append([(B, records(b"1"))])
    join(log, "m")
    log.commit("g", {B: 1}, member="m")
    with pytest.raises(FencedError, match="'m' does not hold a-0"):
        log.commit("g", {A: 1}, member="m")
    with pytest.raises(FencedError, match="'n' is no longer a member"):
        log.commit("g", {B: 1}, member="n")
    with pytest.raises(GroupInUseError, match="in use by m"):
        log.commit("g", {B: 0})
    with pytest.raises(GroupInUseError, match="in use by m"):
        log.delete_group("g")
    clock.advance(LEASE)
    log.commit("g", {B: 1}, member="m")  # late, but nobody has taken over
    join(log, "n")
    with pytest.raises(FencedError, match="no longer a member"):
        log.commit("g", {B: 0}, member="m")
    clock.advance(LEASE)
    log.commit("g", {B: 0})
    assert log.groups()["g"].members == {}
    log.delete_group("g")


@pytest.mark.parametrize("count", range(8))
@pytest.mark.parametrize("members", range(1, 6))
def test_partitions_are_shared_out_like_kafkas_range_assignor(count, members):
    shares = share_out({f"m{i}": ["t"] for i in range(members)}, {"t": count})
    in_order = [at.partition for i in range(members) for at in sorted(shares[f"m{i}"])]
    sizes = [len(shares[f"m{i}"]) for i in range(members)]
    assert in_order == list(range(count))
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1
