"""Cuts a topology at its internal topics into sub-topologies, and puts these on levels.

Sub-topologies can form a cycle: the responses of a foreign-key join return to the sub-topology that subscribed. An edge
that closes a cycle is a back edge: its rows arrive in the next batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
