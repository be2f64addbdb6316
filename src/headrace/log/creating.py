"""A log in which a topic that is written to comes into being, as on a Kafka broker that creates topics by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.log.protocol import Extent, Item, Log, Topic
from headrace.model.ids import TopicPartition


class Creating:
    """Where deliveries go: `topic` makes a topic that is not there, with one partition."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def topic(self, name: str) -> Topic:
        topics = self._log.topics()
        return topics[name] if name in topics else self._log.create_topic(name)

    def topics(self) -> Mapping[str, Topic]:
        return self._log.topics()

    def extents(self, topics: Sequence[str]) -> dict[TopicPartition, Extent]:
        return self._log.extents(topics)

    def append(self, items: Sequence[Item]) -> list[int]:
        return self._log.append(items)

    def deliver(self, application: str, number: int, items: Sequence[Item]) -> bool:
        return self._log.deliver(application, number, items)

    def delivered(self, application: str) -> int:
        return self._log.delivered(application)

    def mark_delivered(self, application: str, number: int | None) -> None:
        self._log.mark_delivered(application, number)
