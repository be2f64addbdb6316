"""A part of a shared Kafka cluster that looks like a log of its own: all names in it begin with a prefix."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self
from uuid import uuid4

from headrace.errors import StreamsError
from headrace.log.kafka import KafkaLog
from headrace.log.kafka.consumer_groups import GroupMembers
from headrace.log.protocol import Chunk, Extent, Group, Item, Membership, ProducerSequence, Topic
from headrace.log.topic_config import check_topic_name
from headrace.model.ids import TopicPartition
from tests.clocks import ManualClock

Offsets = Mapping[TopicPartition, int]


class PrefixedLog:
    """What it says of each method, `Log` says; waiting is moving the clock."""

    stores_chunks = KafkaLog.stores_chunks

    def __init__(self, warm: KafkaLog, clock: ManualClock) -> None:
        self.prefix = f"{uuid4().hex[:8]}."
        self._log = KafkaLog(warm.url, clock=clock, pause=lambda seconds: _advance(clock, seconds))
        own, others = self._log._resources, warm._resources
        for part in ("admin", "topics", "reader", "checker", "appender", "batches", "groups"):
            setattr(own, part, getattr(others, part))
        own.members = GroupMembers(own.admin.settings, clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        parts = self._log._resources
        parts.members.close()
        for application in [name for name in parts.batches._owned if name.startswith(self.prefix)]:
            parts.batches._drop(application)
        names = [name for name in self._log._resources.topics.names() if name.startswith(self.prefix)]
        if names:
            parts.admin.client.delete_topics(names)

    def close(self) -> None:
        """The clients are shared."""

    # ------------------------------------------------------------------------------------------------------- names
    def _in(self, name: Any) -> Any:
        with suppress(ValueError, TypeError):
            return self.prefix + check_topic_name(name)
        return name

    def _at(self, at: TopicPartition) -> TopicPartition:
        return TopicPartition(self._in(at[0]), at[1])

    def _out(self, name: str) -> str:
        return name.removeprefix(self.prefix)

    def _places(self, offsets: Mapping[TopicPartition, Any]) -> dict[TopicPartition, Any]:
        return {TopicPartition(self._out(at.topic), at.partition): value for at, value in offsets.items()}

    def _inner(self, offsets: Mapping[TopicPartition, Any]) -> dict[TopicPartition, Any]:
        return {self._at(at): value for at, value in offsets.items()}

    def _topic(self, topic: Topic) -> Topic:
        return replace(topic, name=self._out(topic.name))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors speak of the names that were used."""
        try:
            yield
        except (StreamsError, ValueError) as error:
            have = re.search(r"there are: ([^)]*)", str(error))
            text = str(error)
            if have:
                names = [name for name in have[1].split(", ") if name.startswith(self.prefix)]
                text = text.replace(have[1], ", ".join(names))
            error.args = (text.replace(self.prefix, ""),)
            at = getattr(error, "at", None)
            if at is not None:
                error.at = TopicPartition(self._out(at.topic), at.partition)  # pyright: ignore[reportAttributeAccessIssue]
            raise

    def _do(self, method: Callable[..., Any], *given: Any, **options: Any) -> Any:
        with self._told():
            return method(*given, **options)

    # ------------------------------------------------------------------------------------------------------ topics
    def topics(self) -> Mapping[str, Topic]:
        found = self._log.topics()
        return {self._out(name): self._topic(topic) for name, topic in found.items() if name.startswith(self.prefix)}

    def topic(self, name: str) -> Topic:
        return self._topic(self._do(self._log.topic, self._in(name)))

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str | int] | None = None,
        *,
        replication_factor: int | None = None,
    ) -> Topic:
        create = partial(self._log.create_topic, replication_factor=replication_factor)
        return self._topic(self._do(create, self._in(name), partitions, config))

    def delete_topic(self, name: str) -> None:
        self._do(self._log.delete_topic, self._in(name))

    def add_partitions(self, name: str, partitions: int) -> Topic:
        return self._topic(self._do(self._log.add_partitions, self._in(name), partitions))

    def alter_config(self, name: str, config: Mapping[str, str | int | None]) -> Topic:
        return self._topic(self._do(self._log.alter_config, self._in(name), config))

    # ----------------------------------------------------------------------------------------------------- records
    def extents(self, topics: Sequence[str]) -> dict[TopicPartition, Extent]:
        return self._places(self._do(self._log.extents, [self._in(name) for name in topics]))

    def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return self._places(self._do(self._log.ends, [self._at(at) for at in partitions]))

    def offsets_for_times(self, times: Offsets) -> dict[TopicPartition, int | None]:
        return self._places(self._do(self._log.offsets_for_times, self._inner(times)))

    def confirm_topics(self, ids: Mapping[str, str]) -> Callable[[], dict[str, int]]:
        confirmed = self._log.confirm_topics({self._in(name): id_ for name, id_ in ids.items()})
        return lambda: dict(zip(ids, self._do(confirmed).values(), strict=True))

    def read(
        self,
        at: TopicPartition,
        start: int,
        end: int | None = None,
        *,
        topic_id: str | None = None,
        has_more: bool | None = None,
    ) -> Iterator[Chunk]:
        return self._do(self._log.read, self._at(at), start, end, topic_id=topic_id, has_more=has_more)

    def append(self, items: Sequence[Item], *, sequence: ProducerSequence | None = None) -> list[int]:
        return self._do(self._log.append, [(self._at(at), records) for at, records in items], sequence=sequence)

    def new_producer(self) -> int:
        return self._log.new_producer()

    def delete_records(self, before: Offsets) -> dict[TopicPartition, int]:
        return self._places(self._do(self._log.delete_records, self._inner(before)))

    def wait(self, positions: Offsets, timeout: int) -> bool:
        return self._do(self._log.wait, self._inner(positions), timeout)

    # -------------------------------------------------------------------------------------------------- deliveries
    def deliver(self, application: str, number: int, items: Sequence[Item]) -> bool:
        inner = [(self._at(at), records) for at, records in items]
        return self._do(self._log.deliver, self._in(application), number, inner)

    def begin_delivery(self, application: str, number: int, items: Sequence[Item]) -> Callable[[], None]:
        inner = [(self._at(at), records) for at, records in items]
        return self._do(self._log.begin_delivery, self._in(application), number, inner)

    def delivered(self, application: str) -> int:
        return self._log.delivered(self._in(application))

    def mark_delivered(self, application: str, number: int | None) -> None:
        self._log.mark_delivered(self._in(application), number)

    # ------------------------------------------------------------------------------------------------------ groups
    def groups(self) -> Mapping[str, Group]:
        return {
            self._out(name): Group(
                self._out(name),
                group.generation,
                {member: frozenset(self._places(dict.fromkeys(held))) for member, held in group.members.items()},
                self._places(group.committed),
            )
            for name, group in self._log.groups().items()
            if name.startswith(self.prefix)
        }

    def committed(self, group: str) -> dict[TopicPartition, int]:
        return self._places(self._log.committed(self._in(group)))

    def commit(self, group: str, offsets: Offsets, *, member: str | None = None) -> None:
        self._do(self._log.commit, self._in(group), self._inner(offsets), member=member)

    def delete_group(self, group: str) -> None:
        self._do(self._log.delete_group, self._in(group))

    def join(
        self, group: str, member: str, topics: Sequence[str], holding: AbstractSet[TopicPartition], lease: int
    ) -> Membership:
        inner = frozenset(map(self._at, holding))
        found = self._do(self._log.join, self._in(group), member, [self._in(name) for name in topics], inner, lease)
        return Membership(found.generation, frozenset(self._places(dict.fromkeys(found.partitions))))

    def leave(self, group: str, member: str) -> None:
        self._log.leave(self._in(group), member)


def _advance(clock: ManualClock, seconds: float) -> None:
    clock.advance(int(seconds * 1000))
