"""Sources decode records from bytes, sinks encode records to bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from itertools import repeat
from typing import Any, NamedTuple

from headrace.errors import SchemaRegistryError, StreamsError
from headrace.model.partitioner import partition_of
from headrace.model.record import Headers, Record
from headrace.model.timestamps import RECORD, Extractor
from headrace.runtime.environment import Columns, Emit, EmitColumns, Env
from headrace.runtime.failures import Failures
from headrace.runtime.rows import CountOutput, Output, PartitionBatch, Row
from headrace.serde.protocol import BoundSerde, Serde, decode_part, encode_column, encode_part
from headrace.serde.schema_registry import ID_HEADERS, without_ids
from headrace.topology.nodes import Sink, Source, TimestampExtractor

TEXTS = 50_000  # the number of keys whose partition is cached

KeyValueTime = tuple[Any, Any, int]


class Inlet(NamedTuple):
    """A compiled source: `read` decodes a row or returns None for a dropped record; `emit` takes the decoded record.

    `read_all` decodes the keys and values of a partition batch; it returns None where records must be read one by one.
    `tally` counts a partition batch of records, and `add` takes the number of records of a key; both are None if the
    source does not lead to a count. `relay` takes a partition batch to the only sink; it is None unless only stateless
    nodes lie between. `tally` and `relay` return False if they have done nothing.
    """

    name: str
    read: Callable[[Row], KeyValueTime | None]
    emit: Emit
    read_all: Callable[[PartitionBatch], tuple[Sequence[Any], Sequence[Any]] | None] = lambda batch: None
    tally: Callable[[PartitionBatch], bool] | None = None
    add: Emit | None = None
    relay: Callable[[PartitionBatch], bool] | None = None


def inlet(
    node: Source,
    key: Serde,
    value: Serde,
    extract: TimestampExtractor,
    env: Env,
    failures: Failures,
    emit: Emit,
    *,
    internal: bool = False,
) -> Inlet:
    """`internal`: the topic is one of the application's own, where ids of schemas are never in headers."""
    decode_key, decode_value, name, as_it_is = key.decode, value.decode, node.name, extract is RECORD
    decode_with_headers = None if internal else header_decoder(key, value)

    def read(row: Row) -> KeyValueTime | None:
        _, _, _, raw_key, raw_value, timestamp, headers, _ = row
        part = "key"
        try:
            if headers and decode_with_headers is not None:
                key, value = decode_with_headers(raw_key, raw_value, headers)
            else:
                key = None if raw_key is None else decode_key(raw_key)
                part = "value"
                value = None if raw_value is None else decode_value(raw_value)
        except SchemaRegistryError:
            raise
        except Exception as error:  # noqa: BLE001 -- a serde of the user's may raise anything
            failures.deserialization(name, part, error)
            return None
        if timestamp < 0 and as_it_is:
            RECORD(Record(key, value, timestamp, headers), -1)  # raises
        return key, value, timestamp

    def read_all(batch: PartitionBatch) -> tuple[Sequence[Any], Sequence[Any]] | None:
        records, counts = batch.records, batch.counts
        if min(records.timestamps) < 0 or (records.headers is not None and decode_with_headers is not None):
            return None
        try:
            keys = [None if raw is None else decode_key(raw) for raw in records.keys]
            return keys, counts or [None if raw is None else decode_value(raw) for raw in records.values]
        except Exception:  # noqa: BLE001 -- `read` then finds the record that failed
            return None

    if as_it_is:
        return Inlet(name, read, emit, read_all)
    return Inlet(name, read_and_extract(name, read, extract, env), emit)


def header_decoder(key: Serde, value: Serde) -> Callable[[bytes | None, bytes | None, Headers], tuple[Any, Any]] | None:
    """Decodes keys and values whose headers may have the ids of their schemas; None if no schema is used."""
    if not isinstance(key, BoundSerde) and not isinstance(value, BoundSerde):
        return None

    return lambda raw_key, raw_value, headers: (
        decode_part(key, raw_key, headers),
        decode_part(value, raw_value, headers),
    )


def read_and_extract(
    name: str, decode: Callable[[Row], KeyValueTime | None], extract: TimestampExtractor, env: Env
) -> Callable[[Row], KeyValueTime | None]:
    """Reads a row with the timestamp of an extractor, which gets the largest timestamp of the partition so far."""
    bound = extract.bound(env.here) if isinstance(extract, Extractor) else extract
    drop, cell = env.drop, env.state.cell

    def read(row: Row) -> KeyValueTime | None:
        decoded = decode(row)
        if decoded is None:
            return None
        partition_time = cell(f"{name}/{row[0]}/{row[1]}/time", -1)
        try:
            timestamp = bound(Record(*decoded, row[6]), partition_time.value)
        except StreamsError:
            raise
        except Exception as error:
            where = f"{name}: the timestamp extractor failed on {row[0]}/{row[1]} at offset {row[2]}"
            what = f"{where}: {type(error).__name__}"
            raise StreamsError(
                f"{what}: {error}. If it returns a negative number, the record is dropped", summary=what
            ) from error
        if type(timestamp) is not int:
            wrong = f"{name}: a timestamp extractor returns milliseconds as an int, not"
            raise StreamsError(f"{wrong} {timestamp!r}", summary=f"{wrong} a {type(timestamp).__name__}")
        if timestamp < 0:
            drop("negative timestamp")
            return None
        partition_time.value = max(partition_time.value, timestamp)
        return decoded[0], decoded[1], timestamp

    return read


