"""The admin client: creates, describes, changes and deletes topics and consumer groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from headrace.hints import explain_names
from headrace.log.open import ClientConfig, resolve_log
from headrace.log.protocol import Closeable, Extent, Group, Log, Topic
from headrace.model.ids import TopicPartition
from headrace.model.timestamps import epoch_milliseconds


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic, and the earliest offset and the end of each partition."""

    topic: Topic
    extents: Mapping[int, Extent]


@explain_names(
    {
        "create_topics": "create_topic(name, partitions=)",
        "delete_topics": "delete_topic(name)",
        "list_topics": "topics()",
        "describe_topics": "describe(topic)",
        "describe_topic": "describe(topic)",
        "list_consumer_groups": "groups()",
        "list_groups": "groups()",
        "describe_consumer_groups": "groups()",
        "delete_consumer_groups": "delete_group(group)",
        "list_consumer_group_offsets": "lag(group)",
        "alter_consumer_group_offsets": "reset_offsets(group, topic, to=)",
        "alter_configs": "alter_config(topic, config)",
        "incremental_alter_configs": "alter_config(topic, config)",
        "create_partitions": "add_partitions(topic, partitions)",
    }
)
class Admin(Closeable):
    """Creates, describes, changes and deletes topics and consumer groups of a log.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory, Admin(f"file:{directory}") as admin:
    ...     _ = admin.create_topic("orders", partitions=2, config={"cleanup.policy": "compact"})
    ...     admin.topics(), admin.describe("orders").extents
    (['orders'], {0: Extent(earliest=0, end=0), 1: Extent(earliest=0, end=0)})
    """

    def __init__(self, log: Log | str, *, config: ClientConfig | None = None) -> None:
        """`config`: settings of Kafka's clients, such as TLS and SASL, or the path of a `.properties` file."""
        self._log, self._owns_log = resolve_log(log, config)

    def close(self) -> None:
        if self._owns_log:
            self._log.close()

    # ---------------------------------------------------------------------------------------------------- topics
    def topics(self) -> list[str]:
        return sorted(self._log.topics())

    def describe(self, topic: str) -> TopicDescription:
        extents = self._log.extents([topic])
        return TopicDescription(self._log.topic(topic), {at.partition: extent for at, extent in extents.items()})

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str | int] | None = None,
        *,
        replication_factor: int | None = None,
    ) -> Topic:
        """Creates a topic. Without a replication factor, `replication.factor` or else the broker decides."""
        return self._log.create_topic(name, partitions, config, replication_factor=replication_factor)

    def delete_topic(self, name: str) -> None:
        self._log.delete_topic(name)

    def add_partitions(self, name: str, partitions: int) -> Topic:
        """Raises the number of partitions to `partitions`. Keys then go to other partitions than before."""
        return self._log.add_partitions(name, partitions)

    def alter_config(self, name: str, config: Mapping[str, str | int | None]) -> Topic:
        """Changes the given settings of a topic. None resets a setting to its default."""
        return self._log.alter_config(name, config)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Deletes the records before an offset, or all for -1. Returns the new earliest offsets."""
        return self._log.delete_records(before)

    # ---------------------------------------------------------------------------------------------------- groups
    def groups(self) -> Mapping[str, Group]:
        return self._log.groups()

    def lag(self, group: str) -> dict[TopicPartition, int]:
        """Returns how many offsets a group is behind, for each partition that has a committed offset."""
        committed = self._log.committed(group)
        extents = self._log.extents(sorted({at.topic for at in committed}))
        return {at: max(0, extents[at].end - offset) for at, offset in committed.items()}

    def delete_group(self, group: str) -> None:
        self._log.delete_group(group)

    def reset_offsets(
        self, group: str, *topics: str, to: Literal["earliest", "latest"] | int | datetime
    ) -> dict[TopicPartition, int]:
        """Commits other offsets for a group that has no members, and returns them.

        `to` is "earliest", "latest", or a time: then the first record at or after it.
        """
        extents = self._log.extents(topics)
        if to == "earliest":
            offsets = {at: extent.earliest for at, extent in extents.items()}
        elif to == "latest":
            offsets = {at: extent.end for at, extent in extents.items()}
        else:
            time = epoch_milliseconds(to, "the time to go to")
            offsets = offsets_at(self._log, extents, time)
        self._log.commit(group, offsets)
        return offsets


def offsets_at(log: Log, extents: Mapping[TopicPartition, Extent], time: int) -> dict[TopicPartition, int]:
    """Returns the offset of the first record at or after a time, or the end of a partition that has none."""
    found = log.offsets_for_times(dict.fromkeys(extents, time))
    return {at: extent.end if (offset := found[at]) is None else offset for at, extent in extents.items()}
