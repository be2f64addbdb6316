"""A finished topology: nodes, edges, stores and topics, all frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.model.sink import TOPIC_PREFIX
from headrace.state.spec import StoreSpec
from headrace.topology.nodes import Node, Sink, Source, TopicExtractor


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic between two sub-topologies; its name is without the application id."""

    name: str
    partitions: int | None = None  # None: as many as the largest topic it is joined with


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in the order they were added; children in the order they were attached, which is the order they run in."""

    nodes: Mapping[str, Node]
    parents: Mapping[str, tuple[str, ...]]
    children: Mapping[str, tuple[str, ...]]
    stores: Mapping[str, StoreSpec]
    node_stores: Mapping[str, tuple[str, ...]]  # the stores connected to a node
    global_stores: Mapping[str, str] = field(default_factory=dict[str, str])  # store -> the source node that feeds it
    internal_topics: Mapping[str, InternalTopic] = field(default_factory=dict[str, InternalTopic])
    copartitioned: tuple[frozenset[str], ...] = ()  # groups of source *nodes* that must have equal partition counts
    groups: tuple[tuple[str, ...], ...] = ()  # sub-topologies: names of nodes, numbered as Kafka Streams numbers them


def find_upstream(graph: Graph, name: str) -> set[str]:
    """Returns a node and all that it depends on: by edges, by internal topics, and by stores that others fill."""
    by_store: dict[str, list[str]] = {}
    for node, stores in graph.node_stores.items():
        for store in stores:
            by_store.setdefault(store, []).append(node)
    writers: dict[str, list[str]] = {}
    for node in graph.nodes.values():
        if isinstance(node, Sink) and isinstance(node.topic, str):
            writers.setdefault(node.topic, []).append(node.name)
    found, to_do = set[str](), [name]
    while to_do:
        node = graph.nodes[to_do.pop()]
        if node.name in found:
            continue
        found.add(node.name)
        to_do += graph.parents[node.name]
        to_do += [user for store in graph.node_stores[node.name] for user in by_store[store]]
        if isinstance(node, Source):
            internal = [topic for topic in node.topics if topic in graph.internal_topics]
            to_do += [sink for topic in internal for sink in writers.get(topic, [])]
            if node.name in graph.global_stores.values():
                to_do += graph.children[node.name]
    return found


def prefix_sinks(graph: Graph, prefix: str) -> Graph:
    """Returns the graph with a prefix before every topic of the log that it writes; it reads the same topics.

    A sink for another system becomes a topic with the name of the sink.
    """
    return replace(graph, nodes={name: _prefix_sink(node, graph, prefix) for name, node in graph.nodes.items()})


def _prefix_sink(node: Node, graph: Graph, prefix: str) -> Node:
    if not isinstance(node, Sink) or node.topic in graph.internal_topics:
        return node
    if not isinstance(node.topic, str):
        return replace(node, topic=_prefix_chosen(node.topic, prefix))
    name = node.topic if node.target is None else node.topic.removeprefix(TOPIC_PREFIX)
    return replace(node, topic=prefix + name, target=None)


def _prefix_chosen(choose: TopicExtractor, prefix: str) -> TopicExtractor:
    def chosen(key: Any, value: Any, context: Any) -> str:
        return prefix + choose(key, value, context)

    return chosen
