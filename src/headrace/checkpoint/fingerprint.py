"""The fingerprint of a topology: what a checkpoint knows of the topology that wrote it.

That is its sub-topologies, their task counts, the kind and serdes of every store, and where each store is. A manifest
holds the fingerprint. `find_differences` compares two of them, and `change_plan` plans how the state of one becomes
that of the other. The field names of `Fingerprint` are part of the manifest's format.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, NamedTuple

from headrace.config import Config
from headrace.runtime.serdes import Serdes, resolved, serdes_of
from headrace.serde.protocol import Serde
from headrace.state.spec import StoreSpec
from headrace.topology.graph import Graph
from headrace.topology.nodes import Node, Process, Sink, Source, StreamJoin, TableTransformValues
from headrace.topology.subtopologies import Plan, Stage

# These may change: they do not affect the bytes in a store.
_IGNORED = {"retention", "history", "max_entries", "grace"}


class StoreShape(NamedTuple):
    """A store: its kind and serdes, as text.

    `unmigrated` is the value serde of values that are not migrated yet (`state.migration`); empty if there are none.
    """

    name: str
    kind: str
    key: str
    value: str
    logged: bool
    unmigrated: str = ""


class SubtopologyShape(NamedTuple):
    """A sub-topology: the topics it reads, its task count, its stores.

    `grown_from` is the task count from before its source topics last got more partitions; 0 if they never did. It is
    the task count itself while topics that are joined with them have not grown yet. Records of topics that have grown
    are routed by their keys, if there are stores (`topology.subtopologies.route_sources`).
    """

    number: int
    reads: tuple[str, ...]
    tasks: int
    stores: tuple[StoreShape, ...]
    grown_from: int = 0


class OperatorShape(NamedTuple):
    """An operator with stores or schedules: it may have cells of its own, named after it."""

    name: str
    kind: str
    subtopology: int
    stores: tuple[str, ...]


class Lineage(NamedTuple):
    """The topics of the log that lead to a store, and those that it leads to."""

    upstream: tuple[str, ...] = ()
    downstream: tuple[str, ...] = ()


class RemovedStore(NamedTuple):
    """A store that the topology no longer has. Its data is in the tasks of a sub-topology as of a batch."""

    shape: StoreShape
    subtopology: int
    tasks: int
    batch: int
    lineage: Lineage = Lineage()


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """`groups` are the sub-topologies, `partitions` the partition counts of the internal topics.

    `decided` are generated names that the user has confirmed: these stores are matched by name. `grown` has the source
    topics that got more partitions, and the number from before, also if no sub-topology reads them at present.
    """

    groups: tuple[SubtopologyShape, ...]
    global_stores: tuple[StoreShape, ...]
    partitions: Mapping[str, int]
    operators: tuple[OperatorShape, ...] = ()
    lineages: Mapping[str, Lineage] = field(default_factory=dict[str, Lineage])  # by store
    removed: tuple[RemovedStore, ...] = ()
    decided: tuple[str, ...] = ()
    grown: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def routed(self) -> dict[int, int]:
        """The sub-topologies with state whose topics have grown, and the number of tasks from before."""
        return {group.number: group.grown_from for group in self.groups if group.grown_from and group.stores}


def compute_fingerprint(
    graph: Graph,
    plan: Plan,
    config: Config,
    *,
    tasks: Mapping[int, int],
    partitions: Mapping[str, int],
    before: Fingerprint | None = None,
    held: Mapping[str, int] | None = None,
) -> Fingerprint:
    """Returns the fingerprint of a planned topology. `tasks` are counts by stage, `partitions` by internal topic.

    `before` is that of the checkpoint: it tells which source topics have grown. `held` are topics that have grown, but
    are read with the number of partitions from before (`hold_counts`).
    """
    serdes = serdes_of(config)
    grown = {**({} if before is None else _find_grown(plan, tasks, before)), **(held or {})}
    groups = (_subtopology_shape(stage, tasks[stage.number], graph, serdes, grown) for stage in plan.stages.values())
    global_stores = (_store_shape(graph.stores[name], serdes) for name in sorted(graph.global_stores))
    return Fingerprint(
        tuple(groups),
        tuple(global_stores),
        dict(sorted(partitions.items())),
        operators=tuple(_operator_shapes(graph, plan)),
        lineages={store: _lineage(graph, store) for store in sorted(graph.stores)},
        grown=grown,
    )


def _find_grown(plan: Plan, tasks: Mapping[int, int], before: Fingerprint) -> dict[str, int]:
    """Returns the topics and patterns of the log with more partitions than at first, with the number from before."""
    old = {shape.number: shape for shape in before.groups}
    read = {topic for stage in plan.stages.values() for topic in (*stage.topics, *stage.patterns)}
    grown = {topic: shape.grown_from for shape in before.groups if shape.grown_from for topic in read & {*shape.reads}}
    grown |= before.grown
    for number, stage in plan.stages.items():
        if number in old and old[number].tasks != tasks[number]:
            grown |= dict.fromkeys((*stage.topics, *stage.patterns), old[number].tasks)
    return grown


def mark_old_values(graph: Graph, fingerprint: Fingerprint | None) -> Graph:
    """Returns the topology with `has_old_values` set on stores whose values in the checkpoint have an earlier form."""
    shapes = () if fingerprint is None else [shape for group in fingerprint.groups for shape in group.stores]
    marked = {
        shape.name: replace(graph.stores[shape.name], has_old_values=True)
        for shape in (*shapes, *(() if fingerprint is None else fingerprint.global_stores))
        if shape.unmigrated and shape.name in graph.stores
    }
    return replace(graph, stores={**graph.stores, **marked}) if marked else graph


def _operator_shapes(graph: Graph, plan: Plan) -> Iterator[OperatorShape]:
    for stage in plan.stages.values():
        for name in stage.nodes:
            node, stores = graph.nodes[name], graph.node_stores[name]
            if stores or isinstance(node, Process | TableTransformValues):
                yield OperatorShape(name, type(node).__name__, stage.number, tuple(stores))
            if isinstance(node, StreamJoin) and node.left_side:  # what both sides share is named after the join
                yield OperatorShape(node.join, "Join", stage.number, tuple(stores))


def _lineage(graph: Graph, store: str) -> Lineage:
    """The topics around the operator that fills a store: the first one that is connected to it."""
    owner = next((name for name in graph.nodes if store in graph.node_stores[name]), None)
    if owner is None:
        return Lineage()
    writers, readers = _topic_ends(graph)
    upstream = _topics_around(graph, owner, graph.parents, _read_by, writers)
    downstream = _topics_around(graph, owner, graph.children, _written_by, readers)
    return Lineage(tuple(sorted(upstream)), tuple(sorted(downstream)))


def _topic_ends(graph: Graph) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The nodes that write, and those that read, each internal topic."""
    writers, readers = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for name, node in graph.nodes.items():
        for topic in _written_by(node):
            writers[topic].append(name)
        for topic in _read_by(node):
            readers[topic].append(name)
    return writers, readers


