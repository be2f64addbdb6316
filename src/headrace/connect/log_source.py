"""A mirror: the records of a topic of another log, with their partitions, times and headers."""

from __future__ import annotations

from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice
from typing import Any

from headrace.connect.mirror import add_offset
from headrace.errors import ConfigError
from headrace.log.open import open_log
from headrace.model.ids import TopicPartition
from headrace.serde.primitives import BYTES
from headrace.serde.protocol import Serde
from headrace.topology.connectors import SourceBatch, SourcePosition, SourceReader, SourceRecord


@dataclass(frozen=True)
class LogSource:
    """Copies a topic of another log: from Kafka to Kafka, from the embedded log to Kafka, or back.

    Every record keeps its partition: the topic here is made with as many, and gets more when the other one does. The
    offsets here are others where the topic there has gaps. With `offsets` every copy has its offset there in a header,
    so that `translate_offsets` and `headrace groups translate` find where a consumer group goes on. Records that the
    other log has removed before they were read are missing here, too.

    >>> LogSource("kafka://eu.example:9092", "orders", name="orders-of-europe").topic
    'orders'
    """

    log: str = field(repr=False)
    topic: str
    _: KW_ONLY
    name: str = ""
    offsets: bool = True
    client_settings: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    key: Serde[Any] = BYTES
    value: Serde[Any] = BYTES

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.topic)

    def open(self, position: SourcePosition) -> SourceReader:
        return _LogReader(self, position or {"topic": None, "offsets": {}})

    def count_partitions(self) -> int:
        """Asks the other log for the number of partitions."""
        with closing(open_log(self.log, self.client_settings)) as log:
            return log.topic(self.topic).partitions


class _LogReader:
    """Position: {"topic": its id, "offsets": the next one of each partition}."""

    def __init__(self, source: LogSource, position: dict[str, Any]) -> None:
        self._source, self._topic = source, source.topic
        self._offsets = {int(partition): offset for partition, offset in position["offsets"].items()}
        self._lag = 0
        self._log = open_log(source.log, source.client_settings)
        try:
            self._id = self._log.topic(self._topic).id
            _check_id(self._topic, self._id, position["topic"])
        except BaseException:
            self._log.close()
            raise

    def read(self, max_records: int, timeout: float) -> SourceBatch | None:
        extents = self._log.extents([self._topic])
        starts = {at: max(self._offsets.get(at.partition, 0), extent.earliest) for at, extent in extents.items()}
        self._lag = sum(extent.end - starts[at] for at, extent in extents.items())
        if not self._lag:
            self._log.wait(starts, int(timeout * 1000))
            return None
        records: list[SourceRecord] = []
        for at, extent in extents.items():
            records += self._read_partition(at, starts[at], extent.end, max_records - len(records))
        offsets = {str(partition): offset for partition, offset in self._offsets.items()}
        return SourceBatch(records, {"topic": self._id, "offsets": offsets}, partitions=len(extents))

    def _read_partition(self, at: TopicPartition, start: int, end: int, max_records: int) -> list[SourceRecord]:
        if max_records <= 0 or start >= end:
            return []
        chunks = self._log.read(at, start, end, topic_id=self._id)
        rows = [*islice((row for chunk in chunks for row in chunk.rows()), max_records)]
        # Behind the last record there may be offsets without records: those of transactions, or compacted ones.
        self._offsets[at.partition] = rows[-1][0] + 1 if len(rows) == max_records else end
        mirror = self._source.name if self._source.offsets else None
        return [
            SourceRecord(
                key, value, timestamp, headers if mirror is None else add_offset(headers, mirror, offset), at.partition
            )
            for offset, key, value, timestamp, headers in rows
        ]

    def acknowledge(self, position: SourcePosition) -> None:
        pass

    def lag(self) -> int | None:
        return self._lag

    def close(self) -> None:
        self._log.close()


def _check_id(topic: str, now: str, before: str | None) -> None:
    if before not in (None, now):
        raise ConfigError(
            f"the topic {topic!r} of the other log was deleted and made anew, so its offsets mean other records now. "
            "Give the source another name=, which copies it from its beginning, and another topic"
        )
