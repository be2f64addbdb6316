"""A topology described: Kafka Streams' text, the same as JSON-able data, and as a Mermaid diagram."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from headrace.model.sink import TOPIC_PREFIX
from headrace.topology.graph import Graph
from headrace.topology.java_order import Tree, copied_order, hash_order
from headrace.topology.nodes import Node, Sink, Source


@dataclass(frozen=True, slots=True)
class DescribedNode:
    """A node as it is described; `details` are topics or stores."""

    kind: str
    name: str
    details: str
    successors: tuple[str, ...]
    predecessors: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.name} ({self.details})"]
        if self.kind != "Sink":
            lines.append(f"      --> {', '.join(self.successors) or 'none'}")
        if self.kind != "Source":
            lines.append(f"      <-- {', '.join(self.predecessors) or 'none'}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Subtopology:
    """Nodes that run together."""

    number: int
    is_global: bool
    nodes: tuple[DescribedNode, ...]

    def __str__(self) -> str:
        note = " for global store (will not generate tasks)" if self.is_global else ""
        nodes = "".join(f"    {node}\n" for node in self.nodes)
        return f"Sub-topology: {self.number}{note}\n{nodes}" + ("" if self.is_global else "\n")


@dataclass(frozen=True, slots=True)
class TopologyDescription:
    """Sub-topologies, numbered as Kafka Streams numbers them."""

    subtopologies: tuple[Subtopology, ...]

    def __str__(self) -> str:
        return "Topologies:\n " + "".join(f"  {subtopology}" for subtopology in self.subtopologies)

    def as_dict(self) -> dict[str, Any]:
        """The description as data for JSON."""
        return {"subtopologies": [as_dict(subtopology) for subtopology in self.subtopologies]}

    def mermaid(self) -> str:
        """The description as a Mermaid flowchart."""
        return mermaid(self)


def describe(graph: Graph) -> TopologyDescription:
    return TopologyDescription(
        tuple(described_group(graph, number, group) for number, group in enumerate(graph.groups))
    )


def described_group(graph: Graph, number: int, group: tuple[str, ...]) -> Subtopology:
    """Nodes with the most below them first, then by name."""
    links = Links(graph, group)
    order = sorted(group, key=lambda name: (-links.sizes[name], name))
    is_global = any(source in group for source in graph.global_stores.values())
    if is_global:  # the source, then the processor
        order = list(group)
    return Subtopology(number, is_global, tuple(described_node(graph, name, links) for name in order))


def described_node(graph: Graph, name: str, links: Links) -> DescribedNode:
    node = graph.nodes[name]
    kind = type(node).__name__ if isinstance(node, Source | Sink) else "Processor"
    return DescribedNode(
        kind, name, details(node, graph), tuple(links.successors[name]), tuple(links.predecessors[name])
    )


def details(node: Node, graph: Graph) -> str:
    match node:
        case Source():
            return f"topics: {listed(node.topics) if node.pattern is None else node.pattern.pattern}"
        case Sink(target=target) if target is not None:
            return f"sink: {str(node.topic).removeprefix(TOPIC_PREFIX)}, {target.guarantee}"
        case Sink():
            return f"topic: {node.topic}" if isinstance(node.topic, str) else f"extractor class: {path(node.topic)}"
        case _:
            return f"stores: {listed(hash_order(graph.node_stores[node.name]))}"


def path(f: object) -> str:
    """Where a function, or the class of a callable object, is defined."""
    named = f if isinstance(f, FunctionType | MethodType | BuiltinFunctionType | type) else type(f)
    return f"{named.__module__}.{named.__qualname__}"


def listed(names: Iterable[str]) -> str:
    return f"[{', '.join(copied_order(names))}]"


class Links:
    """Who follows whom in a sub-topology, in the order that Kafka Streams shows.

    Neighbours are sorted by how many nodes are below them (along all paths), as counted when they were added.
    """

    def __init__(self, graph: Graph, group: tuple[str, ...]) -> None:
        self.sizes = dict.fromkeys(group, 1)
        self._place = {name: -place for place, name in enumerate(group)}  # what is below comes first
        self.successors = {name: Tree(self._before) for name in group}
        self.predecessors = {name: Tree(self._before) for name in group}
        for name in hash_order(group):
            for parent in graph.parents[name]:
                self.predecessors[name].add(parent)
                self.successors[parent].add(name)
                self._grow(parent, self.sizes[name])

    def _before(self, one: str, other: str) -> int:
        if one == other:
            return 0
        if self.sizes[one] != self.sizes[other]:
            return self.sizes[other] - self.sizes[one]
        return -1 if one < other else 1

    def _grow(self, name: str, by: int) -> None:
        """Count what is new below a node, for it and for all above it, once for every path."""
        growth = {name: by}
        waiting = [(self._place[name], name)]
        while waiting:
            _, name = heappop(waiting)
            self.sizes[name] += growth[name]
            for parent in self.predecessors[name]:
                if parent not in growth:
                    heappush(waiting, (self._place[parent], parent))
                growth[parent] = growth.get(parent, 0) + growth[name]


def as_dict(subtopology: Subtopology) -> dict[str, Any]:
    nodes = [
        {
            "kind": node.kind,
            "name": node.name,
            "details": node.details,
            "to": [*node.successors],
            "from": [*node.predecessors],
        }
        for node in subtopology.nodes
    ]
    return {"id": subtopology.number, "global": subtopology.is_global, "nodes": nodes}


def escaped(text: str) -> str:
    """Text that neither ends a label nor becomes markup in it.

    >>> escaped('a "b" <c>')
    'a #quot;b#quot; #lt;c#gt;'
    """
    for character, entity in (("#", "#35;"), ("&", "#amp;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(character, entity)
    return " ".join(text.split("\n"))


def mermaid(description: TopologyDescription) -> str:
    """A flowchart with one box per sub-topology.

    >>> print(mermaid(TopologyDescription(())))
    flowchart TD
    """
    lines = ["flowchart TD"]
    ids = {node.name: f"n{i}" for i, node in enumerate(n for s in description.subtopologies for n in s.nodes)}
    for subtopology in description.subtopologies:
        lines.append(f"  subgraph s{subtopology.number}[Sub-topology {subtopology.number}]")
        for node in subtopology.nodes:
            label = f"{escaped(node.name)}<br/>{escaped(node.details)}"
            shape = f'(["{label}"])' if node.kind != "Processor" else f'["{label}"]'
            lines.append(f"    {ids[node.name]}{shape}")
        lines.append("  end")
        lines += [f"  {ids[node.name]} --> {ids[other]}" for node in subtopology.nodes for other in node.successors]
    return "\n".join(lines)
