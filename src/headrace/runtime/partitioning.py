"""Finds the task of a row of state or of a record, to divide a sub-topology among more or fewer tasks.

    layout = lay_out_state(graph, stage, config)
    layout.tables[prefix].route(place)      the bytes whose hash is the row's partition
    layout.chooser("orders", 6, own)        a function from the key of a record to its task, of six
    combine_cells(name, values)             the value of a cell in a task that gets rows of several tasks
    find_partition(graph, stage, …)         the task of a key, for queries

A sub-topology is partitioned by the keys of the records it reads. The stores of the DSL have those keys, encoded by the
store's serde: if the topic has another serde, a key is decoded and encoded again. Windowed keys go by the key inside,
as on topics. A processor may put anything under any key, so its stores must be declared
(`StoreSpec.partitioned_by_key`). Kafka's default partitioner, or a `KeyPartitioner` that the repartition before the
sub-topology declares, gives the partition of a key; with any other partitioner the partition is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, cast

from headrace.config import Config
from headrace.errors import StreamsError
from headrace.model.partitioner import KeyPartitioner, murmur2, partition_of
from headrace.model.windows import Windows, ends_of
from headrace.runtime.environment import NEVER_CLOSED
from headrace.runtime.rows import PartitionBatch, split_batch
from headrace.runtime.serdes import Serdes, serdes_of
from headrace.serde.protocol import Serde
from headrace.serde.windowed import inside_windows
from headrace.state.buffer import GraceBuffer, SuppressBuffer, UnmatchedBuffer
from headrace.state.keys import decode_session, decode_window
from headrace.state.row_keys import Buffer, KeyOf, tables_of
from headrace.state.task_state import LOGGED, table_prefix
from headrace.state.values import Content
from headrace.topology import nodes as n
from headrace.topology.graph import Graph
from headrace.topology.subtopologies import Stage


class Keys(NamedTuple):
    """The rows of a table, or the records of a topic: `route` returns the bytes that are hashed."""

    name: str
    route: KeyOf


class ClosedWindows(NamedTuple):
    """A store of an aggregate that emits windows when they close. `cell` has the close time of its last emission."""

    cell: str
    store: str
    closes_at: Callable[[bytes], int]  # the close time from which on the window at a place has been emitted


class Subscribed(NamedTuple):
    """The right side of a foreign-key join. Each subscription names the task of its left row, which gets the answer."""

    table: bytes  # the prefix of the subscriptions that it keeps
    topic: str  # the topic of new subscriptions
    responses: str  # the topic of the answers


@dataclass(frozen=True, slots=True)
class StateLayout:
    """How the state of a sub-topology is divided by key, or why it cannot be."""

    tables: dict[bytes, Keys]  # by prefix
    topics: dict[str, Keys]  # the topics that the sub-topology reads, by the name in the graph
    patterns: KeyOf  # for the topics that match a pattern
    suppressed: dict[bytes, str]  # the names of suppress buffers, by the prefix of their table
    closed: tuple[ClosedWindows, ...]
    subscribed: tuple[Subscribed, ...]
    refusals: tuple[str, ...]
    declared: Callable[[bytes, int], int] | None = None  # the partition of a key, if it is not that of its hash

    def partition(self, key: bytes, count: int) -> int:
        """The partition of a key, of `count`. `key` has the bytes that a `route` returns."""
        return (murmur2(key) & 0x7FFFFFFF) % count if self.declared is None else self.declared(key, count)

    def chooser(self, topic: str, count: int, own: int) -> Callable[[bytes | None], int]:
        """The function from the key of a record to its task, of `count`. A record without a key stays in `own`."""
        found = self.topics.get(topic)
        route = self.patterns if found is None else found.route

        @lru_cache(KNOWN)
        def choose(key: bytes | None) -> int:
            return own % count if key is None else self.partition(route(key), count)

        return choose


CELLS = table_prefix(LOGGED)
KNOWN = 131_072  # keys whose task is remembered: most keys come again


def lay_out_state(graph: Graph, stage: Stage, config: Config) -> StateLayout:
    """Returns the layout of a sub-topology's state."""
    serdes = serdes_of(config)
    nodes = [graph.nodes[name] for name in stage.nodes]
    sources = [node for node in nodes if isinstance(node, n.Source)]
    topics = {topic: Keys(topic, _inside(serdes.key(source.key))) for source in sources for topic in source.topics}
    patterns = next((_inside(serdes.key(source.key)) for source in sources if source.pattern), _as_it_is)
    read_as = [_innermost(serdes.key(source.key)) for source in sources]
    buffers = dict(_buffers(nodes))
    tables: dict[bytes, Keys] = {}
    declared, refusals = _find_partitioner(graph, stage, sources, serdes)
    undeclared = _processor_stores(graph, stage)
    for name in stage.stores:
        spec = graph.stores[name]
        if name in graph.global_stores or not spec.logging:
            continue
        if name in undeclared and not spec.by_key:
            refusals.append(
                f"store {name} belongs to a processor, which may put anything under any key: if it only puts keys of "
                "the records that it reads, declare the store with .partitioned_by_key(), and give it a function if "
                "the key of a record is a part of them"
            )
            continue
        rekey = _rekey(serdes.key(spec.key), read_as, spec.record_key)
        for table, key_of in tables_of(name, spec.kind, buffers.get(name)).items():
            tables[table_prefix(table)] = Keys(table, _after(key_of, rekey))
    suppressed = {table_prefix(name): name for name, kind in buffers.items() if kind is SuppressBuffer}
    closed, subscribed = tuple(_closed_windows(nodes)), tuple(_subscribed(graph, stage))
    return StateLayout(tables, topics, patterns, suppressed, closed, subscribed, tuple(refusals), declared)


