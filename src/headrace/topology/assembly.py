"""A topology that is being put together: nodes, edges, stores and topics are added one by one, and checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.state.spec import StoreSpec
from headrace.topology import validate
from headrace.topology.graph import Graph, InternalTopic
from headrace.topology.nodes import Node, Source


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
        validate.name_is_new(source.name, self.nodes)
        if source.pattern is not None:
            validate.pattern_is_apart(
                source.pattern, (s for s in self.sources() if s.name not in self.global_stores.values())
            )
        else:
            validate.topics_given(source.name, source.topics)
            for index, topic in enumerate(source.topics):
                before = Source(source.name, source.topics[:index])
                validate.topic_is_unread(topic, [*self.sources(), before])
        self._put(source, ())

    def add(self, node: Node, *parents: str, stores: Iterable[StoreSpec] = ()) -> None:
        """Add a node with the stores that are its own."""
        validate.name_is_new(node.name, self.nodes)
        validate.parents_exist(node.name, parents, self.nodes)
        self._put(node, parents)
        for spec in stores:
            self.add_store(spec, node.name)

    def add_store(self, spec: StoreSpec, *processors: str) -> None:
        validate.store_is_new(spec, self.stores, self.global_stores)
        self.stores[spec.name] = spec
        for processor in processors:
            self._connect(processor, spec.name)

    def connect(self, processor: str, *stores: str) -> None:
        validate.stores_given(processor, stores)
        for store in stores:
            self._connect(processor, store)

    def add_global_store(self, spec: StoreSpec, source: Source, processor: Node) -> None:
        """Add a store that is filled from a topic and that every processor may read."""
        validate.name_is_new(source.name, self.nodes)
        for topic in source.topics:
            validate.topic_is_unread(topic, self.sources())
        validate.name_is_new(processor.name, self.nodes)
        validate.global_names_differ(source.name, processor.name)
        validate.global_store_is_new(spec, self.stores)
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
        validate.can_be_connected(processor, store, self.nodes, self.stores, self.global_stores)
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
