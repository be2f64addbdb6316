"""The log on a Kafka cluster: any number of processes on any number of machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from headrace.log.kafka.broker_version import check_brokers
from headrace.log.kafka.clients import AdminConnection, ClientSettings, parse_servers
from headrace.log.kafka.consumer_groups import ConsumerGroups, GroupMembers
from headrace.log.kafka.delivery import BatchDelivery, ShareDelivery
from headrace.log.kafka.markers import MarkerTopics
from headrace.log.kafka.producer import Appender, RecordChecker
from headrace.log.kafka.reader import PartitionReader
from headrace.log.kafka.topics import Topics
from headrace.log.protocol import BaseLog, Chunk, Extent, Group, Item, Membership, ProducerSequence, Share, Topic
from headrace.model.clock import Clock
from headrace.model.ids import TopicPartition


class Connections:
    """The clients of a process, and what uses them."""

    def __init__(self, settings: ClientSettings, clock: Clock) -> None:
        self.admin = AdminConnection(settings)
        self.topics = Topics(self.admin)
        self.reader = PartitionReader(self.admin, self.topics)
        self.checker = RecordChecker(self.topics)
        self.appender = Appender(settings, self.checker, self.reader)
        markers = MarkerTopics(self.topics, self.reader, settings, self.appender.append_unchecked)
        self.batches = BatchDelivery(settings, self.topics, markers, self.checker)
        self.shares = ShareDelivery(settings, self.topics, markers, self.checker)
        self.groups, self.members = ConsumerGroups(self.admin, self.topics), GroupMembers(settings, clock)

    def close(self) -> None:
        for part in (self.members, self.groups, self.appender, self.batches, self.shares, self.reader, self.admin):
            part.close()


class KafkaLog(BaseLog[Connections]):
    """A log on a Kafka cluster, `kafka://HOST:PORT,HOST:PORT`. `Log` documents the methods.

    `settings` are Kafka's: `consumer.*`, `producer.*` and `admin.*` for one kind of client; `security.*`, `sasl.*`,
    `ssl.*` and the like for all; `default.api.timeout.ms` for how long a call waits; `replication.factor` for topics
    that are created without a factor. An append is checked before any of its records is sent, but it is no
    transaction: if brokers fail, it may be stored in part.
    """

    def __init__(
        self,
        address: str,
        settings: Mapping[str, Any] | None = None,
        *,
        clock: Clock | None = None,
        pause: Callable[[float], None] | None = None,
    ) -> None:
        self._settings = ClientSettings(parse_servers(address), dict(settings or {}))
        self._pause = pause or time.sleep
        super().__init__(clock)

    @property
    def url(self) -> str:
        return f"kafka://{self._settings.servers}"

    def __reduce__(self) -> tuple[Callable[..., KafkaLog], tuple[str, Mapping[str, Any]]]:
        return KafkaLog, (self.url, self._settings.given)

    def _open(self) -> Connections:
        return Connections(self._settings, self._clock)

    def _close(self, resources: Connections) -> None:
        resources.close()

    def check_brokers(self) -> None:
        check_brokers(self._settings)

    # ---------------------------------------------------------------------------------------------------- topics
    def topics(self) -> Mapping[str, Topic]:
        return self._resources.topics.all()

    def topic(self, name: str) -> Topic:
        return self._resources.topics.get(name)[name]

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
        return self._resources.topics.add_partitions(name, partitions)

    def alter_config(self, name: str, config: Mapping[str, str | int | None]) -> Topic:
        changed = self._resources.topics.alter_config(name, config)
        self._resources.checker.forget_config(name)
        return changed

    # --------------------------------------------------------------------------------------------------- records
    def extents(self, topics: Sequence[str]) -> dict[TopicPartition, Extent]:
        return self._resources.reader.extents(topics)

    def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return self._resources.reader.ends(partitions)

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return self._resources.reader.offsets_for_times(times)

    def confirm_topics(self, ids: Mapping[str, str]) -> Callable[[], dict[str, int]]:
        return self._resources.topics.begin_check_ids(ids)

    def read(
        self,
        at: TopicPartition,
        start: int,
        end: int | None = None,
        *,
        topic_id: str | None = None,
        has_more: bool | None = None,
    ) -> Iterator[Chunk]:
        return self._resources.reader.read(TopicPartition(*at), start, end, topic_id, has_more)

    def append(self, items: Sequence[Item], *, sequence: ProducerSequence | None = None) -> list[int]:
        return self._resources.appender.append(items, sequence)

    def new_producer(self) -> int:
        return self._resources.appender.new_producer()

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return self._resources.reader.delete_records(before)

    def wait(self, positions: Mapping[TopicPartition, int], timeout: int) -> bool:
        return self._wait(positions, timeout, self._pause)

    # ------------------------------------------------------------------------------------------------ deliveries
    def deliver(self, application: str, number: int, items: Sequence[Item]) -> bool:
        return self._resources.batches.deliver(application, number, items)

    def begin_delivery(self, application: str, number: int, items: Sequence[Item]) -> Callable[[], None]:
        return self._resources.batches.begin(application, number, items)

    def delivered(self, application: str) -> int:
        return self._resources.batches.delivered(application)

    def mark_delivered(self, application: str, number: int | None) -> None:
        self._resources.batches.mark(application, number)

    def begin_shares(self, application: str, number: int, shares: int) -> str | None:
        return self._resources.batches.begin_shares(application, number, shares)

    def deliver_share(self, application: str, share: Share, items: Sequence[Item]) -> str:
        return self._resources.shares.deliver(application, share, items)

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
