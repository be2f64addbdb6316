"""Checks that both logs make, and the errors that they raise in the same words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import SequenceMatcher
from heapq import nlargest

from headrace.errors import (
    GroupInUseError,
    LogCorruptedError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    RecordTooLargeError,
    UnknownGroupError,
    UnknownTopicError,
)
from headrace.log.protocol import Extent, ProducerSequence, Topic
from headrace.model.ids import TopicPartition


# ----------------------------------------------------------------------------------------------------------- topics
def unknown_topic(name: str, known: Iterable[str]) -> UnknownTopicError:
    names = sorted(known)
    near = sorted(nlargest(10, names, key=lambda other: SequenceMatcher(None, name, other).ratio()))
    have = ", ".join(near) or "none"
    if len(names) > len(near):
        have += f", and {len(names) - len(near)} more"
    return UnknownTopicError(f"there is no topic {name!r} (there are: {have}): create it, create_topic({name!r})")


def check_partition(at: TopicPartition, partitions: int) -> None:
    if not 0 <= at.partition < partitions:
        raise UnknownTopicError(
            f"the topic {at.topic!r} has no partition {at.partition}: it has {partitions}, counted from 0"
        )


def check_topic_id(name: str, found: str, expected: str | None) -> None:
    """Raises if a topic has another id than expected: it was created again. None accepts any id."""
    if expected is not None and found != expected:
        raise UnknownTopicError(f"the topic {name!r} was deleted and created again: its id is {found}, not {expected}")


def check_topic_ids(ids: Mapping[str, str], find: Callable[[str], Topic]) -> dict[str, int]:
    """Raises if a topic has another id. Returns how many partitions each topic has."""
    topics = {name: find(name) for name in ids}
    for name, topic in topics.items():
        check_topic_id(name, topic.id, ids[name])
    return {name: topic.partitions for name, topic in topics.items()}


# ---------------------------------------------------------------------------------------------------------- offsets
def check_range(at: TopicPartition, extent: Extent, start: int, end: int) -> None:
    """Raises if a partition does not have the offsets from `start` to `end`."""
    if not extent.earliest <= start <= end <= extent.end:
        raise OffsetOutOfRangeError(
            f"{at} has offsets {extent.earliest} to {extent.end}, not {start} to {end}: they were removed by retention "
            "or by hand, the topic was created again, or they are not written yet",
            at=at, earliest=extent.earliest, end=extent.end,
        )  # fmt: skip


def check_deletion(at: TopicPartition, extent: Extent, before: int) -> None:
    """Raises if records before an offset cannot be deleted because the partition ends earlier."""
    if not -1 <= before <= extent.end:
        raise OffsetOutOfRangeError(
            f"{at} ends at offset {extent.end}: no records before {before} can be deleted",
            at=at, earliest=extent.earliest, end=extent.end,
        )  # fmt: skip


def check_committed_offset(at: TopicPartition, offset: int) -> None:
    if offset < 0:
        raise ValueError(f"an offset to commit is 0 or more, not {offset} of {at}")


# ---------------------------------------------------------------------------------------------------------- records
def check_record_length(topic: str, length: int, limit: int) -> None:
    if length > limit:
        raise RecordTooLargeError(
            f"a record of {length} bytes is too large for the topic {topic!r}, whose max.message.bytes is {limit}: "
            "make it smaller, or the limit larger (alter_config)"
        )


def missing_key(topic: str) -> ValueError:
    return ValueError(f"the topic {topic!r} is compacted: every record needs a key, and one of these has none")


def damaged_item(at: TopicPartition, error: Exception) -> LogCorruptedError:
    return LogCorruptedError(f"records for {at} arrived damaged: {error}", at=at)


def item_with_offsets(at: TopicPartition) -> ValueError:
    return ValueError(f"records for {at} were packed with offsets: the log gives them, when they are appended")


# ------------------------------------------------------------------------------------------- appends and deliveries
def is_next_append(sequence: ProducerSequence, last: int) -> bool:
    """Returns True for the append that follows number `last`, False for `last` itself, and raises for any other."""
    if sequence.number not in {last, last + 1}:
        raise ProducerFencedError(
            f"producer {sequence.producer_id} appends number {sequence.number} after number {last}: two clients use "
            "one id, or an append was lost. Make a new producer"
        )
    return sequence.number == last + 1


def is_next_batch(application: str, number: int, last: int) -> bool:
    """Returns True for the batch that follows batch `last`, False for `last` itself, and raises for any other."""
    if last not in {number - 1, number}:
        said = f"batch {last} was" if last >= 0 else "no batch was"
        raise ProducerFencedError(
            f"batch {number} of {application!r} cannot be delivered: {said} the last one delivered to this log. "
            "The log or the checkpoint is not the one that belongs to the other, or is an older copy"
        )
    return last == number - 1


# ----------------------------------------------------------------------------------------------------------- groups
def unknown_group(group: str) -> UnknownGroupError:
    return UnknownGroupError(f"there is no consumer group {group!r}: it exists from the first join or commit on")


def group_in_use(group: str, members: Iterable[str], hint: str = "") -> GroupInUseError:
    return GroupInUseError(f"the group {group!r} is in use by {', '.join(sorted(members))}{hint}")


def offsets_in_use(group: str, members: Iterable[str]) -> GroupInUseError:
    return group_in_use(group, members, ": offsets can be set when they left")


def no_longer_member(group: str, member: str) -> ProducerFencedError:
    return ProducerFencedError(
        f"{member!r} is no longer a member of {group!r}: its lease has ended. Poll to join again"
    )


def partitions_lost(group: str, member: str, lost: Iterable[TopicPartition]) -> ProducerFencedError:
    names = ", ".join(map(str, sorted(lost)))
    return ProducerFencedError(f"{member!r} does not hold {names} in {group!r} any more: another member reads it now")
