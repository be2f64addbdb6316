"""A mirror: the records of a topic of another log, with their partitions, times and headers."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from itertools import islice
from typing import Any

from headrace.log.open import open_log
from headrace.model.ids import TopicPartition
from headrace.serde.primitives import BYTES
from headrace.serde.protocol import Serde
from headrace.topology.connectors import SourceBatch, SourcePosition, SourceReader, SourceRecord


@dataclass(frozen=True)
class LogSource:
    """Copies a topic of another log: from Kafka to Kafka, from the embedded log to Kafka, or back.

    Every record keeps its partition, so the topic here needs at least as many: `partitions=` makes it with them. The
    offsets here are others where the topic there has gaps; the position has those of the other log. Records that the
    other log has removed before they were read are missing here, too.

    >>> LogSource("kafka://eu.example:9092", "orders", name="orders-of-europe").topic
    'orders'
    """

    log: str = field(repr=False)
    topic: str
    _: KW_ONLY
    name: str = ""
    client_settings: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    key: Serde[Any] = BYTES
    value: Serde[Any] = BYTES

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.topic)

    def open(self, position: SourcePosition) -> SourceReader:
        return _LogReader(self, position or {})


class _LogReader:
    """Position: the next offset of each partition."""

    def __init__(self, source: LogSource, position: dict[str, int]) -> None:
        self._topic, self._log = source.topic, open_log(source.log, source.client_settings)
        self._offsets = {int(partition): offset for partition, offset in position.items()}
        self._lag = 0

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
        return SourceBatch(records, {str(partition): offset for partition, offset in self._offsets.items()})

    def _read_partition(self, at: TopicPartition, start: int, end: int, max_records: int) -> list[SourceRecord]:
        if max_records <= 0 or start >= end:
            return []
        rows = [*islice((row for chunk in self._log.read(at, start, end) for row in chunk.rows()), max_records)]
        # Behind the last record there may be offsets without records: those of transactions, or compacted ones.
        self._offsets[at.partition] = rows[-1][0] + 1 if len(rows) == max_records else end
        return [
            SourceRecord(key, value, timestamp, headers, at.partition) for _, key, value, timestamp, headers in rows
        ]

    def acknowledge(self, position: SourcePosition) -> None:
        pass

    def lag(self) -> int | None:
        return self._lag

    def close(self) -> None:
        self._log.close()