class Outlet(NamedTuple):
    """What sinks need: the lists of outputs, topic names and partition counts."""

    outbox: list[Output]
    counts: list[CountOutput]
    topic_name: Callable[[str], str]  # adds the application's id to internal topics
    partitions: Callable[[str], int | None]  # of a topic, None if not known
    own_partition: int = 0  # of the task


def sink(
    node: Sink,
    serdes: tuple[Serde, Serde],
    windowed: Serde | None,
    outlet: Outlet,
    env: Env,
    failures: Failures,
    encode: TopicEncoder | None = None,
) -> Emit:
    """The operator of a sink; `windowed` encodes the inner key, so that all windows of a key share a partition.

    `encode` is given if the bytes depend on the topic.
    """
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
            if encode is None:
                raw_key = None if key is None else encode_key(key)
                raw_value = None if value is None else encode_value(value)
            else:
                raw_key, raw_value, headers = encode(topic, key, value, headers)
        except SchemaRegistryError:
            raise
        except Exception as error:  # noqa: BLE001 -- a serde of the user's may raise anything
            failures.production(node.name, Record(key, value, timestamp, headers), error)
            return
        if partitions_of is None:
            outbox.append((topic, None, raw_key, raw_value, timestamp, headers, here.order))
            return
        for partition in partitions_of(topic, key, value):
            outbox.append((topic, partition, raw_key, raw_value, timestamp, headers, here.order))

    return run


def column_sink(
    node: Sink, serdes: tuple[Serde, Serde], windowed: Serde | None, outlet: Outlet, failures: Failures
) -> EmitColumns:
    """The operator of a sink with a fixed topic and no partitioner, for many records at once.

    It returns False if a record cannot be encoded: `sink` then finds the record.
    """
    topic = outlet.topic_name(str(node.topic))
    own = None if node.target is None else outlet.own_partition
    of_key = None if windowed is None else by_key_inside(windowed, outlet)

    def convert(columns: Columns) -> list[Output]:
        keys, values, timestamps, headers, orders = columns
        partitions: Iterable[int | None] = repeat(own)
        if of_key is not None and own is None:
            partitions = [of_key(topic, key, None)[0] for key in keys]
        raw_keys, raw_values = encode_column(serdes[0], keys), encode_column(serdes[1], values)
        return list(zip(repeat(topic), partitions, raw_keys, raw_values, timestamps, headers, orders))

    guarded = failures.guard_columns(node.name, convert)

    def run(columns: Columns) -> bool:
        outputs = guarded(columns) if min(columns.timestamps) >= 0 else None
        if outputs is None:
            return False
        outlet.outbox.extend(outputs)
        return True

    return run


TopicEncoder = Callable[[str, Any, Any, Headers], tuple[bytes | None, bytes | None, Headers]]


_OLD_IDS = tuple(ID_HEADERS.values())


def writes_headers(serde: Serde) -> bool:
    return isinstance(serde, BoundSerde) and serde.encode_with_headers is not None


def plain_encoder(serdes: tuple[Serde, Serde]) -> TopicEncoder:
    """Encodes keys and values with schemas for one topic, and drops headers with ids of the schemas they came with."""
    encode_key, encode_value = serdes[0].encode, serdes[1].encode

    def encode(topic: str, key: Any, value: Any, headers: Headers) -> tuple[bytes | None, bytes | None, Headers]:
        return (
            None if key is None else encode_key(key),
            None if value is None else encode_value(value),
            without_ids(headers, *_OLD_IDS) if headers else headers,
        )

    return encode


def topic_encoder(serdes_of: Callable[[str], tuple[Serde, Serde]]) -> TopicEncoder:
    """Encodes keys and values with schemas: the topic decides the serdes, and the schemas' ids may go into headers.

    Drops the ids that came with the record: they are of the schemas that it was read with.
    """
    serdes_of = cache(serdes_of)

    def encode(topic: str, key: Any, value: Any, headers: Headers) -> tuple[bytes | None, bytes | None, Headers]:
        key_serde, value_serde = serdes_of(topic)
        headers = without_ids(headers, *_OLD_IDS) if headers else headers
        raw_key, headers = encode_part(key_serde, key, headers)
        raw_value, headers = encode_part(value_serde, value, headers)
        return raw_key, raw_value, headers

    return encode


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
    """The third argument of a topic extractor."""

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
    """The function that chooses partitions, None where the hash of the key decides."""
    choose = node.partitioner
    if node.target is not None:  # a part of its batch has the records of one task, whatever their keys
        own = (outlet.own_partition,)
        return lambda topic, key, value: own
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
    """The partition of the inner key of a windowed key; `serde` encodes the inner key."""

    def of(inside: Any, count: int) -> tuple[int | None, ...]:
        return (partition_of(serde.encode(inside), count),)

    of_text = lru_cache(TEXTS)(of)

    def run(topic: str, key: Any, _value: Any) -> tuple[int | None, ...]:
        count = outlet.partitions(topic)
        if key is None or count is None:
            return (None,)
        # 1 and 1.0 are equal, but their bytes differ: only strings are cached.
        return (of_text if type(key[0]) is str else of)(key[0], count)

    return run


def checked(name: str, partitions: tuple[Any, ...], topic: str, count: int | None) -> tuple[int, ...]:
    """Checks the partitions that a user's partitioner returned."""
    for partition in partitions:
        if type(partition) is not int:
            raise TypeError(
                f"{name}: a partitioner returns the number of a partition, several or None, not {partition!r}"
            )
        if partition < 0 or (count is not None and partition >= count):
            raise ValueError(f"{name}: the partitioner chose partition {partition} of {topic}, which has {count}")
    return partitions