def find_partition(
    graph: Graph, stage: Stage, config: Config, key: Any, count: int, partitioner: KeyPartitioner[Any] | None = None
) -> int:
    """Returns the partition, of `count`, whose task has a key. A store of windows or sessions goes by the key inside.

    `partitioner` is that of the topic that the sub-topology reads, if the topology does not declare it.
    """
    if partitioner is not None:
        return partitioner.choose(key, count)
    serdes = serdes_of(config)
    sources = [node for name in stage.nodes if isinstance(node := graph.nodes[name], n.Source)]
    declared, reasons = _find_partitioner(graph, stage, sources, serdes)
    if reasons:
        raise StreamsError(
            f"which task has the key {key!r} is not known: its topics have a partitioner that is a plain function, or "
            "several. Declare one KeyPartitioner for all of them, or give it as partitioner="
        )
    raw = _innermost(serdes.key(sources[0].key)).encode(key)
    return partition_of(raw, count) or 0 if declared is None else declared(raw, count)


def _buffers(nodes: Sequence[n.Node]) -> Iterator[tuple[str, Buffer]]:
    for node in nodes:
        match node:
            case n.StreamJoin(outer_store=str(name)):
                yield name, UnmatchedBuffer
            case n.StreamTableJoin(buffer=str(name)):
                yield name, GraceBuffer
            case n.Suppress(buffer=name):
                yield name, SuppressBuffer
            case _:
                pass


def _processor_stores(graph: Graph, stage: Stage) -> set[str]:
    """Returns the stores that only processors and transformers write."""
    free, owned = set[str](), set[str]()
    for name in stage.nodes:
        match graph.nodes[name]:
            case n.Process():
                free.update(graph.node_stores[name])
            case n.TableTransformValues(store=store):
                free.update(other for other in graph.node_stores[name] if other != store)
                owned.update(() if store is None else (store,))
            case _:
                owned.update(graph.node_stores[name])
    return free - owned


def _subscribed(graph: Graph, stage: Stage) -> Iterator[Subscribed]:
    for name in stage.nodes:
        node = graph.nodes[name]
        if isinstance(node, n.SubscriptionReceive):
            sources = [graph.nodes[parent] for parent in graph.parents[name]]
            sinks = [graph.nodes[sink] for join in graph.children[name] for sink in graph.children[join]]
            (topic,) = (topic for source in sources if isinstance(source, n.Source) for topic in source.topics)
            # A backfill of the store runs without the responses.
            for responses in (sink.topic for sink in sinks if isinstance(sink, n.Sink) and isinstance(sink.topic, str)):
                yield Subscribed(table_prefix(node.store), topic, responses)


def _find_partitioner(
    graph: Graph, stage: Stage, sources: Sequence[n.Source], serdes: Serdes
) -> tuple[Callable[[bytes, int], int] | None, list[str]]:
    """Returns the partitioner that is declared for all topics of a sub-topology, or the reasons why there is none.

    Neither a partitioner nor a reason: Kafka's default partitioner.
    """
    sinks = [node for node in graph.nodes.values() if isinstance(node, n.Sink) and node.topic in stage.inputs]
    own = {str(sink.topic): sink.partitioner for sink in sinks if sink.partitioner is not None}
    if not own:
        return None, []
    declared = [cast("KeyPartitioner[Any]", some) for some in own.values() if isinstance(some, KeyPartitioner)]
    if len(declared) < len(own):
        return None, [
            f"the partitioner of {topic} is a function of its own, which does not tell where a key of the state "
            "belongs: if it looks at the key alone, declare it as partitioner=KeyPartitioner(function of key and "
            "number of partitions); else take it away, and reset the application, or keep the number of partitions"
            for topic, partitioner in own.items()
            if not isinstance(partitioner, KeyPartitioner)
        ]
    chosen, read_as = declared[0], [serdes.key(source.key) for source in sources]
    if (
        {*own} != {*stage.topics, *stage.inputs}
        or stage.patterns
        or any(other.choose is not chosen.choose for other in declared)
    ):
        listed = ", ".join(sorted({*stage.topics, *stage.inputs, *stage.patterns}))
        why = f"{listed} have different partitioners, so a key of the state belongs to several tasks"
        return None, [f"{why}: give all of them one KeyPartitioner"]
    if any(inside_windows(serde) is not None for serde in read_as):
        return None, [f"the partitioner of {next(iter(own))} gets windowed keys, and the state has the keys inside"]
    decode, choose, topic = read_as[0].decode, chosen.choose, next(iter(own))

    def partition(key: bytes, count: int) -> int:
        found = choose(decode(key), count)
        if type(found) is not int or not 0 <= found < count:
            raise ValueError(f"the partitioner of {topic} chose partition {found!r} of {count} for a key of the state")
        return found

    return partition, []


