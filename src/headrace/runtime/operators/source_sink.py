"""Where records come in as bytes, and where they leave as bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from headrace.errors import StreamsError
from headrace.model.partitioner import partition_of
from headrace.model.record import Headers, Record
from headrace.model.timestamps import RECORD, Extractor
from headrace.runtime.environment import Env, Output, Row
from headrace.runtime.failures import Failures
from headrace.runtime.operators.emit import Emit
from headrace.runtime.partition_batch import PartitionBatch
from headrace.serde.protocol import Serde
from headrace.topology.nodes import Sink, Source, TimestampExtractor

TEXTS = 50_000  # keys whose partition is known

Decoded = tuple[Any, Any, int]  # key, value, timestamp


class Inlet(NamedTuple):
    """A source, ready to run: `read` decodes a row, None says that it is left out; `emit` takes what was read.

    `read_all` gives the keys and the values of a stretch, and `tally` takes a stretch as a whole; each only where the
    records need not be looked at one by one.
    """

    name: str
    read: Callable[[Row], Decoded | None]
    emit: Emit
    read_all: Callable[[PartitionBatch], tuple[list[Any], list[Any]] | None] = lambda stretch: None
    tally: Callable[[PartitionBatch], bool] | None = None


def inlet(
    node: Source, key: Serde, value: Serde, extract: TimestampExtractor, env: Env, failures: Failures, emit: Emit
) -> Inlet:
    decode_key, decode_value, name, as_it_is = key.decode, value.decode, node.name, extract is RECORD

    def read(row: Row) -> Decoded | None:
        _, _, _, raw_key, raw_value, timestamp, headers, _ = row
        part = "key"
        try:
            key = None if raw_key is None else decode_key(raw_key)
            part = "value"
            value = None if raw_value is None else decode_value(raw_value)
        except Exception as error:  # noqa: BLE001 -- a serde of the user's may raise anything
            failures.deserialization(name, part, error)
            return None
        if timestamp < 0 and as_it_is:
            RECORD(Record(key, value, timestamp, headers), -1)  # refuses it
        return key, value, timestamp

    def read_all(stretch: PartitionBatch) -> tuple[list[Any], list[Any]] | None:
        records = stretch.records
        if min(records.timestamps) < 0:
            return None
        try:
            keys = [None if raw is None else decode_key(raw) for raw in records.keys]
            return keys, [None if raw is None else decode_value(raw) for raw in records.values]
        except Exception:  # noqa: BLE001 -- one by one they will tell which it was
            return None

    if as_it_is:
        return Inlet(name, read, emit, read_all)
    return Inlet(name, read_and_extract(name, read, extract, env), emit)


def read_and_extract(
    name: str, decode: Callable[[Row], Decoded | None], extract: TimestampExtractor, env: Env
) -> Callable[[Row], Decoded | None]:
    """What the extractor says; it is told the largest timestamp that the row's partition had so far."""
    bound = extract.bound(env.here) if isinstance(extract, Extractor) else extract
    drop, cell = env.drop, env.state.cell

    def read(row: Row) -> Decoded | None:
        decoded = decode(row)
        if decoded is None:
            return None
        partition_time = cell(f"{name}/{row[0]}/{row[1]}/time", -1)
        try:
            timestamp = bound(Record(*decoded, row[6]), partition_time.value)
        except StreamsError:
            raise
        except Exception as error:
            raise StreamsError(
                f"{name}: the timestamp extractor failed on {row[0]}/{row[1]} at offset {row[2]}"
            ) from error
        if type(timestamp) is not int:
            raise StreamsError(f"{name}: a timestamp extractor returns milliseconds as an int, not {timestamp!r}")
        if timestamp < 0:
            drop("negative timestamp")
            return None
        partition_time.value = max(partition_time.value, timestamp)
        return decoded[0], decoded[1], timestamp

    return read


class Outlet(NamedTuple):
    """What sinks need to know of the outside."""

    outbox: list[Output]
    topic_name: Callable[[str], str]  # internal topics have the application's id in front
    partitions: Callable[[str], int | None]  # of a topic, None if that is not known


