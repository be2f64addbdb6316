"""The log on a Kafka cluster: any number of processes on any number of machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from headrace.log.base import BaseLog
from headrace.log.kafka.clients import Clients, ClientSettings, servers_of
from headrace.log.kafka.consumer_groups import Groups, Members
from headrace.log.kafka.delivery import Delivering, Sharing
from headrace.log.kafka.markers import Marks
from headrace.log.kafka.producer import Appending, Checking
from headrace.log.kafka.reader import Reading
from headrace.log.kafka.topics import Topics
from headrace.log.protocol import Chunk, Extent, Group, Item, Membership, ProducerSequence, Share, Topic
from headrace.model.clock import Clock
from headrace.model.ids import TopicPartition


class _Parts:
    """Everything that a process needs to talk to the cluster."""

    def __init__(self, settings: ClientSettings, clock: Clock) -> None:
        self.clients = Clients(settings)
        self.topics = Topics(self.clients)
        self.reading = Reading(self.clients, self.topics)
        self.checking = Checking(self.topics)
        self.appending = Appending(self.clients, self.checking, self.reading)
        marks = Marks(self.clients, self.topics, self.reading)
        self.delivering = Delivering(self.clients, self.topics, marks, self.checking)
        self.sharing = Sharing(self.clients, self.topics, marks, self.checking)
        self.groups, self.members = Groups(self.clients, self.topics), Members(self.clients, clock)

    def close(self) -> None:
        for part in (self.members, self.groups, self.appending, self.delivering, self.sharing, self.clients):
            part.close()


class KafkaLog(BaseLog[_Parts]):
    """A log on a Kafka cluster, `kafka://host:port,host:port`. What it says of each method, `Log` says.

    `settings` are Kafka's: `consumer.*`, `producer.*` and `admin.*` for one kind of client, `security.*`, `sasl.*`,
    `ssl.*` and their like for all, `default.api.timeout.ms` for how long a call waits, `replication.factor` for the
    copies of topics that are created without one. An append is checked before anything of it is sent, but it is no
    transaction: of an append during which brokers fail, some may be stored.
    """

    def __init__(
        self,
        address: str,
        settings: Mapping[str, Any] | None = None,
        *,
        clock: Clock | None = None,
        pause: Callable[[float], None] | None = None,
    ) -> None:
        self._settings = ClientSettings(servers_of(address), dict(settings or {}))
        self._pause = pause or time.sleep
        super().__init__(clock)

    @property
    def url(self) -> str:
        return f"kafka://{self._settings.servers}"

    def __reduce__(self) -> tuple[Callable[..., KafkaLog], tuple[str, Mapping[str, Any]]]:
        return KafkaLog, (self.url, self._settings.given)

    def _open(self) -> _Parts:
        return _Parts(self._settings, self._clock)

    def _close(self, resources: _Parts) -> None:
        resources.close()

    # ---------------------------------------------------------------------------------------------------- topics
    def topics(self) -> Mapping[str, Topic]:
        return self._resources.topics.all()

    def topic(self, name: str) -> Topic:
        return self._resources.topics.one(name)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str | int] | None = None,
        *,
        replication_factor: int | None = None,
    ) -> Topic:
        return self._resources.topics.create(name, partitions, config or {}, replication_factor)

    def delete_topic(self, name: str) -> None:
        self._resources.topics.delete(name)

    def add_partitions(self, name: str, partitions: int) -> Topic:
        return self._resources.topics.grow(name, partitions)

    def alter_config(self, name: str, config: Mapping[str, str | int | None]) -> Topic:
        changed = self._resources.topics.alter(name, config)
        self._resources.checking.forget(name)
        return changed

    # --------------------------------------------------------------------------------------------------- records
    def extents(self, topics: Sequence[str]) -> dict[TopicPartition, Extent]:
        return self._resources.reading.extents(topics)

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return self._resources.reading.offsets_for_times(times)

    def confirm_topic_ids(self, ids: Mapping[str, str]) -> Callable[[], None]:
        return self._resources.topics.confirm(ids)

    def read(
        self,
        at: TopicPartition,
        start: int,
        end: int | None = None,
        *,
        topic_id: str | None = None,
        has_more: bool | None = None,
    ) -> Iterator[Chunk]:
        return self._resources.reading.read(TopicPartition(*at), start, end, topic_id, has_more)

    def append(self, items: Sequence[Item], *, sequence: ProducerSequence | None = None) -> list[int]:
        return self._resources.appending.append(items, sequence)

    def new_producer(self) -> int:
        return self._resources.appending.new_producer()

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return self._resources.reading.delete(before)

    def wait(self, positions: Mapping[TopicPartition, int], timeout: int) -> bool:
        return self._wait(positions, timeout, self._pause)

    # ------------------------------------------------------------------------------------------------ deliveries
    def deliver(self, application: str, number: int, items: Sequence[Item]) -> bool:
        return self._resources.delivering.deliver(application, number, items)

    def delivered(self, application: str) -> int:
        return self._resources.delivering.delivered(application)

    def mark_delivered(self, application: str, number: int | None) -> None:
        self._resources.delivering.mark(application, number)

    def begin_shares(self, application: str, number: int, shares: int) -> str | None:
        return self._resources.delivering.share_out(application, number, shares)

    def deliver_share(self, application: str, share: Share, items: Sequence[Item]) -> str:
        return self._resources.sharing.deliver(application, share, items)

    # ---------------------------------------------------------------------------------------------------- groups
    def groups(self) -> Mapping[str, Group]:
        return self._resources.groups.all()

    def committed(self, group: str) -> dict[TopicPartition, int]:
        return self._resources.groups.committed(group)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], *, member: str | None = None) -> None:
        if member is None:
            self._resources.groups.commit(group, offsets)
        else:
            self._resources.members.commit(group, offsets, member)

    def delete_group(self, group: str) -> None:
        self._resources.groups.delete(group)

    def join(
        self, group: str, member: str, topics: Sequence[str], holding: AbstractSet[TopicPartition], lease: int
    ) -> Membership:
        return self._resources.members.join(group, member, topics, holding, lease)

    def leave(self, group: str, member: str) -> None:
        self._resources.members.leave(group, member)