def route_records(batch: PartitionBatch, choose: Callable[[bytes | None], int], own: int) -> dict[int, PartitionBatch]:
    """Splits records of a partition by the task of their key, and gives them their order in this task.

    A record of another partition is a stray: its producer did not know the new number of partitions yet. Where a stray
    has the same time as a record of the task's own partition, the stray goes first: a producer writes to the old
    partition until it learns the new number, and then to the new one.
    """
    parts = split_batch(batch, choose)
    for partition, part in parts.items():
        if partition != own:
            orders = [(time, "", *rest) for time, _, *rest in part.orders]
            parts[partition] = PartitionBatch(part.at, part.offsets, part.records, orders)
    return parts


# ---------------------------------------------------------------------------------------------------------------- keys
def _innermost(serde: Serde) -> Serde:
    """Returns the serde of the key inside windowed keys."""
    inside = inside_windows(serde)
    return serde if inside is None else _innermost(inside)


def _inside(serde: Serde) -> KeyOf:
    """Returns the function from the bytes of a windowed key to the bytes of the key inside it."""
    inside = inside_windows(serde)
    if inside is None:
        return _as_it_is
    decode, encode = serde.decode, inside.encode

    def route(raw: bytes) -> bytes:
        return encode(decode(raw).key)

    return _after(route, _inside(inside))


def _rekey(serde: Serde, read_as: Sequence[Serde], record_key: Callable[[Any], Any] | None) -> KeyOf:
    """Returns the function from key bytes of a store to the bytes that the key has on the topics."""
    if record_key is not None:
        read, write = serde.decode, (read_as[0] if read_as else serde).encode
        return lambda raw: write(record_key(read(raw)))
    inside, innermost = _inside(serde), _innermost(serde)
    if not read_as or any(innermost.name == other.name for other in read_as):
        return inside
    decode, encode = innermost.decode, read_as[0].encode
    return _after(inside, lambda raw: encode(decode(raw)))


def _as_it_is(raw: bytes) -> bytes:
    return raw


def _after(first: KeyOf, second: KeyOf) -> KeyOf:
    if second is _as_it_is:
        return first
    return second if first is _as_it_is else lambda raw: second(first(raw))


# ---------------------------------------------------------------------------------------------------- closed windows
def _closed_windows(nodes: Sequence[n.Node]) -> Iterator[ClosedWindows]:
    for node in nodes:
        match node:
            case n.WindowAggregate(on_close=True):
                yield ClosedWindows(f"{node.name}/last close", node.store, _end_of_window(node.windows))
            case n.SlidingAggregate(on_close=True):
                yield ClosedWindows(f"{node.name}/last close", node.store, _end_of_sliding(node.windows.difference))
            case n.SessionAggregate(on_close=True):
                yield ClosedWindows(f"{node.name}/last close", node.store, _end_of_session)
            case _:
                pass


def _end_of_window(windows: Windows) -> Callable[[bytes], int]:
    end_of = ends_of(windows)
    return lambda place: end_of(decode_window(place)[1])


def _end_of_sliding(difference: int) -> Callable[[bytes], int]:
    return lambda place: decode_window(place)[1] + difference + 1


def _end_of_session(place: bytes) -> int:
    return decode_session(place)[2] + 1


# --------------------------------------------------------------------------------------------------------------- cells
def combine_cells(name: str, values: Sequence[Content]) -> Content:
    """Returns the value of a cell in a task that gets rows of several tasks. None: a task has not saved the cell.

    The largest value counts for stream times, clocks, sequence numbers and schedules; the smallest for the close time
    of the last emission and the time of the oldest record that waits. The order of schedules is that of one task.

    >>> combine_cells("task/stream time", [5, 9]), combine_cells("AGG/last close", [5, 9])
    (9, 5)
    """
    known = [value for value in values if value is not None]
    numbers = [value for value in known if isinstance(value, int)]
    if not numbers:
        return known[0] if known else None
    if name.endswith("/last close"):
        return min(numbers) if len(numbers) == len(values) else NEVER_CLOSED
    return min(numbers) if name.endswith("/oldest unmatched") else max(numbers)
