"""Consumer groups of a Kafka cluster, as those see them who are not members."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from headrace.log.errors import GroupInUseError, LogBusyError, UnknownGroupError
from headrace.log.kafka.clients import Clients, kafka
from headrace.log.kafka.topics import Topics
from headrace.log.kafka.trouble import code_of, explained
from headrace.log.protocol import Group
from headrace.model.ids import TopicPartition

_code = kafka.KafkaError
_IN_USE = {_code.NON_EMPTY_GROUP, _code.UNKNOWN_MEMBER_ID, _code.ILLEGAL_GENERATION, _code.REBALANCE_IN_PROGRESS}
_ASK_AGAIN = 0.05  # seconds
_DEAD = kafka.ConsumerGroupState.DEAD


class Groups:
    """What `Log` says of groups."""

    def __init__(self, clients: Clients, topics: Topics) -> None:
        self._clients, self._topics, self._patience = clients, topics, clients.settings.patience

    def all(self) -> dict[str, Group]:
        with explained("listing the groups"):
            listed = self._clients.admin.list_consumer_groups(request_timeout=self._patience).result().valid
        names = sorted(group.group_id for group in listed)
        described = self._described(names)
        return {
            name: Group(name, 0, _members(described[name]), self.committed(name))
            for name in names
            if described[name].state != _DEAD
        }

    def _described(self, names: list[str]) -> dict[str, Any]:
        if not names:
            return {}
        with explained(f"describing the groups {', '.join(names)}"):
            asked = self._clients.admin.describe_consumer_groups(names, request_timeout=self._patience)
            return {name: future.result() for name, future in asked.items()}

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Where a group goes on, also while its coordinator starts."""
        end = time.monotonic() + self._patience
        while True:
            try:
                return self._committed(group)
            except LogBusyError:
                if time.monotonic() > end:
                    raise
                time.sleep(_ASK_AGAIN)

    def _committed(self, group: str) -> dict[TopicPartition, int]:
        wanted = kafka.ConsumerGroupTopicPartitions(group)
        with explained(f"asking for the offsets of {group!r}"):
            try:
                asked = self._clients.admin.list_consumer_group_offsets([wanted], request_timeout=self._patience)
                found = asked[group].result().topic_partitions
            except kafka.KafkaException as error:
                if code_of(error) != _code.GROUP_ID_NOT_FOUND:
                    raise
                return {}
        return {TopicPartition(at.topic, at.partition): at.offset for at in sorted(found) if at.offset >= 0}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Sets offsets while nobody is reading."""
        self.check(offsets)
        if not offsets:
            return
        places = [kafka.TopicPartition(*at, offset) for at, offset in offsets.items()]
        wanted = kafka.ConsumerGroupTopicPartitions(group, places)
        with explained(f"setting the offsets of {group!r}"):
            try:
                asked = self._clients.admin.alter_consumer_group_offsets([wanted], request_timeout=self._patience)
                _raise_first(asked[group].result().topic_partitions)
            except kafka.KafkaException as error:
                if code_of(error) not in _IN_USE:
                    raise
                raise GroupInUseError(
                    f"the group {group!r} is in use by {self._readers(group)}: offsets can be set when they left"
                ) from error

    def check(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Refuses offsets that cannot be."""
        topics = self._topics.known(sorted({at.topic for at in offsets}))
        for at, offset in offsets.items():
            self._topics.place(at, topics[at.topic])
            if offset < 0:
                raise ValueError(f"an offset to commit is 0 or more, not {offset} of {at}")

    def delete(self, group: str) -> None:
        with explained(f"deleting the group {group!r}"):
            try:
                self._clients.admin.delete_consumer_groups([group], request_timeout=self._patience)[group].result()
            except kafka.KafkaException as error:
                if code_of(error) == _code.GROUP_ID_NOT_FOUND:
                    raise UnknownGroupError(
                        f"there is no consumer group {group!r}: it exists from the first join or commit on"
                    ) from error
                if code_of(error) in _IN_USE:
                    raise GroupInUseError(f"the group {group!r} is in use by {self._readers(group)}") from error
                raise

    def _readers(self, group: str) -> str:
        return ", ".join(sorted(_members(self._described([group])[group])))


def _raise_first(places: list[Any]) -> None:
    for at in places:
        if at.error is not None:
            raise kafka.KafkaException(at.error)


def _members(description: Any) -> dict[str, frozenset[TopicPartition]]:
    """Members by the name that they gave themselves, or by the one that Kafka gave them."""
    by_client = [member.client_id for member in description.members]
    return {
        member.client_id if by_client.count(member.client_id) == 1 else member.member_id: frozenset(
            TopicPartition(at.topic, at.partition)
            for at in (member.assignment.topic_partitions if member.assignment else ())
        )
        for member in description.members
    }
