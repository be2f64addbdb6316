"""What a topology must not have: one function per rule, each with its message."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.errors import TopologyError
from headrace.model.sink import TOPIC_PREFIX
from headrace.state.spec import StoreSpec
from headrace.topology.captured_state import warn_of_captured_state
from headrace.topology.graph import InternalTopic
from headrace.topology.nodes import Node, Sink, Source


def name_is_new(name: str, nodes: Mapping[str, Node]) -> None:
    if name in nodes:
        raise TopologyError(f"there is a node {name!r} already: give the second one another name")


def parents_exist(name: str, parents: tuple[str, ...], nodes: Mapping[str, Node]) -> None:
    if not parents:
        raise TopologyError(f"{name!r} has no parents: name the nodes that it gets its records from")
    for parent in parents:
        if parent == name:
            raise TopologyError(f"{name!r} is its own parent: a topology has no circles")
        if parent not in nodes:
            raise TopologyError(
                f"the parent {parent!r} of {name!r} is unknown: add it first (there are: {', '.join(nodes) or 'none'})"
            )
        if isinstance(nodes[parent], Sink):
            raise TopologyError(
                f"the parent {parent!r} of {name!r} is a sink, nothing comes after it: read its topic with a source"
            )


def sink_is_new(node: Node, nodes: Mapping[str, Node]) -> None:
    """Two sinks of one name would take each other's batches for their own."""
    if not isinstance(node, Sink) or node.target is None:
        return
    for other in nodes.values():
        if isinstance(other, Sink) and other.topic == node.topic:
            sink = str(node.topic).removeprefix(TOPIC_PREFIX)
            raise TopologyError(
                f"two sinks have the name {sink!r}: give one of them another, stream.sink(…, name=…). The target "
                "stores it with the batches that it has"
            )


def topics_given(name: str, topics: tuple[str, ...]) -> None:
    if not topics:
        raise TopologyError(f"the source {name!r} reads no topic: name at least one, or give a pattern")


def topic_is_unread(topic: str, sources: Iterable[Source]) -> None:
    for source in sources:
        if topic in source.topics:
            raise TopologyError(
                f"the topic {topic!r} is read by {source.name!r} already: read it once and use the stream or table "
                "twice, or give both streams the same list of topics"
            )
        if source.pattern is not None and source.pattern.fullmatch(topic):
            raise TopologyError(
                f"the topic {topic!r} matches the pattern {source.pattern.pattern!r} of {source.name!r}: "
                "narrow the pattern"
            )


def pattern_is_apart(pattern: re.Pattern[str], sources: Iterable[Source]) -> None:
    for source in sources:
        for topic in source.topics:
            if pattern.fullmatch(topic):
                raise TopologyError(
                    f"the pattern {pattern.pattern!r} matches {topic!r}, which {source.name!r} reads: "
                    "narrow the pattern"
                )


def repartition_is_new(topic: str, internal: Mapping[str, InternalTopic]) -> None:
    if topic in internal:
        raise TopologyError(
            f"two steps would send their records through the topic {topic!r}: give them topics of their own, "
            "by naming the groups or joins (name=…)"
        )


def store_is_new(spec: StoreSpec, stores: Mapping[str, StoreSpec], global_stores: Mapping[str, str]) -> None:
    """The same spec may be added again, another one of its name may not."""
    if spec.name in global_stores:
        raise TopologyError(f"there is a global store {spec.name!r} already: give this one another name")
    if stores.get(spec.name, spec) is not spec:
        raise TopologyError(f"there is another store {spec.name!r} already: give this one another name")


def global_store_is_new(spec: StoreSpec, stores: Mapping[str, StoreSpec]) -> None:
    if spec.name in stores:
        raise TopologyError(f"there is a store {spec.name!r} already: give the global one another name")


def global_names_differ(source: str, processor: str) -> None:
    if source == processor:
        raise TopologyError(
            f"the source and the processor of a global store are both named {source!r}: name them apart"
        )


def stores_given(name: str, stores: tuple[str, ...]) -> None:
    if not stores:
        raise TopologyError(f"no store is named to connect to {name!r}")


def can_be_connected(
    name: str, store: str, nodes: Mapping[str, Node], stores: Mapping[str, StoreSpec], global_stores: Mapping[str, str]
) -> None:
    if store in global_stores:
        raise TopologyError(f"the store {store!r} is global, {name!r} may use it without being connected: leave it out")
    if store not in stores:
        raise TopologyError(f"{name!r} wants the store {store!r}, which is not there: add it first, with add_store")
    if name not in nodes:
        raise TopologyError(f"the store {store!r} is for {name!r}, which is not there: add the processor first")
    if isinstance(nodes[name], Source | Sink):
        raise TopologyError(
            f"{name!r} is a source or a sink and cannot have the store {store!r}: connect it to a processor"
        )


def makes_new_ones(supplier: Callable[[], Any], name: str) -> None:
    """Every task needs a processor of its own, which shares no state with the others."""
    if not callable(supplier):
        raise TypeError(f"{name!r} needs a class or a function that makes a processor, not {supplier!r}")
    one: object = supplier()
    another: object = supplier()
    if one is another:
        raise ValueError(
            f"the supplier of {name!r} hands out the same {type(one).__name__} twice: "
            "give the class itself, or a function that makes a new one at every call"
        )
    warn_of_captured_state(type(one))


def partitions_agree(
    groups: Iterable[Iterable[str]], nodes: Mapping[str, Node], internal: Mapping[str, InternalTopic]
) -> None:
    """Topics whose records meet must have equally many partitions, as far as the user has said how many."""
    for group in groups:
        sources = [node for node in map(nodes.get, group) if isinstance(node, Source)]
        topics = {topic for source in sources for topic in source.topics}
        asked = {t: internal[t].partitions for t in sorted(topics) if t in internal and internal[t].partitions}
        if asked.keys() == topics and len(set(asked.values())) > 1:
            counts = ", ".join(f"{topic}: {count}" for topic, count in asked.items())
            raise TopologyError(
                f"records of these topics meet, so they need equally many partitions ({counts}): use one number"
            )
