"""Another log: from Kafka to Kafka, from the embedded log to Kafka, and back.

A batch is delivered as those of an application are, in one transaction with its marker, so the records are in the
other log exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.checkpoint.steps import step
from headrace.connect.sink import TOKEN
from headrace.errors import LogUnavailableError, SinkUnavailableError, TopicExistsError
from headrace.log.open import open_log
from headrace.log.protocol import Item, Records
from headrace.model.ids import TopicPartition
from headrace.model.partitioner import known_partition
from headrace.model.record import Record
from headrace.model.sink import Sink, SinkBatch, SinkContext, SinkWriter


@dataclass(frozen=True)
class LogSink(Sink):
    """A topic of another log, with the bytes, timestamps and headers of the records, each of them exactly once.

    With `partition="same"` a record has the partition of the task that wrote it, which for a stream that is only
    filtered or mapped is the partition that it was read from. With "key" the hash of the key decides. A missing topic
    is created with `partitions` partitions. `settings` are those of the Kafka client.

    >>> LogSink("kafka://backup:9092", "orders").label
    'orders'
    """

    guarantee = "atomic"
    takes_bytes = True
    runs_in_driver = True  # one transactional producer

    log: str = field(repr=False)
    topic: str
    partition: Literal["same", "key"] = "same"
    partitions: int = 1
    settings: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def label(self) -> str:
        return self.topic

    def open(self, context: SinkContext) -> SinkWriter:
        return LogWriter(self, context)


class LogWriter(SinkWriter):
    """Delivers batches under a name of its own. The marker says which batch the log has."""

    def __init__(self, sink: LogSink, context: SinkContext) -> None:
        self._sink, self._at_step = sink, context.at_step
        self._name = f"{context.application}-{context.sink}-{context.checkpoint[:8]}"
        self._log = open_log(sink.log, dict(sink.settings or {}))
        if sink.topic not in self._log.topics():
            with suppress(TopicExistsError):  # another process has created it meanwhile
                self._log.create_topic(sink.topic, sink.partitions)

    def write(self, batch: SinkBatch) -> None:
        try:
            last = self._log.delivered(self._name)
            if last >= batch.number:
                return
            if last < batch.number - 1:  # batches without records for this sink
                self._log.mark_delivered(self._name, batch.number - 1)
            items = self._items(batch)
            with step(TOKEN, self._at_step):
                self._log.deliver(self._name, batch.number, items)
        except LogUnavailableError as error:
            raise SinkUnavailableError(f"the log of {self._sink.topic} does not answer: {error}") from error

    def close(self) -> None:
        self._log.close()

    def _items(self, batch: SinkBatch) -> Sequence[Item]:
        count = self._log.topic(self._sink.topic).partitions
        found: dict[int, list[Record]] = {}
        if self._sink.partition == "same":
            for part in batch.parts:
                found.setdefault(part.partition % count, []).extend(part.records)
        else:
            for record in batch.records():
                found.setdefault(known_partition(record.key, count) or 0, []).append(record)
        return [
            (TopicPartition(self._sink.topic, partition), _columns(records)) for partition, records in found.items()
        ]


def _columns(records: Sequence[Record]) -> Records:
    return Records(
        [record.key for record in records],
        [record.value for record in records],
        [record.timestamp for record in records],
        [record.headers for record in records],
    )
