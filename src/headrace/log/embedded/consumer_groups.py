"""Consumer groups: members, rebalances and committed offsets. The state of a group is one row.

A rebalance moves a partition in two steps: the member that must give it up joins again without it, and only then the
other member gets it. A member whose lease has ended loses its partitions at once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from headrace.log.embedded.schema import damaged_row, row_checksum
from headrace.log.embedded.topics import Catalog
from headrace.log.protocol import Group, Membership
from headrace.log.validation import (
    check_committed_offset,
    group_in_use,
    no_longer_member,
    offsets_in_use,
    partitions_lost,
    unknown_group,
)
from headrace.model.ids import TopicPartition


class GroupMember(msgspec.Struct):
    """A member: the topics it subscribes to, the partitions it holds, and when its lease ends."""

    topics: list[str]
    held: set[TopicPartition]
    expires: int


class GroupState(msgspec.Struct):
    """The state of a group. The field names are part of the format.

    `wishes` (subscribed topics by member) and `partitions` (their counts by topic) are those of the last rebalance.
    Offsets are by topic number and partition, so that a topic that is created again does not inherit them.
    """

    generation: int = 0
    members: dict[str, GroupMember] = {}
    wishes: dict[str, list[str]] = {}
    partitions: dict[str, int] = {}
    offsets: dict[int, dict[int, int]] = {}

    def expire_members(self, now: int) -> None:
        self.members = self.live_members(now)

    def live_members(self, now: int) -> dict[str, GroupMember]:
        return {name: member for name, member in self.members.items() if member.expires > now}


_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(GroupState).decode


def assign_ranges(
    subscriptions: Mapping[str, Sequence[str]], partitions: Mapping[str, int]
) -> dict[str, set[TopicPartition]]:
    """Assigns partitions as Kafka's range assignor does: every subscriber of a topic gets adjacent partitions.

    >>> sorted(assign_ranges({"a": ["t"], "b": ["t"]}, {"t": 3})["a"])
    [TopicPartition(topic='t', partition=0), TopicPartition(topic='t', partition=1)]
    """
    assigned: dict[str, set[TopicPartition]] = {member: set() for member in subscriptions}
    for topic, count in partitions.items():
        members = sorted(member for member, topics in subscriptions.items() if topic in topics)
        for i, member in enumerate(members):
            each, more = divmod(count, len(members))
            start = i * each + min(i, more)
            assigned[member].update(TopicPartition(topic, p) for p in range(start, start + each + (i < more)))
    return assigned


# ---------------------------------------------------------------------------------------------------------- members
def join(
    state: GroupState,
    catalog: Catalog,
    member: str,
    topics: Sequence[str],
    holding: AbstractSet[TopicPartition],
    now: int,
    lease: int,
) -> Membership:
    """Adds a member or renews its lease, rebalances if needed, and returns the partitions that it may read."""
    state.expire_members(now)
    known = state.members.get(member)
    held = known.held & set(holding) if known else set[TopicPartition]()
    state.members[member] = GroupMember(sorted(topics), held, now + lease)
    subscriptions = {name: other.topics for name, other in state.members.items()}
    counts = {
        topic: catalog.topics[topic].partitions
        for subscribed in subscriptions.values()
        for topic in subscribed
        if topic in catalog.topics
    }
    if (subscriptions, counts) != (state.wishes, state.partitions):
        state.generation, state.wishes, state.partitions = state.generation + 1, subscriptions, counts
    assigned = assign_ranges(subscriptions, counts)[member]
    held_by_others = {at for name, other in state.members.items() if name != member for at in other.held}
    held |= assigned - held_by_others
    return Membership(state.generation, frozenset(held & assigned))


def commit(
    group: str, state: GroupState, catalog: Catalog, offsets: Mapping[TopicPartition, int], member: str | None, now: int
) -> None:
    """Commits offsets of partitions that the member holds. Without a member, the group must have none."""
    if member is None:
        state.expire_members(now)
        if state.members:
            raise offsets_in_use(group, state.members)
    elif member not in state.members:
        raise no_longer_member(group, member)
    elif lost := offsets.keys() - state.members[member].held:
        raise partitions_lost(group, member, lost)
    for at, offset in offsets.items():
        check_committed_offset(at, offset)
        state.offsets.setdefault(catalog.topic_of(at).number, {})[at.partition] = offset
    existing = {entry.number for entry in catalog.topics.values()}
    state.offsets = {number: committed for number, committed in state.offsets.items() if number in existing}


def committed_offsets(state: GroupState, catalog: Catalog) -> dict[TopicPartition, int]:
    """Returns the committed offsets of topics that exist."""
    return {
        TopicPartition(name, partition): offset
        for name, entry in sorted(catalog.topics.items())
        for partition, offset in sorted(state.offsets.get(entry.number, {}).items())
    }


def describe(group: str, state: GroupState, catalog: Catalog, now: int) -> Group:
    members = {name: frozenset(member.held) for name, member in state.live_members(now).items()}
    return Group(group, state.generation, members, committed_offsets(state, catalog))


# ------------------------------------------------------------------------------------------------------------- rows
def load(connection: sqlite3.Connection, group: str) -> GroupState:
    """Returns an empty state if the group does not exist."""
    return _load(connection, group) or GroupState()


def load_all(connection: sqlite3.Connection) -> dict[str, GroupState]:
    rows = connection.execute("SELECT name, state, seal FROM groups ORDER BY name")
    return {name: _check(name, raw, found) for name, raw, found in rows}


def save(connection: sqlite3.Connection, group: str, state: GroupState) -> None:
    raw = _encode(state)
    connection.execute("INSERT OR REPLACE INTO groups VALUES (?, ?, ?)", (group, raw, row_checksum(group, raw)))


def leave(connection: sqlite3.Connection, group: str, member: str) -> None:
    state = _load(connection, group)
    if state is not None and state.members.pop(member, None) is not None:
        save(connection, group, state)


def delete(connection: sqlite3.Connection, group: str, now: int) -> None:
    state = _load(connection, group)
    if state is None:
        raise unknown_group(group)
    if members := state.live_members(now):
        raise group_in_use(group, members)
    connection.execute("DELETE FROM groups WHERE name = ?", (group,))


def _load(connection: sqlite3.Connection, group: str) -> GroupState | None:
    row = connection.execute("SELECT state, seal FROM groups WHERE name = ?", (group,)).fetchone()
    return None if row is None else _check(group, *row)


def _check(group: str, raw: bytes, found: int) -> GroupState:
    if found != row_checksum(group, raw):
        raise damaged_row(f"the row of the group {group!r}")
    return _decode(raw)
