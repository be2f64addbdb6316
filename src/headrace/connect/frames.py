"""Spark DataFrames into a topic: `write_topic`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import datetime
from itertools import islice
from typing import Any

from headrace.connect.source import create_topic
from headrace.errors import ConfigError
from headrace.log.open import open_log
from headrace.log.protocol import Item, Log, Records
from headrace.model.clock import SystemClock
from headrace.model.ids import TopicPartition
from headrace.model.partitioner import known_partition
from headrace.model.record import Headers

_COLUMNS = {"key", "value", "timestamp", "partition"}
_ROWS = 10_000  # that are appended at once


def write_topic(
    frame: Any, topic: str, log: str, *, partitions: int = 1, name: str | None = None, checkpoint: str | None = None
) -> Any:
    """Writes the rows of a Spark DataFrame to a topic, which is made with so many `partitions` if it does not exist.

    The columns are those of Spark's own Kafka sink: `value`, and if there is one `key` (text or bytes), `timestamp` (a
    timestamp or milliseconds) and `partition`. The rows pass through the driver.

    A batch frame is appended, and the number of rows returned; if that fails in the middle, the rows before stay. For a
    streaming frame the query that writes it is returned. It needs a `checkpoint` for Spark, and a `name` for the log:
    each of its batches is written exactly once, because the log stores its number with it.
    """
    unknown = sorted(set(frame.columns) - _COLUMNS)
    if "value" not in frame.columns or unknown:
        raise ConfigError(f"the columns of a frame are value, key, timestamp and partition, not {frame.columns}")
    with closing(open_log(log)) as opened:
        create_topic(opened, topic, partitions, {})
        count = opened.topic(topic).partitions
        if not frame.isStreaming:
            return _append(frame.toLocalIterator(), topic, count, opened)
    if name is None or checkpoint is None:
        raise ConfigError("a streaming frame needs a name, for the log, and a checkpoint, for Spark")

    def write_batch(batch: Any, number: int) -> None:
        with closing(open_log(log)) as opened:
            opened.deliver(name, number, _items(batch.toLocalIterator(), topic, count, number))

    return frame.writeStream.foreachBatch(write_batch).option("checkpointLocation", checkpoint).start()


def _append(rows: Iterator[Any], topic: str, partitions: int, log: Log) -> int:
    written = 0
    while chunk := [*islice(rows, _ROWS)]:
        log.append(_items(chunk, topic, partitions, written))
        written += len(chunk)
    return written


def _items(rows: Iterable[Any], topic: str, partitions: int, turn: int) -> list[Item]:
    """Groups rows by partition. Those without a key go to one partition, each time to another."""
    grouped: dict[int, list[tuple[bytes | None, bytes | None, int, Headers]]] = {}
    now = SystemClock().now()
    for row in rows:
        fields: dict[str, Any] = row.asDict()
        key, value = _encode(fields.get("key")), _encode(fields["value"])
        partition = fields.get("partition")
        if partition is None:
            partition = known_partition(key, partitions)
        at = turn % partitions if partition is None else int(partition)
        grouped.setdefault(at, []).append((key, value, _milliseconds(fields.get("timestamp"), now), ()))
    return [(TopicPartition(topic, at), Records.from_rows(found)) for at, found in sorted(grouped.items())]


def _encode(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes | bytearray):
        return None if value is None else bytes(value)
    if isinstance(value, str):
        return value.encode()
    raise ConfigError(f"a key or value is text or bytes, not {value!r}: encode it, with to_json for example")


def _milliseconds(timestamp: Any, now: int) -> int:
    if timestamp is None:
        return now
    return int(timestamp.timestamp() * 1000) if isinstance(timestamp, datetime) else int(timestamp)