def _read_by(node: Node) -> tuple[str, ...]:
    if not isinstance(node, Source):
        return ()
    return (*node.topics, node.pattern.pattern) if node.pattern else tuple(node.topics)


def _written_by(node: Node) -> tuple[str, ...]:
    return (node.topic,) if isinstance(node, Sink) and isinstance(node.topic, str) else ()


def _topics_around(
    graph: Graph,
    start: str,
    neighbours: Mapping[str, tuple[str, ...]],
    topics_of: Callable[[Node], tuple[str, ...]],
    ends: Mapping[str, list[str]],
) -> set[str]:
    """Walks the graph in one direction, through internal topics, and returns the topics of the log that it meets."""
    found, seen, left = set[str](), {start}, [start]
    while left:
        name = left.pop()
        topics = topics_of(graph.nodes[name])
        found |= {topic for topic in topics if topic not in graph.internal_topics}
        across = [end for topic in topics if topic in graph.internal_topics for end in ends.get(topic, ())]
        for other in (*neighbours[name], *across):
            if other not in seen:
                seen.add(other)
                left.append(other)
    return found


def _subtopology_shape(
    stage: Stage, tasks: int, graph: Graph, serdes: Serdes, grown: Mapping[str, int]
) -> SubtopologyShape:
    reads = (*stage.topics, *stage.patterns, *stage.inputs)
    stores = [
        _store_shape(graph.stores[name], serdes) for name in sorted(stage.stores) if name not in graph.global_stores
    ]
    grown_from = max((grown.get(topic, 0) for topic in (*stage.topics, *stage.patterns)), default=0)
    return SubtopologyShape(stage.number, tuple(sorted(reads)), tasks, tuple(stores), grown_from)


