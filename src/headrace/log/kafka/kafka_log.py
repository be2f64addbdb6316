"""The log on a Kafka cluster: any number of processes on any number of machines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import TracebackType
from typing import Any, Self

from headrace.log.embedded import reader
from headrace.log.kafka.clients import Clients, ClientSettings, servers_of
from headrace.log.kafka.consumer_groups import Groups, Members
from headrace.log.kafka.delivery import Delivering, Sharing
from headrace.log.kafka.markers import Marks
from headrace.log.kafka.producer import Appending, Checking
from headrace.log.kafka.reader import Reading
from headrace.log.kafka.topics import Topics
from headrace.log.protocol import Chunk, Extent, Group, Item, Membership, Share, Stamp, Topic
from headrace.model.clock import Clock, SystemClock
from headrace.model.ids import TopicPartition

_ABANDONED: list[Any] = []  # clients of a parent process: to destroy them would wait for threads that are not there


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


class KafkaLog:
    """A log on a Kafka cluster, `kafka://host:port,host:port`. What it says of each method, `Log` says.

    `settings` are Kafka's: `consumer.*`, `producer.*` and `admin.*` for one kind of client, `security.*`, `sasl.*`,
    `ssl.*` and their like for all, `default.api.timeout.ms` for how long a call waits, `replication.factor` for the
    copies of topics that are created without one. An append is checked before
    anything of it is sent, but it is no transaction: of an append during which brokers fail, some may be stored.
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
        self._clock, self._pause = clock or SystemClock(), pause or time.sleep
        self._own = (os.getpid(), _Parts(self._settings, self._clock))

    @property
    def url(self) -> str:
        return f"kafka://{self._settings.servers}"

    def close(self) -> None:
        process, parts = self._own
        if process == os.getpid():
            self._own = (-1, parts)
            parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., KafkaLog], tuple[str, Mapping[str, Any]]]:
        return KafkaLog, (self.url, self._settings.given)

    @property
    def _parts(self) -> _Parts:
        process, parts = self._own
        if process == -1:
            raise ValueError(f"the log at {self.url} was closed: open it again, open_log({self.url!r})")
        if process != os.getpid():
            _ABANDONED.append(parts)
            parts = _Parts(self._settings, self._clock)
            self._own = (os.getpid(), parts)
        return parts

    # ---------------------------------------------------------------------------------------------------- topics
    def topics(self) -> Mapping[str, Topic]:
        return self._parts.topics.all()

    def topic(self, name: str) -> Topic:
        return self._parts.topics.one(name)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str | int] | None = None,
        *,
        replication_factor: int | None = None,
    ) -> Topic:
        return self._parts.topics.create(name, partitions, config or {}, replication_factor)

    def delete_topic(self, name: str) -> None:
        self._parts.topics.delete(name)

    def add_partitions(self, name: str, partitions: int) -> Topic:
        return self._parts.topics.grow(name, partitions)

    def alter_config(self, name: str, config: Mapping[str, str | int | None]) -> Topic:
        changed = self._parts.topics.alter(name, config)
        self._parts.checking.forget(name)
        return changed

    # --------------------------------------------------------------------------------------------------- records
    def extents(self, topics: Sequence[str]) -> dict[TopicPartition, Extent]:
        return self._parts.reading.extents(topics)

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return self._parts.reading.offsets_for_times(times)

    def confirm(self, ids: Mapping[str, str]) -> Callable[[], None]:
        return self._parts.topics.confirm(ids)

    def read(
        self,
        at: TopicPartition,
        start: int,
        end: int | None = None,
        *,
        topic_id: str | None = None,
        more: bool | None = None,
    ) -> Iterator[Chunk]:
        return self._parts.reading.read(TopicPartition(*at), start, end, topic_id, more)

    def append(self, items: Sequence[Item], *, stamp: Stamp | None = None) -> list[int]:
        return self._parts.appending.append(items, stamp)

    def new_producer(self) -> int:
        return self._parts.appending.new_producer()

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return self._parts.reading.delete(before)

    def wait(self, positions: Mapping[TopicPartition, int], timeout: int) -> bool:
        return reader.wait(self, positions, timeout, self._clock, self._pause)

    # ------------------------------------------------------------------------------------------------ deliveries
    def deliver(self, application: str, number: int, items: Sequence[Item]) -> bool:
        return self._parts.delivering.deliver(application, number, items)

    def delivered(self, application: str) -> int:
        return self._parts.delivering.delivered(application)

    def mark_delivered(self, application: str, number: int | None) -> None:
        self._parts.delivering.mark(application, number)

    def share_out(self, application: str, number: int, shares: int) -> str | None:
        return self._parts.delivering.share_out(application, number, shares)

    def deliver_share(self, application: str, share: Share, items: Sequence[Item]) -> str:
        return self._parts.sharing.deliver(application, share, items)

    # ---------------------------------------------------------------------------------------------------- groups
    def groups(self) -> Mapping[str, Group]:
        return self._parts.groups.all()

    def committed(self, group: str) -> dict[TopicPartition, int]:
        return self._parts.groups.committed(group)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], *, member: str | None = None) -> None:
        if member is None:
            self._parts.groups.commit(group, offsets)
        else:
            self._parts.members.commit(group, offsets, member)

    def delete_group(self, group: str) -> None:
        self._parts.groups.delete(group)

    def join(
        self, group: str, member: str, topics: Sequence[str], holding: AbstractSet[TopicPartition], lease: int
    ) -> Membership:
        return self._parts.members.join(group, member, topics, holding, lease)

    def leave(self, group: str, member: str) -> None:
        self._parts.members.leave(group, member)
