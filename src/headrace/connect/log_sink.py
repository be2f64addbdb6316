"""Another log: from Kafka to Kafka, from the embedded log to Kafka, and back.

A batch is delivered as those of an application are, in one transaction with its marker, so the records are in the
other log exactly once. If the other log is Kafka and partitions are kept, slots deliver the partitions of a large batch
in shares: see `log.protocol.SupportsShares`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.checkpoint.steps import step
from headrace.connect.mirror import add_offset
from headrace.connect.sink import TOKEN
from headrace.errors import ConfigError, LogUnavailableError, SinkUnavailableError, StreamsError, TopicExistsError
from headrace.log.open import open_log
from headrace.log.protocol import Item, Records, Share, SupportsShares
from headrace.model.ids import TaskId, TopicPartition
from headrace.model.partitioner import known_partition
from headrace.model.record import Record
from headrace.model.sink import Sink, SinkBatch, SinkContext, SinkPart, SinkShare, SinkWriter


@dataclass(frozen=True)
class LogSink(Sink):
    """A topic of another log, with the bytes, timestamps and headers of the records, each of them exactly once.

    With `partition="same"` a record has the partition of the task that wrote it, which for a stream that is only
    filtered or mapped is the partition that it was read from; the topic gets more partitions if it has too few. With
    "key" the hash of the key decides. A missing topic is created with `partitions` partitions. `settings` are those of
    the Kafka client.

    `mirrors` names the topic that the stream reads: every record gets a header with its offset there, so that
    `translate_offsets` and `headrace groups translate` find where a consumer group of that topic goes on here. The name
    of the mirror is that of the sink.

    >>> LogSink("kafka://backup:9092", "orders").label
    'orders'
    """

    guarantee = "atomic"
    takes_bytes = True

    log: str = field(repr=False)
    topic: str
    partition: Literal["same", "key"] = "same"
    partitions: int = 1
    settings: Mapping[str, Any] | None = field(default=None, repr=False)
    mirrors: str | None = None

    def __post_init__(self) -> None:
        if self.mirrors is not None and self.partition != "same":
            raise ConfigError("LogSink: a mirror keeps partitions, so mirrors= needs partition='same'")

    @property
    def label(self) -> str:
        return self.topic

    def open(self, context: SinkContext) -> SinkWriter:
        return LogWriter(self, context)


class LogWriter(SinkWriter):
    """Delivers batches under a name of its own. The marker says which batch the log has."""

    def __init__(self, sink: LogSink, context: SinkContext) -> None:
        self._sink, self._at_step, self._mirror = sink, context.at_step, context.sink
        self._name = f"{context.application}-{context.sink}-{context.checkpoint[:8]}"
        self._producers: dict[int, str] = {}  # of the shares of the last batch
        self._log = open_log(sink.log, dict(sink.settings or {}))
        try:
            self._create_topic()
        except BaseException:
            self._log.close()
            raise

    def _create_topic(self) -> None:
        with self._asking():
            if self._sink.topic not in self._log.topics():
                with suppress(TopicExistsError):  # another process has created it meanwhile
                    self._log.create_topic(self._sink.topic, self._sink.partitions)

    def share_out(self, number: int, parts: Sequence[str], shares: int) -> dict[str, Any] | None:
        producers, self._producers = self._producers, {}
        # By the hash of the key, two processes would write to one partition.
        if self._sink.partition != "same" or not isinstance(self._log, SupportsShares):
            return None
        with self._asking():
            if not self._prepare(number):
                return None
            self._add_partitions(TaskId.parse(part).partition for part in parts)
            owner = self._log.begin_shares(self._name, number, shares)
        return None if owner is None else {"owner": owner, "producers": producers}

    def write(self, batch: SinkBatch) -> tuple[int, str] | None:
        with self._asking():
            if batch.share is not None:
                return self._write_share(batch, batch.share)
            if self._prepare(batch.number):
                items = self._items(batch)
                with step(TOKEN, self._at_step):
                    self._log.deliver(self._name, batch.number, items)
        return None

    def _write_share(self, batch: SinkBatch, share: SinkShare) -> tuple[int, str]:
        assert isinstance(self._log, SupportsShares)  # noqa: S101 - `share_out` has looked
        producer = share.given["producers"].get(share.ordinal, "")
        order = Share(batch.number, share.ordinal, share.given["owner"], producer)
        with step(TOKEN, self._at_step):
            return share.ordinal, self._log.deliver_share(self._name, order, self._items(batch))

    def commit(self, number: int, written: Sequence[Any]) -> None:
        shares: list[tuple[int, str]] = [some for some in written if some is not None]
        if shares:
            with self._asking():
                self._log.deliver(self._name, number, [])
            self._producers = dict(shares)

    def close(self) -> None:
        self._log.close()

    def _prepare(self, number: int) -> bool:
        """Returns False if the log has the batch. Batches without records for this sink count as delivered."""
        last = self._log.delivered(self._name)
        if last < number - 1:
            self._log.mark_delivered(self._name, number - 1)
        return last < number

    @contextmanager
    def _asking(self) -> Generator[None]:
        try:
            yield
        except LogUnavailableError as error:
            raise SinkUnavailableError(f"the log of {self._sink.topic} does not answer: {error}") from error

    def _add_partitions(self, partitions: Iterable[int]) -> None:
        wanted = max(partitions, default=0) + 1
        if wanted > self._log.topic(self._sink.topic).partitions:
            self._log.add_partitions(self._sink.topic, wanted)

    def _items(self, batch: SinkBatch) -> Sequence[Item]:
        found: dict[int, list[Record]] = {}
        if self._sink.partition == "same":
            self._add_partitions(part.partition for part in batch.parts)
            for part in batch.parts:
                found.setdefault(part.partition, []).extend(self._with_offsets(part))
        else:
            count = self._log.topic(self._sink.topic).partitions
            for record in batch.records():
                found.setdefault(known_partition(record.key, count) or 0, []).append(record)
        return [
            (TopicPartition(self._sink.topic, partition), _columns(records)) for partition, records in found.items()
        ]

    def _with_offsets(self, part: SinkPart) -> Iterable[Record]:
        """The records, with the offsets of the records in the mirrored topic that they were made of."""
        if self._sink.mirrors is None:
            return part.records
        pairs = zip(part.records, part.orders, strict=True)
        return [self._with_offset(record, order, part.partition) for record, order in pairs]

    def _with_offset(self, record: Record, order: Sequence[Any], partition: int) -> Record:
        if len(order) != 4 or order[1] != self._sink.mirrors:
            return record  # of a punctuation, or of another topic
        _, topic, origin, offset = order
        if origin != partition:
            raise StreamsError(
                f"a record of partition {origin} of {topic!r} came to partition {partition} of the mirror "
                f"{self._mirror!r}: a mirror is of a stream that is not repartitioned. Leave mirrors= out"
            )
        return record.with_headers(add_offset(record.headers, self._mirror, offset))


def _columns(records: Sequence[Record]) -> Records:
    return Records(
        [record.key for record in records],
        [record.value for record in records],
        [record.timestamp for record in records],
        [record.headers for record in records],
    )
