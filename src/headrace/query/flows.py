"""Which node a record came into or left by, and how many went along each edge of a topology.

Records are counted where they enter and leave a task, by topic. What lies between is known as far as nodes hand on
each record that they get, once: counts go forward through these from the sources, and back from the sinks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property

from headrace.plan.cut import plan
from headrace.topology import nodes as n
from headrace.topology.graph import Graph

# One record in, one record out to every child.
STEADY = (n.PassThrough, n.Map, n.MapValues, n.SelectKey, n.Peek, n.TablePassThrough, n.TableToStream)


class Flows:
    """The ends and edges of an application's topology."""

    def __init__(self, graph: Graph, application: str) -> None:
        self._graph, self._prefix = graph, f"{application}-"
        self._known: dict[tuple[str, int, str], str | None] = {}

    @cached_property
    def _stages(self) -> dict[int, tuple[str, ...]]:
        planned = plan(self._graph)
        stages = {number: stage.nodes for number, stage in planned.stages.items()}
        return stages | {len(stages): planned.global_nodes}  # what fills the global stores comes behind

    def source_of(self, stage: int, topic: str) -> str | None:
        """The source by which records of a topic come into a stage."""
        key = "in", stage, topic
        if key not in self._known:
            found = [
                node.name for node in self._nodes(stage) if isinstance(node, n.Source) and self._reads(node, topic)
            ]
            self._known[key] = found[0] if found else None
        return self._known[key]

    def sink_of(self, stage: int, topic: str) -> str | None:
        """The sink by which records for a topic leave a stage; None if that may be one or another."""
        key = "out", stage, topic
        if key not in self._known:
            sinks = [node for node in self._nodes(stage) if isinstance(node, n.Sink)]
            found = [node.name for node in sinks if callable(node.topic) or node.topic == self._inner(topic)]
            self._known[key] = found[0] if len(found) == 1 else None
        return self._known[key]

    def is_internal(self, topic: str) -> bool:
        return self._inner(topic) in self._graph.internal_topics

    def edges(self, counts: Mapping[str, int]) -> dict[tuple[str, str], int]:
        """Records along edges, as far as they follow from what sources took in and sinks sent out."""
        found: dict[tuple[str, str], int] = {}
        inside = {name: count for name, count in counts.items() if isinstance(self._graph.nodes.get(name), n.Source)}
        order = [name for stage in self._stages.values() for name in stage]
        for name in order:  # parents come first
            node, parents = self._graph.nodes[name], self._graph.parents[name]
            if isinstance(node, STEADY) and parents and all((parent, name) in found for parent in parents):
                inside[name] = sum(found[parent, name] for parent in parents)
            if name in inside:
                found |= {(name, child): inside[name] for child in self._graph.children[name]}
        for name in reversed(order):
            self._go_back(name, counts, found)
        return found

    def _go_back(self, name: str, counts: Mapping[str, int], found: dict[tuple[str, str], int]) -> None:
        """What goes into a node is what comes out of it, if all of it comes from one other."""
        node, parents = self._graph.nodes[name], self._graph.parents[name]
        if len(parents) != 1 or (parents[0], name) in found:
            return
        out = [found[name, child] for child in self._graph.children[name] if (name, child) in found]
        if isinstance(node, n.Sink) and name in counts and node.partitioner is None:
            found[parents[0], name] = counts[name]
        elif isinstance(node, STEADY) and out:
            found[parents[0], name] = out[0]

    def _nodes(self, stage: int) -> list[n.Node]:
        return [self._graph.nodes[name] for name in self._stages.get(stage, ())]

    def _inner(self, topic: str) -> str:
        """A topic as the topology names it."""
        name = topic.removeprefix(self._prefix)
        return name if name in self._graph.internal_topics else topic

    def _reads(self, source: n.Source, topic: str) -> bool:
        if source.pattern is not None:
            return re.fullmatch(source.pattern, topic) is not None
        return self._inner(topic) in source.topics
