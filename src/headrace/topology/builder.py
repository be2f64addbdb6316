"""The Processor API: `Topology` takes sources, processors, stores and sinks one by one, and checks each.

`Assembly` holds the nodes, edges, stores and topics that were added, and makes the frozen `Graph` of them. The DSL adds
its nodes to an `Assembly`, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, Self, cast

from headrace.config import Config
from headrace.hints import explain_names
from headrace.html import render_picture
from headrace.model.windows import milliseconds
from headrace.state.spec import StoreSpec
from headrace.topology import validation
from headrace.topology.captured_state import warn_of_captured_state
from headrace.topology.connectors import SourceSpec
from headrace.topology.describe import TopologyDescription, describe
from headrace.topology.drawing import picture
from headrace.topology.graph import Graph, InternalTopic
from headrace.topology.naming import require_given_names
from headrace.topology.nodes import (
    Node,
    Partitioner,
    Process,
    SerdeLike,
    Sink,
    Source,
    TimestampExtractor,
    TopicExtractor,
)


class Assembly:
    """What `Topology` and the DSL write into; `graph` is what has been written so far, frozen."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.parents: dict[str, tuple[str, ...]] = {}
        self.stores: dict[str, StoreSpec] = {}
        self.node_stores: dict[str, dict[str, None]] = {}
        self.global_stores: dict[str, str] = {}
        self.internal_topics: dict[str, InternalTopic] = {}
        self.copartitioned: list[frozenset[str]] = []

    def sources(self) -> Iterator[Source]:
        return (node for node in self.nodes.values() if isinstance(node, Source))

    def add_source(self, source: Source) -> None:
        validation.name_is_new(source.name, self.nodes)
        if source.pattern is not None:
            validation.pattern_is_apart(
                source.pattern, (s for s in self.sources() if s.name not in self.global_stores.values())
            )
        else:
            validation.topics_given(source.name, source.topics)
            for index, topic in enumerate(source.topics):
                before = Source(source.name, source.topics[:index])
                validation.topic_is_unread(topic, [*self.sources(), before])
        self._put(source, ())

    def add(self, node: Node, *parents: str, stores: Iterable[StoreSpec] = ()) -> None:
        """Add a node with the stores that are its own."""
        validation.name_is_new(node.name, self.nodes)
        validation.parents_exist(node.name, parents, self.nodes)
        validation.sink_is_new(node, self.nodes)
        self._put(node, parents)
        for spec in stores:
            self.add_store(spec, node.name)

    def add_store(self, spec: StoreSpec, *processors: str) -> None:
        validation.store_is_new(spec, self.stores, self.global_stores)
        self.stores[spec.name] = spec
        for processor in processors:
            self._connect(processor, spec.name)

    def connect(self, processor: str, *stores: str) -> None:
        validation.stores_given(processor, stores)
        for store in stores:
            self._connect(processor, store)

    def add_global_store(self, spec: StoreSpec, source: Source, processor: Node) -> None:
        """Add a store that is filled from a topic and that every processor may read."""
        validation.name_is_new(source.name, self.nodes)
        for topic in source.topics:
            validation.topic_is_unread(topic, self.sources())
        validation.name_is_new(processor.name, self.nodes)
        validation.global_names_differ(source.name, processor.name)
        validation.global_store_is_new(spec, self.stores)
        self._put(source, ())
        self._put(processor, (source.name,))
        self.stores[spec.name] = spec
        self.global_stores[spec.name] = source.name
        self.node_stores[processor.name] = {spec.name: None}

    def add_internal_topic(self, topic: InternalTopic) -> None:
        self.internal_topics[topic.name] = topic

    def graph(self) -> Graph:
        children: dict[str, list[str]] = {name: [] for name in self.nodes}
        for name, parents in self.parents.items():
            for parent in parents:
                children[parent].append(name)
        return Graph(
            nodes=dict(self.nodes),
            parents=dict(self.parents),
            children={name: tuple(names) for name, names in children.items()},
            stores=dict(self.stores),
            node_stores={name: tuple(stores) for name, stores in self.node_stores.items()},
            global_stores=dict(self.global_stores),
            internal_topics=dict(self.internal_topics),
            copartitioned=tuple(group.intersection(self.nodes) for group in self.copartitioned),
            groups=tuple(self._groups()),
        )

    def _put(self, node: Node, parents: tuple[str, ...]) -> None:
        self.nodes[node.name] = node
        self.parents[node.name] = parents
        self.node_stores[node.name] = {}

    def _connect(self, processor: str, store: str) -> None:
        validation.can_be_connected(processor, store, self.nodes, self.stores, self.global_stores)
        self.node_stores[processor][store] = None

    def _groups(self) -> list[tuple[str, ...]]:
        """Sub-topologies: nodes that are linked by edges or by stores, numbered by their first nodes."""
        group: dict[str, list[str]] = {}
        owner: dict[str, str] = {}
        for name, parents in self.parents.items():
            group[name] = [name]
            for other in [*parents, *(owner.setdefault(store, name) for store in self.node_stores[name])]:
                if group[other] is not group[name]:
                    group[other].extend(group[name])
                    for member in group[name]:
                        group[member] = group[other]
        position = {name: index for index, name in enumerate(self.nodes)}
        ordered = {id(members): sorted(members, key=position.__getitem__) for members in group.values()}
        return [tuple(members) for members in ordered.values()]