def _store_shape(spec: StoreSpec, serdes: Serdes) -> StoreShape:
    spec = resolved(spec, serdes)
    return StoreShape(spec.name, _text(spec.kind), _text(spec.key), _text(spec.value), spec.logging)


def _text(thing: Any) -> str:
    """Returns a text that is the same in every process: without addresses and hashes."""
    if isinstance(thing, Serde):
        return thing.name
    if thing is None or isinstance(thing, bool | int | str):
        return repr(thing)
    if is_dataclass(thing):
        parts = [f"{f.name}={_text(getattr(thing, f.name))}" for f in fields(thing) if f.name not in _IGNORED]
        return f"{type(thing).__name__}({', '.join(parts)})"
    return type(thing).__qualname__


# -------------------------------------------------------------------------------------------------------- differences
def find_differences(before: Fingerprint, now: Fingerprint, *, divides: bool = False) -> list[str]:
    """Returns a sentence for each difference that makes a checkpoint unusable; none if it fits.

    With `divides`, another number of tasks is no difference: the state is divided among them (`rescale`).
    """
    old, new = {g.number: g for g in before.groups}, {g.number: g for g in now.groups}
    if divides:
        old = {
            number: shape._replace(tasks=new[number].tasks) if number in new else shape for number, shape in old.items()
        }
    return [
        *_compare_subtopologies(old, new),
        *_compare_stores(_stores_by_name(before), _stores_by_name(now)),
    ]


def _compare_subtopologies(
    before: Mapping[int, SubtopologyShape], now: Mapping[int, SubtopologyShape]
) -> Iterator[str]:
    for number in sorted(before.keys() | now.keys()):
        old, new = before.get(number), now.get(number)
        if old is None or new is None:
            yield f"sub-topology {number} is {'new' if old is None else 'gone'}"
            continue
        if old.reads != new.reads:
            yield f"sub-topology {number} read {', '.join(old.reads)} and now reads {', '.join(new.reads)}"
        names = ", ".join(store.name for store in new.stores)
        if new.tasks != old.tasks and (names or new.tasks < old.tasks):
            state = f", and its state ({names}) would have to be rescaled" if names else ""
            yield f"sub-topology {number} had {old.tasks} tasks and now has {new.tasks}{state}"


def _stores_by_name(fingerprint: Fingerprint) -> dict[str, tuple[str, StoreShape]]:
    """Returns the stores by name, each with its place."""
    found = {s.name: (f"sub-topology {g.number}", s) for g in fingerprint.groups for s in g.stores}
    return found | {store.name: ("the global stores", store) for store in fingerprint.global_stores}


def _compare_stores(
    before: Mapping[str, tuple[str, StoreShape]], now: Mapping[str, tuple[str, StoreShape]]
) -> Iterator[str]:
    for name in sorted(before.keys() | now.keys()):
        if name not in now:
            yield f"store {name} of {before[name][0]} is gone"
        elif name not in before:
            yield f"store {name} of {now[name][0]} is new"
        else:
            (place, old), (new_place, new) = before[name], now[name]
            if place != new_place:
                yield f"store {name} was in {place} and now is in {new_place}"
            for what, was, is_now in zip(StoreShape._fields, old, new, strict=True):
                if was != is_now and what != "unmigrated":  # only the checkpoint knows of unmigrated values
                    yield f"store {name} had the {_WORDS[what]} {was} and now has {is_now}"


_WORDS = {"kind": "kind", "key": "key serde", "value": "value serde", "logged": "logging"}
