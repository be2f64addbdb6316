"""Aggregates of a stream by key, and counts of many records at once.

A cached count forwards the number of records of a key once a batch, so it need not see the records one by one. Records
of a partition batch are counted by key before the operators see them, and records for a count in another task are
sent as one row for each key and batch.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import count
from operator import itemgetter
from typing import Any

from headrace.config import Config
from headrace.model.record import Headers, Record
from headrace.runtime.environment import Emit, Env
from headrace.runtime.failures import Failures
from headrace.runtime.operators.source_sink import Outlet
from headrace.runtime.rows import PartitionBatch
from headrace.runtime.tables import by_last, forwarder, keyed
from headrace.serde.protocol import Serde
from headrace.state.spec import KeyValueKind
from headrace.topology.graph import Graph
from headrace.topology.nodes import Process, Sink, Source, StreamAggregate, StreamReduce, TableTransformValues


def aggregate(node: StreamAggregate, env: Env, emit: Emit, *, true_old: bool) -> Emit:
    """With `true_old` a new key has no old value; Kafka Streams passes the initial value instead."""
    place_of, get, put = keyed(env.store(node.store))
    forward = forwarder(node.store, env, emit, send_old=node.send_old)
    initialize, add, drop = node.initialize, node.add, env.drop

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None:
            drop("null key or value")
            return
        place = place_of(key)
        before, time = get(place), timestamp
        if before is None:
            old = initialize()
        else:
            old = before[0]
            if before[1] > timestamp:
                time = before[1]
        new = add(key, value, old)
        latest = put(place, new, time)
        if before is None and true_old:
            old = None
        if latest is not None:
            forward(place, key, new, old, time, timestamp, headers, latest)

    return run


def reduce(node: StreamReduce, env: Env, emit: Emit) -> Emit:
    place_of, get, put = keyed(env.store(node.store))
    forward = forwarder(node.store, env, emit, send_old=node.send_old)
    add, drop = node.add, env.drop

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None:
            drop("null key or value")
            return
        place = place_of(key)
        before, time = get(place), timestamp
        if before is None:
            old, new = None, value
        else:
            old = before[0]
            new = add(old, value)
            if before[1] > timestamp:
                time = before[1]
        latest = put(place, new, time)
        if latest is not None:
            forward(place, key, new, old, time, timestamp, headers, latest)

    return run


# -------------------------------------------------------------------------------------------------------------- counts
def add_counts(node: StreamAggregate, env: Env, emit: Emit) -> Emit:
    """Adds numbers of records to a count, where `aggregate` would add one record."""
    place_of, get, put = keyed(env.store(node.store))
    forward = forwarder(node.store, env, emit, send_old=node.send_old)

    def run(key: Any, records: Any, timestamp: int, headers: Headers) -> None:
        place = place_of(key)
        before = get(place)
        old = 0
        if before is not None:
            old = before[0]
            timestamp = max(timestamp, before[1])
        latest = put(place, old + records, timestamp)
        if latest is not None:
            forward(place, key, old + records, old, timestamp, timestamp, headers, latest)

    return run


# ------------------------------------------------------------------------------------------------ of a partition batch
def tally(
    key: Serde, value: Serde, place_of: Callable[[Any], Any], env: Env, add: Emit
) -> Callable[[PartitionBatch], bool]:
    """Counts the records of a partition batch; returns False and does nothing if a record may be dropped or fail."""
    decode_key, here = key.decode, env.here

    def run(batch: PartitionBatch) -> bool:
        keys: Sequence[Any] = batch.records.keys
        values: Sequence[Any] = batch.records.values
        times = batch.records.timestamps
        if not (all(keys) and all(values)) or min(times) < 0:
            return False  # null or empty
        counts = Counter(keys)
        try:
            if not value.total:
                deque(map(value.decode, values), maxlen=0)
            decoded = {raw: decode_key(raw) for raw in counts}
            deque(map(place_of, decoded.values()), maxlen=0)
        except Exception:  # noqa: BLE001 -- a serde of the user's may raise anything; `Inlet.read` handles it
            return False
        last = dict(zip(keys, count()))
        newest = newest_by_key(batch)
        here.stream_time = max(here.stream_time, batch.largest[-1])
        for raw, index in sorted(last.items(), key=itemgetter(1)):
            row = here.row = batch.row(index)
            here.order = row[7]
            add(decoded[raw], counts[raw], newest[raw] if newest else row[5], row[6])
        return True

    return run


def newest_by_key(batch: PartitionBatch) -> dict[Any, int] | None:
    """The largest timestamp of each key; None if timestamps never decrease, so that the last record of a key has it."""
    keys, times = batch.records.keys, batch.records.timestamps
    if batch.largest == times:
        return None
    newest: dict[Any, int] = {}
    for key, time in zip(keys, times, strict=True):
        if time > newest.get(key, -1):
            newest[key] = time
    return newest


# ------------------------------------------------------------------------------------ on the way to another task
def combine(
    node: Sink, serdes: tuple[Serde, Serde], outlet: Outlet, env: Env, failures: Failures, one: Emit
) -> tuple[Emit, Callable[[], None]]:
    """A sink that counts records by key, and the function that sends the counts at the end of a batch.

    `one` sends a record that cannot be counted: it has no key, no value or a negative timestamp.
    """
    encode_key, encode_value, here = serdes[0].encode, serdes[1].encode, env.here
    topic = outlet.topic_name(str(node.topic))
    pending: dict[bytes, list[Any]] = {}  # number of records, largest timestamp, headers and order of the last one
    touched: list[bytes] = []

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None or timestamp < 0:
            one(key, value, timestamp, headers)
            return
        try:
            raw = encode_key(key)
            encode_value(value)  # the counter needs no value, but one that cannot be sent is an error
        except Exception as error:  # noqa: BLE001 -- a serde of the user's may raise anything
            failures.production(node.name, Record(key, value, timestamp, headers), error)
            return
        touched.append(raw)
        held = pending.get(raw)
        if held is None:
            pending[raw] = [1, timestamp, headers, here.order]
            return
        held[0] += 1
        held[2], held[3] = headers, here.order
        if timestamp > held[1]:
            held[1] = timestamp

    def flush() -> None:
        for raw in by_last(touched):
            records, timestamp, headers, order = pending[raw]
            outlet.counts.append((topic, None, raw, records, timestamp, headers, order))
        pending.clear()
        touched.clear()

    return run, flush


def counter_of(graph: Graph, source: Source, config: Config) -> StreamAggregate | None:
    """The cached count that alone reads a source, or None."""
    children = graph.children[source.name]
    node = graph.nodes[children[0]] if len(children) == 1 else None
    if not isinstance(node, StreamAggregate) or not node.counts or config.statestore_cache_max_bytes <= 0:
        return None
    spec = graph.stores[node.store]
    return node if spec.caching and isinstance(spec.kind, KeyValueKind) else None


def counted_topics(graph: Graph, config: Config) -> set[str]:
    """The internal topics whose records may be sent as counts.

    The sub-topology that reads them must read nothing else and run nothing by stream time, because single records
    would have moved stream time step by step.
    """
    found: set[str] = set()
    for group in graph.groups:
        nodes = [graph.nodes[name] for name in group]
        sources = [node for node in nodes if isinstance(node, Source)]
        if len(sources) != 1 or any(isinstance(node, Process | TableTransformValues) for node in nodes):
            continue
        topics = [topic for topic in sources[0].topics if topic in graph.internal_topics]
        if len(topics) == 1 and counter_of(graph, sources[0], config):
            found.update(topics)
    chosen = {node.topic for node in graph.nodes.values() if isinstance(node, Sink) and node.partitioner}
    return found - {topic for topic in chosen if isinstance(topic, str)}