@explain_names(
    {
        "add_state_store": "add_store(spec, *processors)",
        "add_read_only_state_store": "add_read_only_store(spec, topic, supplier)",
        "connect_processor_and_state_stores": "connect(processor, *stores)",
        "add_subtopology": "add_source, add_processor and add_sink",
        "stream": "StreamsBuilder().stream(topic)",
        "table": "StreamsBuilder().table(topic)",
        "build": "the topology itself: Application(application_id, topology, log=...)",
    },
    {
        "parent": "the names of the parents as arguments after the topic",
        "topics": "the topics as arguments after the name",
    },
)
class Topology:
    """A program as a graph of sources, processors and sinks.

    >>> class Forward:
    ...     def init(self, context): self.context = context
    ...     def process(self, record): self.context.forward(record)
    >>> topology = Topology().add_source("in", "lines").add_processor("copy", Forward, "in")
    >>> print(topology.add_sink("out", "copies", "copy").describe())
    Topologies:
       Sub-topology: 0
        Source: in (topics: [lines])
          --> copy
        Processor: copy (stores: [])
          --> out
          <-- in
        Sink: out (topic: copies)
          <-- copy
    <BLANKLINE>
    <BLANKLINE>
    """

    def __init__(
        self, assembly: Assembly | None = None, rebuild: Callable[[frozenset[str]], Assembly] | None = None
    ) -> None:
        """`rebuild` makes the assembly again with optimizations: a topology of the DSL that names none has it."""
        self._assembly = assembly or Assembly()
        self._rebuild = rebuild
        self.sources: tuple[SourceSpec, ...] = ()  # systems that the application reads into topics of the log
        self._added: list[Callable[[Assembly], None]] = []  # what was added by hand, to be added to a rebuilt assembly

    def _add(self, change: Callable[[Assembly], None]) -> Self:
        change(self._assembly)
        self._added.append(change)
        return self

    def add_source(
        self,
        name: str,
        *topics: str,
        pattern: re.Pattern[str] | str | None = None,
        key: SerdeLike | None = None,
        value: SerdeLike | None = None,
        timestamp: TimestampExtractor | None = None,
        offset_reset: str | int | timedelta | None = None,
    ) -> Self:
        """Read topics: the ones named, or all that match a pattern."""
        node = source(name, topics, pattern, key, value, timestamp, offset_reset)
        return self._add(lambda assembly: assembly.add_source(node))

    def add_processor(self, name: str, supplier: Callable[[], Any], *parents: str) -> Self:
        """Add a processor; the supplier, a class for example, makes a new one for every task."""
        validation.makes_new_ones(supplier, name)
        node, stores = Process(name, supplier), stores_of(supplier)
        return self._add(lambda assembly: assembly.add(node, *parents, stores=stores))

    def add_store(self, spec: StoreSpec, *processors: str) -> Self:
        """Add a store and connect it to processors."""
        return self._add(lambda assembly: assembly.add_store(spec, *processors))

    def connect(self, processor: str, *stores: str) -> Self:
        """Let a processor use stores."""
        return self._add(lambda assembly: assembly.connect(processor, *stores))

    def add_sink(
        self,
        name: str,
        topic: str | TopicExtractor,
        *parents: str,
        key: SerdeLike | None = None,
        value: SerdeLike | None = None,
        partitioner: Partitioner | None = None,
    ) -> Self:
        """Write to a topic, or to the one that `topic(key, value, context)` names."""
        node = Sink(name, topic, key, value, partitioner)
        return self._add(lambda assembly: assembly.add(node, *parents))

    def add_global_store(
        self,
        spec: StoreSpec,
        topic: str,
        supplier: Callable[[], Any],
        *,
        source: str | None = None,
        processor: str | None = None,
        key: SerdeLike | None = None,
        value: SerdeLike | None = None,
        timestamp: TimestampExtractor | None = None,
    ) -> Self:
        """Fill a store from all partitions of a topic; every processor may read it without being connected."""
        processor = processor or f"{spec.name}-processor"
        validation.makes_new_ones(supplier, processor)
        reader = Source(source or f"{spec.name}-source", (topic,), None, key, value, timestamp)
        node = Process(processor, supplier)
        return self._add(lambda assembly: assembly.add_global_store(spec, reader, node))

    def add_read_only_store(
        self,
        spec: StoreSpec,
        topic: str,
        supplier: Callable[[], Any],
        *,
        source: str | None = None,
        processor: str | None = None,
        key: SerdeLike | None = None,
        value: SerdeLike | None = None,
        timestamp: TimestampExtractor | None = None,
    ) -> Self:
        """Fill a store from a topic, partition by partition, with a processor that does nothing else."""
        source, processor = source or f"{spec.name}-source", processor or f"{spec.name}-processor"
        self.add_source(source, topic, key=key, value=value, timestamp=timestamp, offset_reset="earliest")
        return self.add_processor(processor, supplier, source).add_store(spec, processor)

    def configured(self, config: Config) -> Topology:
        """The topology as an application with these settings runs it.

        `topology.optimization` applies to a topology that `StreamsBuilder.build()` made without `optimize=`.
        `ensure.explicit.internal.resource.naming` raises a `TopologyError` that lists the generated names.

        >>> Topology().add_source("in", "lines").configured(Config.of({"topology.optimization": "all"})).internal_topics
        []
        """
        topology = self
        if config.topology_optimization and self._rebuild is not None:
            topology = Topology(self._rebuild(config.topology_optimization))
            topology.sources = self.sources
            for change in self._added:
                topology._add(change)
        if config.ensure_explicit_internal_resource_naming:
            require_given_names(topology._assembly.stores, topology._assembly.internal_topics)
        return topology

    @property
    def internal_topics(self) -> list[str]:
        """The repartition and foreign-key topics, sorted, without application id."""
        return sorted(self._assembly.internal_topics)

    def graph(self) -> Graph:
        """All that has been added so far, frozen."""
        return self._assembly.graph()

    def __repr__(self) -> str:
        names = [name for name, node in self._assembly.nodes.items() if isinstance(node, Source)]
        return f"<Topology of {len(self._assembly.nodes)} nodes, from {', '.join(names) or 'no source'}>"

    def _repr_html_(self) -> str:
        """The picture that `headrace topology --format svg` draws, for a notebook."""
        graph = self.graph()
        return render_picture(picture(graph), f"topology of {len(graph.groups)} sub-topologies")

    def describe(self) -> TopologyDescription:
        """The topology in Kafka Streams' words: `str()` of it is Kafka's text."""
        return describe(self.graph())


