"""Lowers the DSL's graph to nodes: `write_all` writes every step into an `Assembly`, from which a topology is built.

The order of the steps decides the order of the nodes, and with it the text of `describe()`, which equals that of Kafka
Streams.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import assert_never

from headrace.dsl.logical.graph import (
    AddStore,
    JoinStreams,
    JoinTables,
    LogicalGraph,
    Operate,
    ReadGlobal,
    ReadStream,
    ReadTable,
    Repartition,
    Root,
    Step,
    Write,
)
from headrace.state.spec import StoreSpec, VersionedKind
from headrace.topology import validation
from headrace.topology.builder import Assembly
from headrace.topology.graph import InternalTopic
from headrace.topology.nodes import Filter, PassThrough, Sink, Source, StreamTableJoin, TableSource


def write_all(draft: LogicalGraph) -> Assembly:
    """Writes every step after its parents; among steps whose parents are written, the one that was added first."""
    assembly = Assembly()
    written = {draft.root}
    ready: list[tuple[int, int, Step]] = []
    step = draft.root
    while True:
        for child in step.children:
            if written.issuperset(child.parents):
                heappush(ready, (child.order, len(written), child))
        if not ready:
            break
        *_, step = heappop(ready)
        write(step, assembly)
        written.add(step)
    for topic in draft.internal_topics:
        assembly.add_internal_topic(topic)
    assembly.copartitioned[:] = draft.copartitioned
    validation.partitions_agree(draft.copartitioned, assembly.nodes, assembly.internal_topics)
    return assembly


def write(step: Step, assembly: Assembly) -> None:
    """Writes the nodes of one step."""
    parents = tuple(parent.name for parent in step.parents)
    match step.what:
        case Root():
            pass
        case ReadStream(source):
            assembly.add_source(source)
        case ReadTable(source, node, spec):
            assembly.add_source(source)
            assembly.add(node, source.name, stores=() if node.store is None else (spec,))
        case ReadGlobal(source, node, spec):
            assembly.add_global_store(spec, source, node)
        case AddStore(spec):
            assembly.add_store(spec)
        case Operate() as operate:
            write_operator(operate, parents, assembly)
        case Write(sink):
            assembly.add(sink, *parents)
        case Repartition() as topic:
            write_repartition(topic, step.name, parents, assembly)
        case JoinStreams() as join:
            write_stream_join(join, assembly)
        case JoinTables() as join:
            write_table_join(join, assembly)
        case _:
            assert_never(step.what)


def write_operator(operate: Operate, parents: tuple[str, ...], assembly: Assembly) -> None:
    node = operate.node
    kept = operate.stores if not isinstance(node, TableSource) or node.store is not None else ()
    assembly.add(node, *parents, stores=kept)
    if operate.uses:
        assembly.connect(node.name, *operate.uses)
    if isinstance(node, StreamTableJoin) and node.grace is not None:
        for store in operate.uses:
            reaches_back(assembly.stores[store], node.grace, node.name)


def reaches_back(spec: StoreSpec, grace: int, join: str) -> None:
    """Raises an error unless the store keeps versions for the grace: the join looks up the table as of the past."""
    history = spec.kind.history if isinstance(spec.kind, VersionedKind) else None
    if history is None:
        raise ValueError(
            f"the join {join!r} has a grace, but its table in {spec.name!r} is not versioned: give it a history"
        )
    if grace > history:
        raise ValueError(
            f"the join {join!r} has a grace of {grace} ms, but its table in {spec.name!r} has a history of only "
            f"{history} ms: use a longer history or a shorter grace"
        )


def write_repartition(topic: Repartition, source: str, parents: tuple[str, ...], assembly: Assembly) -> None:
    validation.repartition_is_new(topic.topic, assembly.internal_topics)
    assembly.add_internal_topic(InternalTopic(topic.topic, topic.partitions))
    if topic.filter is not None:
        keep = Filter(topic.filter, has_key) if topic.drops_null_keys else PassThrough(topic.filter)
        assembly.add(keep, *parents)
        parents = (topic.filter,)
    assembly.add(Sink(topic.sink, topic.topic, topic.key, topic.value, topic.partitioner), *parents)
    assembly.add_source(Source(source, (topic.topic,), None, topic.key, topic.value))


def has_key(key: object, value: object) -> bool:
    return key is not None


def write_stream_join(join: JoinStreams, assembly: Assembly) -> None:
    if join.is_self_join:
        assembly.add(join.with_itself, join.left_window, stores=[join.left_spec])
        return
    outer = [] if join.outer_spec is None else [join.outer_spec]
    assembly.add(join.left, join.left_window, stores=[join.right_spec, *outer])
    assembly.add(join.right, join.right_window, stores=[join.left_spec, *outer])
    assembly.add(join.merge, join.left.name, join.right.name)


def write_table_join(join: JoinTables, assembly: Assembly) -> None:
    assembly.add(join.left, join.left.this)
    assembly.add(join.right, join.right.this)
    assembly.add(join.merge, join.left.name, join.right.name, stores=() if join.spec is None else (join.spec,))
    assembly.connect(join.left.name, *join.right_stores)
    assembly.connect(join.right.name, *join.left_stores)
