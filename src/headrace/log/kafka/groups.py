"""Consumer groups of a Kafka cluster, as those see them who are not members."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from headrace.log.errors import GroupInUseError, UnknownGroupError
from headrace.log.kafka.asking import answers, ask
from headrace.log.kafka.clients import READING, Clients, kafka, make
from headrace.log.kafka.topics import Topics
from headrace.log.kafka.trouble import MOVING, NO_ANSWER, REFUSED, code_of, explained
from headrace.log.protocol import Group
from headrace.model.ids import TopicPartition

_code = kafka.KafkaError
_IN_USE = {_code.NON_EMPTY_GROUP, _code.UNKNOWN_MEMBER_ID, _code.ILLEGAL_GENERATION, _code.REBALANCE_IN_PROGRESS}
_ASK_AGAIN, _LONGEST = 0.05, 5.0  # seconds
_VOICES = 8
_DEAD = kafka.ConsumerGroupState.DEAD
_AWAY = {*MOVING, *NO_ANSWER, _code._WAIT_COORD}  # noqa: SLF001 - a public name


class Groups:
    """What `Log` says of groups."""

    def __init__(self, clients: Clients, topics: Topics) -> None:
        self._clients, self._topics, self._patience = clients, topics, clients.settings.patience
        self._lock = threading.Lock()
        self._voices: dict[str, Any] = {}  # by group

    def all(self) -> dict[str, Group]:
        admin, doing = self._clients.admin, "listing the groups"
        asked = answers(self._clients, doing, lambda length: {0: admin.list_consumer_groups(request_timeout=length)})
        with explained(doing):
            listed = asked[0].result().valid
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
        admin, doing = self._clients.admin, f"describing the groups {', '.join(names)}"
        asked = answers(
            self._clients, doing, lambda length: admin.describe_consumer_groups(names, request_timeout=length)
        )
        with explained(doing):
            return {name: future.result() for name, future in asked.items()}

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Where a group goes on."""
        with explained(f"asking for the offsets of the group {group!r}"):
            found = self._patiently(group, self._committed)
        return {TopicPartition(at.topic, at.partition): at.offset for at in sorted(found) if at.offset >= 0}

    def _committed(self, consumer: Any) -> list[Any]:
        topics = ask(self._clients, "listing the topics", lambda length: consumer.list_topics(timeout=length)).topics
        places = [kafka.TopicPartition(name, part) for name, topic in topics.items() for part in topic.partitions]
        return consumer.committed(places, timeout=min(self._patience, _LONGEST)) if places else []

    def _patiently(self, group: str, call: Callable[[Any], list[Any]]) -> list[Any]:
        """Calls again while the coordinator of a group is away, or starts."""
        end = time.monotonic() + self._patience
        consumer = self._voice(group)
        while True:
            try:
                found = call(consumer)
                _raise_first(found)
            except kafka.KafkaException as error:
                for said in consumer.consume(10, 0):  # such as why there is no coordinator
                    if said.error() is not None and said.error().code() in REFUSED:
                        raise kafka.KafkaException(said.error()) from error
                if code_of(error) not in _AWAY or time.monotonic() > end:
                    raise
                time.sleep(_ASK_AGAIN)
            else:
                return found

    def _voice(self, group: str) -> Any:
        """A consumer that speaks for a group without being a member.

        The client for administration could do the same, but ends the whole process if the coordinator of a group has
        just moved or the connection to it breaks.
        """
        with self._lock:
            if group not in self._voices:
                self._voices[group] = make("consumer", self._clients.settings, {**READING, "group.id": group})
                while len(self._voices) > _VOICES:
                    self._voices.pop(next(iter(self._voices))).close()
            return self._voices[group]

    def close(self) -> None:
        with self._lock:
            for consumer in self._voices.values():
                consumer.close()
            self._voices.clear()

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Sets offsets while nobody is reading."""
        self.check(offsets)
        if not offsets:
            return
        places = [kafka.TopicPartition(*at, offset) for at, offset in offsets.items()]
        with explained(f"setting the offsets of the group {group!r}"):
            try:
                self._patiently(group, lambda consumer: consumer.commit(offsets=places, asynchronous=False))
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
