"""The ids of tasks and of partitions."""

from __future__ import annotations

from typing import NamedTuple


class TaskId(NamedTuple):
    """One sub-topology on one partition, written as Kafka Streams writes it.

    >>> str(TaskId(0, 1)), TaskId.parse("0_1") == TaskId(0, 1)
    ('0_1', True)
    """

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        subtopology, _, partition = text.partition("_")
        if not (subtopology.isdecimal() and partition.isdecimal()):
            raise ValueError(f"a task id looks like 0_1 (sub-topology, partition), not {text!r}")
        return cls(int(subtopology), int(partition))


class TopicPartition(NamedTuple):
    """One partition of a topic.

    >>> str(TopicPartition("orders", 2))
    'orders-2'
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