def sink(
    node: Sink, serdes: tuple[Serde, Serde], windowed: Serde | None, outlet: Outlet, env: Env, failures: Failures
) -> Emit:
    """`windowed` is the serde of the key inside a windowed key: all windows of a key go to one partition."""
    encode_key, encode_value = serdes[0].encode, serdes[1].encode
    here, outbox = env.here, outlet.outbox
    topic_of = topic_chooser(node, outlet, env)
    partitions_of = partition_chooser(node, windowed, outlet)
    fixed = outlet.topic_name(node.topic) if isinstance(node.topic, str) else None

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if timestamp < 0:
            raise StreamsError(f"{node.name}: a record cannot be written with the negative timestamp {timestamp}")
        topic = fixed or topic_of(key, value, timestamp, headers)
        try:
            raw_key = None if key is None else encode_key(key)
            raw_value = None if value is None else encode_value(value)
        except Exception as error:  # noqa: BLE001 -- a serde of the user's may raise anything
            failures.production(node.name, Record(key, value, timestamp, headers), error)
            return
        if partitions_of is None:
            outbox.append((topic, None, raw_key, raw_value, timestamp, headers, here.order))
            return
        for partition in partitions_of(topic, key, value):
            outbox.append((topic, partition, raw_key, raw_value, timestamp, headers, here.order))

    return run


def topic_chooser(node: Sink, outlet: Outlet, env: Env) -> Callable[[Any, Any, int, Headers], str]:
    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> str:
        topic: Any = (
            node.topic(key, value, RoutedRecord(env, timestamp, headers)) if callable(node.topic) else node.topic
        )
        if not isinstance(topic, str) or not topic:
            raise TypeError(f"{node.name}: a topic extractor returns the name of a topic, not {topic!r}")
        return topic

    return run


class RoutedRecord:
    """What a topic extractor is told besides key and value."""

    __slots__ = ("_env", "headers", "timestamp")

    def __init__(self, env: Env, timestamp: int, headers: Headers) -> None:
        self._env, self.timestamp, self.headers = env, timestamp, headers

    @property
    def topic(self) -> str | None:
        return self._env.here.row[0] if self._env.here.row else None

    @property
    def partition(self) -> int | None:
        return self._env.here.row[1] if self._env.here.row else None

    @property
    def offset(self) -> int | None:
        return self._env.here.row[2] if self._env.here.row else None


def partition_chooser(
    node: Sink, windowed: Serde | None, outlet: Outlet
) -> Callable[[str, Any, Any], tuple[int | None, ...]] | None:
    """The partitions that a record goes to, if anything but the hash of its key decides."""
    choose = node.partitioner
    by_key = None if windowed is None else by_key_inside(windowed, outlet)
    if choose is None:
        return by_key

    def run(topic: str, key: Any, value: Any) -> tuple[int | None, ...]:
        count = outlet.partitions(topic)
        chosen = choose(topic, key, value, count or 1)
        if chosen is not None:
            return checked(node.name, (chosen,) if isinstance(chosen, int) else tuple(chosen), topic, count)
        return (None,) if by_key is None else by_key(topic, key, value)

    return run


def by_key_inside(serde: Serde, outlet: Outlet) -> Callable[[str, Any, Any], tuple[int | None, ...]]:
    """The partition of the key inside a windowed key; `serde` is that key's."""

    def of(inside: Any, count: int) -> tuple[int | None, ...]:
        return (partition_of(serde.encode(inside), count),)

    of_text = lru_cache(TEXTS)(of)

    def run(topic: str, key: Any, _value: Any) -> tuple[int | None, ...]:
        count = outlet.partitions(topic)
        if key is None or count is None:
            return (None,)
        # 1 and 1.0 are equal, but not their bytes: only texts are remembered.
        return (of_text if type(key[0]) is str else of)(key[0], count)

    return run


def checked(name: str, partitions: tuple[Any, ...], topic: str, count: int | None) -> tuple[int, ...]:
    """What a partitioner of the user's chose, if there are such partitions."""
    for partition in partitions:
        if type(partition) is not int:
            raise TypeError(
                f"{name}: a partitioner returns the number of a partition, several or None, not {partition!r}"
            )
        if partition < 0 or (count is not None and partition >= count):
            raise ValueError(f"{name}: the partitioner chose partition {partition} of {topic}, which has {count}")
    return partitions
