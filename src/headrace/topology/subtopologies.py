"""Cuts a topology at its internal topics into sub-topologies, puts these on levels, and counts their partitions.

Sub-topologies can form a cycle: the responses of a foreign-key join return to the sub-topology that subscribed. An edge
that closes a cycle is a back edge: its rows arrive in the next batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from headrace.errors import TopologyError
from headrace.topology.graph import Graph
from headrace.topology.nodes import Sink, Source


@dataclass(frozen=True, slots=True)
class Stage:
    """One sub-topology: it runs as one task per partition."""

    number: int
    nodes: tuple[str, ...]
    topics: tuple[str, ...]  # of the log that it reads
    patterns: tuple[str, ...]  # of topics of the log that it reads
    inputs: tuple[str, ...]  # internal topics that it reads
    outputs: tuple[str, ...]  # internal topics that it writes
    stores: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """An internal topic from one stage to another; rows on a back edge arrive in the next batch."""

    topic: str
    origin: int
    target: int
    back: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """Stages by number; `levels` holds their numbers, and an edge that is not a back edge leads to a later level."""

    stages: Mapping[int, Stage]
    edges: tuple[Edge, ...]
    levels: tuple[tuple[int, ...], ...]
    global_nodes: tuple[str, ...]  # the nodes that fill the global stores
    readers: Mapping[int, int] = field(default_factory=dict[int, int])  # reader stage -> the stage that it reads for

    def level_of(self, number: int) -> int:
        return next(index for index, level in enumerate(self.levels) if number in level)


def plan(graph: Graph) -> Plan:
    """The plan of a topology."""
    of_globals = tuple(global_nodes(graph))
    groups = [group for group in graph.groups if not set(group) & set(of_globals)]
    stages = {number: stage(graph, number, group) for number, group in enumerate(groups)}
    edges = tuple(mark_back_edges(stages, list(edges_between(stages))))
    return Plan(stages, edges, levels(stages, edges), of_globals)


def global_nodes(graph: Graph) -> Iterator[str]:
    for source in dict.fromkeys(graph.global_stores.values()):
        yield source
        yield from graph.children[source]


def stage(graph: Graph, number: int, group: tuple[str, ...]) -> Stage:
    nodes = [graph.nodes[name] for name in group]
    sources = [node for node in nodes if isinstance(node, Source)]
    read = dict.fromkeys(topic for source in sources for topic in source.topics)
    written = dict.fromkeys(node.topic for node in nodes if isinstance(node, Sink) and isinstance(node.topic, str))
    return Stage(
        number=number,
        nodes=group,
        topics=tuple(topic for topic in read if topic not in graph.internal_topics),
        patterns=tuple(source.pattern.pattern for source in sources if source.pattern),
        inputs=tuple(topic for topic in read if topic in graph.internal_topics),
        outputs=tuple(topic for topic in written if topic in graph.internal_topics),
        stores=tuple(dict.fromkeys(store for name in group for store in graph.node_stores[name])),
    )


def edges_between(stages: dict[int, Stage]) -> Iterator[Edge]:
    for origin in stages.values():
        for topic in origin.outputs:
            for target in stages.values():
                if topic in target.inputs:
                    yield Edge(topic, origin.number, target.number, back=False)


def mark_back_edges(stages: dict[int, Stage], edges: list[Edge]) -> Iterator[Edge]:
    """Visits the stages depth first; an edge to a stage that is still being visited closes a cycle."""
    visiting: set[int] = set()
    done: set[int] = set()
    back: set[Edge] = set()

    def visit(number: int) -> None:
        visiting.add(number)
        for edge in edges:
            if edge.origin == number:
                if edge.target in visiting:
                    back.add(edge)
                elif edge.target not in done:
                    visit(edge.target)
        visiting.remove(number)
        done.add(number)

    # Starts with stages that read the log, so that a cycle is entered at its beginning.
    for number in sorted(
        stages, key=lambda number: (not stages[number].topics and not stages[number].patterns, number)
    ):
        if number not in done:
            visit(number)
    for edge in edges:
        yield Edge(edge.topic, edge.origin, edge.target, back=edge in back)


def levels(stages: dict[int, Stage], edges: tuple[Edge, ...]) -> tuple[tuple[int, ...], ...]:
    """The levels: a stage is one level below the lowest stage that feeds it."""
    level: dict[int, int] = {}

    def level_of(number: int) -> int:
        if number not in level:
            above = [level_of(edge.origin) for edge in edges if edge.target == number and not edge.back]
            level[number] = max(above, default=-1) + 1
        return level[number]

    height = max((level_of(number) for number in stages), default=-1) + 1
    return tuple(tuple(number for number in stages if level[number] == index) for index in range(height))


# ------------------------------------------------------------------------------------------------------------ readers
def route_sources(plan: Plan, routed: Collection[int]) -> Plan:
    """Puts a reader before each of the given stages: it reads their topics, and routes the records by key.

    A topic with state behind it that got more partitions has records of one key in two partitions. Its readers have a
    task for each partition, as the stage itself had before, and every record reaches the task that has its key.
    """
    if not routed:
        return plan
    stages, readers = dict(plan.stages), dict[int, int]()
    for number in sorted(routed):
        stage, reader = stages[number], len(plan.stages) + 1 + number  # the number between is the global stage
        edge = f"(records of sub-topology {number})"
        stages[number] = replace(stage, topics=(), patterns=(), inputs=(*stage.inputs, edge))
        stages[reader] = Stage(reader, (), stage.topics, stage.patterns, (), (edge,), ())
        readers[reader] = number
    edges = tuple(mark_back_edges(stages, list(edges_between(stages))))
    return Plan(stages, edges, levels(stages, edges), plan.global_nodes, readers)


# ------------------------------------------------------------------------------------------------ partition counts
def hold_counts(graph: Graph, plan: Plan, known: Mapping[str, int], tasks: Mapping[int, int]) -> dict[str, int]:
    """Returns the topics that have got more partitions, but not together with those that they are joined with.

    The application goes on with the number of partitions that they had: `tasks` are the task counts before, by stage.
    """
    held: dict[str, int] = {}
    for number, stage in plan.stages.items():
        groups = [group for group in copartitioned_topics(graph) if group & {*stage.topics, *stage.inputs}]
        joined = sorted({topic for group in groups for topic in group if topic in known and topic in stage.topics})
        wished = {graph.internal_topics[topic].partitions for topic in stage.inputs if topic in graph.internal_topics}
        counts = {known[topic] for topic in joined} | (wished - {None})
        before = tasks.get(number, 0)
        if before and len(counts) > 1 and all(known[topic] >= before for topic in joined):
            held |= {topic: before for topic in joined if known[topic] > before}
    return held


def partition_counts(
    graph: Graph, plan: Plan, known: Mapping[str, int], before: Mapping[str, int] | None = None
) -> dict[str, int]:
    """The partition counts of all internal topics; `known` has those of the topics in the log.

    Counts from `before`, an earlier run, stay: an internal topic does not grow with the topics that feed it.
    """
    counts = {name: count for name, count in (before or {}).items() if name in graph.internal_topics}
    counts |= {name: topic.partitions for name, topic in graph.internal_topics.items() if topic.partitions is not None}
    for name in graph.internal_topics:
        inherited(name, plan, known, counts, frozenset())
    for group in copartitioned_topics(graph):
        agree(group, graph, known, counts)
    return counts


def inherited(
    topic: str, plan: Plan, known: Mapping[str, int], counts: dict[str, int], on_the_way: frozenset[str]
) -> int:
    """As many partitions as the largest topic that feeds the stages which write it."""
    if topic in counts:
        return counts[topic]
    if topic in on_the_way:
        return 0  # a cycle adds nothing
    writers = [stage for stage in plan.stages.values() if topic in stage.outputs]
    found = [count_of(name, known) for stage in writers for name in stage.topics]
    found += [inherited(name, plan, known, counts, on_the_way | {topic}) for stage in writers for name in stage.inputs]
    largest = max(found, default=0)
    if not on_the_way:
        if not largest:
            raise TopologyError(f"nothing tells how many partitions {topic} needs; give repartition(partitions=...)")
        counts[topic] = largest
    return largest


def count_of(topic: str, known: Mapping[str, int]) -> int:
    if topic not in known:
        raise TopologyError(f"the source topic {topic!r} does not exist; create it before the application starts")
    return known[topic]


def copartitioned_topics(graph: Graph) -> list[set[str]]:
    groups: list[set[str]] = []
    for names in graph.copartitioned:
        nodes = (graph.nodes[name] for name in names)
        groups.append({topic for node in nodes if isinstance(node, Source) for topic in node.topics})
    return groups


def agree(group: set[str], graph: Graph, known: Mapping[str, int], counts: dict[str, int]) -> None:
    """Topics that are joined have equal counts; internal ones without a wish of their own follow."""
    fixed = {topic: count_of(topic, known) for topic in sorted(group) if topic not in graph.internal_topics}
    wished = {t: counts[t] for t in sorted(group) if t in graph.internal_topics and graph.internal_topics[t].partitions}
    given = fixed | wished
    if len(set(given.values())) > 1:
        listed = ", ".join(f"{topic} has {count}" for topic, count in given.items())
        raise TopologyError(
            f"topics that are joined need the same number of partitions, but {listed}. "
            "Put repartition() before the join, or make the topics alike."
        )
    free = [topic for topic in group if topic not in given]
    for topic in free:
        counts[topic] = next(iter(given.values())) if given else max(counts[name] for name in free)


def task_counts(plan: Plan, known: Mapping[str, int], internal: Mapping[str, int]) -> dict[int, int]:
    """How many tasks each stage runs as: one for every partition of its largest topic."""
    counts = {**known, **internal}
    return {
        number: max((counts[topic] for topic in (*stage.topics, *stage.inputs)), default=1)
        for number, stage in plan.stages.items()
    }