def source(
    name: str,
    topics: tuple[str, ...],
    pattern: re.Pattern[str] | str | None,
    key: SerdeLike | None,
    value: SerdeLike | None,
    timestamp: TimestampExtractor | None,
    offset_reset: str | int | timedelta | None,
) -> Source:
    """A source with its arguments checked."""
    if pattern is not None and topics:
        raise ValueError(f"the source {name!r} has topics and a pattern: give one or the other")
    if any(not isinstance(topic, str) for topic in topics):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"the topics of {name!r} are given as str, one argument each, not {topics!r}")
    if timestamp is not None:
        warn_of_captured_state(timestamp)
    compiled = re.compile(pattern) if isinstance(pattern, str) else pattern
    return Source(name, topics, compiled, key, value, timestamp, checked_reset(offset_reset))


def checked_reset(reset: str | int | timedelta | None) -> str | int | None:
    """Where to start in a topic without a position: earliest, latest, none, or so many milliseconds back."""
    if isinstance(reset, str):
        if reset not in ("earliest", "latest", "none"):
            raise ValueError(f"offset_reset is 'earliest', 'latest', 'none' or a duration, not {reset!r}")
        return reset
    return None if reset is None else milliseconds(reset, "offset_reset")


def stores_of(supplier: Callable[[], Any]) -> tuple[StoreSpec[Any], ...]:
    """The stores that a supplier brings along, as its attribute `stores`: they are added and connected."""
    brought: object = getattr(supplier, "stores", ())
    if not isinstance(brought, list | tuple | set | frozenset):
        return ()
    brought = cast("Iterable[object]", brought)
    return tuple(cast("StoreSpec[Any]", spec) for spec in brought if isinstance(spec, StoreSpec))
