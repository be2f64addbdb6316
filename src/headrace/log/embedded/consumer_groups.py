"""Consumer groups: who reads what, and how far they are. The state of a group is one row.

A partition changes hands in two steps: the member that has to give it up says that it has, then the other gets it. A
member whose lease is over loses what it holds at once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from headrace.errors import GroupInUseError, ProducerFencedError, UnknownGroupError
from headrace.log.embedded.database import broken, seal
from headrace.log.embedded.topics import Catalog
from headrace.log.protocol import Group, Membership
from headrace.model.ids import TopicPartition

Partitions = Mapping[str, int]  # how many there are, by topic


class Member(msgspec.Struct):
    """A reader: what it wants, what it holds, and until when it is believed to live."""

    topics: list[str]
    held: set[TopicPartition]
    expires: int


class GroupState(msgspec.Struct):
    """A group; offsets are by topic number and partition, so that a topic made anew is not taken for the old one."""

    generation: int = 0
    members: dict[str, Member] = {}
    wishes: dict[str, list[str]] = {}
    partitions: dict[str, int] = {}
    offsets: dict[int, dict[int, int]] = {}


_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(GroupState).decode


def share_out(wishes: Mapping[str, Sequence[str]], partitions: Partitions) -> dict[str, set[TopicPartition]]:
    """Kafka's range assignment: of each topic, every member that wants it gets partitions next to each other.

    >>> sorted(share_out({"a": ["t"], "b": ["t"]}, {"t": 3})["a"])
    [TopicPartition(topic='t', partition=0), TopicPartition(topic='t', partition=1)]
    """
    shares: dict[str, set[TopicPartition]] = {member: set() for member in wishes}
    for topic, count in partitions.items():
        members = sorted(member for member, topics in wishes.items() if topic in topics)
        for i, member in enumerate(members):
            each, more = divmod(count, len(members))
            start = i * each + min(i, more)
            shares[member].update(TopicPartition(topic, p) for p in range(start, start + each + (i < more)))
    return shares


def join(
    group: GroupState,
    member: str,
    topics: Sequence[str],
    holding: AbstractSet[TopicPartition],
    partitions: Partitions,
    now: int,
    lease: int,
) -> Membership:
    """Makes or keeps somebody a member, and says what it may read."""
    drop_dead(group, now)
    known = group.members.get(member)
    held = known.held & set(holding) if known else set[TopicPartition]()
    group.members[member] = Member(sorted(topics), held, now + lease)
    wishes = {name: other.topics for name, other in group.members.items()}
    counts = {topic: partitions[topic] for topics in wishes.values() for topic in topics if topic in partitions}
    if (wishes, counts) != (group.wishes, group.partitions):
        group.generation, group.wishes, group.partitions = group.generation + 1, wishes, counts
    share = share_out(wishes, counts)[member]
    taken = {at for name, other in group.members.items() if name != member for at in other.held}
    held |= share - taken
    return Membership(group.generation, frozenset(held & share))


def leave(group: GroupState, member: str) -> None:
    group.members.pop(member, None)


def drop_dead(group: GroupState, now: int) -> None:
    """Those whose lease is over."""
    for name in [name for name, member in group.members.items() if member.expires <= now]:
        del group.members[name]


def check_may_commit(name: str, group: GroupState, member: str | None, places: AbstractSet[TopicPartition]) -> None:
    """Members commit what they hold; others only while there are none."""
    if member is None:
        if group.members:
            raise GroupInUseError(
                f"the group {name!r} is in use by {', '.join(sorted(group.members))}: offsets can be set when they left"
            )
    elif member not in group.members:
        raise ProducerFencedError(
            f"{member!r} is no longer a member of {name!r}: its lease was over. Poll again to join anew"
        )
    elif not places <= group.members[member].held:
        lost = ", ".join(str(at) for at in sorted(places - group.members[member].held))
        raise ProducerFencedError(f"{member!r} does not hold {lost} in {name!r} any more: another member reads it now")


# ---------------------------------------------------------------------------------------------------------- offsets
def offsets_of(group: GroupState, catalog: Catalog) -> dict[TopicPartition, int]:
    """How far a group is, in topics that exist."""
    return {
        TopicPartition(name, partition): offset
        for name, entry in sorted(catalog.topics.items())
        for partition, offset in sorted(group.offsets.get(entry.number, {}).items())
    }


def set_offsets(group: GroupState, offsets: Mapping[TopicPartition, int], catalog: Catalog) -> None:
    for at, offset in offsets.items():
        if offset < 0:
            raise ValueError(f"an offset to commit is 0 or more, not {offset} of {at}")
        group.offsets.setdefault(catalog.place(at).number, {})[at.partition] = offset
    living = {entry.number for entry in catalog.topics.values()}
    group.offsets = {number: of for number, of in group.offsets.items() if number in living}


def seen(name: str, group: GroupState, catalog: Catalog, now: int) -> Group:
    """A group as others see it."""
    living = {name: frozenset(member.held) for name, member in group.members.items() if member.expires > now}
    return Group(name, group.generation, living, offsets_of(group, catalog))


# ------------------------------------------------------------------------------------------------------------- rows
def load(connection: sqlite3.Connection, name: str) -> GroupState | None:
    row = connection.execute("SELECT state, seal FROM groups WHERE name = ?", (name,)).fetchone()
    return None if row is None else _checked(name, *row)


def load_known(connection: sqlite3.Connection, name: str) -> GroupState:
    state = load(connection, name)
    if state is None:
        raise UnknownGroupError(f"there is no consumer group {name!r}: it exists from the first join or commit on")
    return state


def load_all(connection: sqlite3.Connection) -> dict[str, GroupState]:
    rows = connection.execute("SELECT name, state, seal FROM groups ORDER BY name")
    return {name: _checked(name, raw, found) for name, raw, found in rows}


def save(connection: sqlite3.Connection, name: str, state: GroupState) -> None:
    raw = _encode(state)
    connection.execute("INSERT OR REPLACE INTO groups VALUES (?, ?, ?)", (name, raw, seal(name, raw)))


def delete(connection: sqlite3.Connection, name: str) -> None:
    connection.execute("DELETE FROM groups WHERE name = ?", (name,))


def _checked(name: str, raw: bytes, found: int) -> GroupState:
    if found != seal(name, raw):
        raise broken(f"the row of the group {name!r}")
    return _decode(raw)
