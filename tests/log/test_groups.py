"""Consumer groups of a log: offsets, members, leases."""

import pytest

from headrace.errors import GroupInUseError, ProducerFencedError, UnknownGroupError, UnknownTopicError
from headrace.log.embedded.consumer_groups import assign_ranges
from headrace.log.embedded.file_log import FileLog
from headrace.log.protocol import Group, Log
from headrace.model.ids import TopicPartition
from tests.clocks import ManualClock
from tests.log.harness import A, B, records, until

B1, B2 = TopicPartition("b", 1), TopicPartition("b", 2)
NONE = frozenset[TopicPartition]()
LEASE = 1000


def join(log: Log, member: str, *holding: TopicPartition, topics: tuple[str, ...] = ("b",)):
    return log.join("g", member, topics, frozenset(holding), LEASE)


def gets(
    log: Log, member: str, wanted: set[TopicPartition] | frozenset[TopicPartition], *holding: TopicPartition, **options
):
    """Sees that a member may read some partitions now."""
    until(lambda: join(log, member, *holding, **options).partitions, wanted)


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
    assert join(log, "m").partitions == {B, B1, B2}
    assert join(log, "m", B, B1, B2).partitions == {B, B1, B2}
    assert log.groups()["g"].members == {"m": {B, B1, B2}}


def test_a_partition_changes_hands_only_when_it_was_given_up(log: Log):
    join(log, "m")
    assert join(log, "n").partitions == NONE  # one is its share, but m still reads it
    until(lambda: len(join(log, "m", B, B1, B2).partitions), 2)  # m learns that it has to give up one
    kept = join(log, "m", B, B1, B2).partitions
    assert join(log, "n").partitions == NONE
    assert join(log, "m", *kept).partitions == kept  # and has
    given_up = {B, B1, B2} - kept
    gets(log, "n", given_up)
    log.leave("g", "m")
    gets(log, "n", {B, B1, B2}, *given_up)


def test_generations_are_counted(embedded: FileLog):
    assert join(embedded, "m") == (1, {B, B1, B2})
    assert join(embedded, "m", B, B1, B2).generation == 1
    assert join(embedded, "n") == (2, NONE)
    embedded.leave("g", "m")
    assert join(embedded, "n", B2) == (3, {B, B1, B2})
    embedded.add_partitions("b", 4)
    assert join(embedded, "n", B, B1, B2).generation == 4


def test_a_member_that_stops_renewing_is_gone(log: Log, clock: ManualClock):
    join(log, "m")
    clock.advance(LEASE - 1)
    assert join(log, "n").partitions == NONE
    clock.advance(1)
    gets(log, "n", {B, B1, B2})
    assert join(log, "m", B, B1, B2).partitions == NONE  # back from a long sleep: all is lost


def test_members_that_want_nothing_in_common_do_not_disturb_each_other(log: Log):
    join(log, "m", topics=("a",))
    gets(log, "n", {B, B1, B2}, topics=("b",))
    gets(log, "m", {A}, A, topics=("a",))


def test_new_partitions_and_new_topics_are_shared_out(log: Log):
    join(log, "m")
    log.add_partitions("b", 4)
    B3 = TopicPartition("b", 3)  # noqa: N806
    gets(log, "m", {B, B1, B2, B3}, B, B1, B2)
    gets(log, "m", {A, B, B1, B2, B3}, B, topics=("a", "b"))
    gets(log, "m", {A}, B, topics=("a", "missing"))


def test_only_the_holder_of_a_partition_commits_it(log: Log, clock: ManualClock):
    log.append([(B, records(b"1"))])
    join(log, "m")
    log.commit("g", {B: 1}, member="m")
    with pytest.raises(ProducerFencedError, match="'m' does not hold a-0"):
        log.commit("g", {A: 1}, member="m")
    with pytest.raises(ProducerFencedError, match="'n' is no longer a member"):
        log.commit("g", {B: 1}, member="n")
    with pytest.raises(GroupInUseError, match="in use by m"):
        log.commit("g", {B: 0})
    with pytest.raises(GroupInUseError, match="in use by m"):
        log.delete_group("g")
    clock.advance(LEASE)
    join(log, "n")
    with pytest.raises(ProducerFencedError, match="no longer a member"):
        log.commit("g", {B: 0}, member="m")
    clock.advance(LEASE)
    until(lambda: dict(log.groups()["g"].members), {})
    log.commit("g", {B: 0})
    log.delete_group("g")


def test_a_late_commit_is_accepted_while_no_other_member_reads(embedded: FileLog, clock: ManualClock):
    join(embedded, "m")
    clock.advance(LEASE)
    embedded.commit("g", {B: 1}, member="m")
    assert embedded.committed("g") == {B: 1}


@pytest.mark.parametrize("count", range(8))
@pytest.mark.parametrize("members", range(1, 6))
def test_partitions_are_shared_out_like_kafkas_range_assignor(count, members):
    shares = assign_ranges({f"m{i}": ["t"] for i in range(members)}, {"t": count})
    in_order = [at.partition for i in range(members) for at in sorted(shares[f"m{i}"])]
    sizes = [len(shares[f"m{i}"]) for i in range(members)]
    assert in_order == list(range(count))
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1
