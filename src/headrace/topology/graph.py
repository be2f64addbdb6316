"""A finished topology: nodes, edges, stores and topics, all frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.state.spec import StoreSpec
from headrace.topology.nodes import Node


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
