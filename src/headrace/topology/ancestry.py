"""The part of a topology that leads to some of its stores: what has to run to fill these from history.

    part = keep_ancestors(graph, {"totals"}, topics, partitions)
    part.graph        the nodes that the stores depend on, without sinks for topics of the log
    part.numbers      by sub-topology of that graph: its number in the whole topology

Nodes are ancestors if records pass from them to a node with one of the stores, also through repartition topics, or if
they share a store with an ancestor: a join reads the store of a table that another node fills.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from headrace.topology.graph import Graph
from headrace.topology.nodes import Node, Sink, Source
from headrace.topology.subtopologies import global_nodes, plan


class Ancestry(NamedTuple):
    """A part of a topology. `numbers` has the sub-topologies of the whole topology by their number in the part."""

    graph: Graph
    numbers: Mapping[int, int]

    @property
    def topics(self) -> set[str]:
        """The topics of the log that it reads."""
        return {topic for stage in plan(self.graph).stages.values() for topic in stage.topics} | self.global_topics

    @property
    def global_topics(self) -> set[str]:
        sources = (self.graph.nodes[name] for name in set(self.graph.global_stores.values()))
        return {topic for source in sources if isinstance(source, Source) for topic in source.topics}


def keep_ancestors(
    graph: Graph, stores: Collection[str], topics: Iterable[str], partitions: Mapping[str, int]
) -> Ancestry:
    """Returns the part of a topology that fills some stores.

    `topics` are those of the log that the topology reads: patterns become the topics that they match. `partitions` are
    the partition counts of its internal topics, which the part keeps.
    """
    kept = _find_ancestors(graph, stores) | set(global_nodes(graph))
    nodes = {name: _resolve_pattern(node, topics) for name, node in graph.nodes.items() if name in kept}
    read = {topic for node in nodes.values() if isinstance(node, Source) for topic in node.topics}
    used = {store for name in nodes for store in graph.node_stores[name]} | graph.global_stores.keys()
    pruned = replace(
        graph,
        nodes=nodes,
        parents={name: tuple(some for some in graph.parents[name] if some in kept) for name in nodes},
        children={name: tuple(some for some in graph.children[name] if some in kept) for name in nodes},
        stores={name: spec for name, spec in graph.stores.items() if name in used},
        node_stores={name: graph.node_stores[name] for name in nodes},
        internal_topics={
            name: replace(topic, partitions=partitions[name])
            for name, topic in graph.internal_topics.items()
            if name in read
        },
        copartitioned=tuple(group for names in graph.copartitioned if len(group := names & kept) > 1),
        # One group stays one, also if nothing connects its nodes any more: tasks keep their partitions.
        groups=tuple(group for names in graph.groups if (group := tuple(name for name in names if name in kept))),
    )
    places = {name: stage.number for stage in plan(graph).stages.values() for name in stage.nodes}
    return Ancestry(pruned, {stage.number: places[stage.nodes[0]] for stage in plan(pruned).stages.values()})


def _find_ancestors(graph: Graph, stores: Collection[str]) -> set[str]:
    users, writers = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for name, node in graph.nodes.items():
        for store in graph.node_stores[name]:
            users[store].append(name)
        if isinstance(node, Sink) and isinstance(node.topic, str) and node.topic in graph.internal_topics:
            writers[node.topic].append(name)
    left = [name for store in stores for name in users[store]]
    found = set(left)
    while left:
        name = left.pop()
        node = graph.nodes[name]
        read = [topic for topic in node.topics if topic in graph.internal_topics] if isinstance(node, Source) else []
        shared = [user for store in graph.node_stores[name] for user in users[store]]
        for other in (*graph.parents[name], *shared, *(writer for topic in read for writer in writers[topic])):
            if other not in found:
                found.add(other)
                left.append(other)
    return found


def _resolve_pattern(node: Node, topics: Iterable[str]) -> Node:
    if not isinstance(node, Source) or node.pattern is None:
        return node
    matched = tuple(sorted(topic for topic in topics if node.pattern.fullmatch(topic)))
    return replace(node, topics=matched, pattern=None)
