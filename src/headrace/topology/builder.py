"""Topology: nodes put together by hand. This is Kafka Streams' Processor API; the DSL ends here too."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Self, cast

from headrace.model.windows import milliseconds
from headrace.state.spec import StoreSpec
from headrace.topology import validate
from headrace.topology.assembly import Assembly
from headrace.topology.describe import TopologyDescription, describe
from headrace.topology.graph import Graph
from headrace.topology.nodes import Partitioner, Process, Sink, Source, TimestampExtractor, TopicExtractor
from headrace.topology.serdes import SerdeLike


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

    def __init__(self, assembly: Assembly | None = None) -> None:
        self._assembly = assembly or Assembly()

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
        self._assembly.add_source(source(name, topics, pattern, key, value, timestamp, offset_reset))
        return self

    def add_processor(self, name: str, supplier: Callable[[], Any], *parents: str) -> Self:
        """Add a processor; the supplier, a class for example, makes a new one for every task."""
        validate.makes_new_ones(supplier, name)
        self._assembly.add(Process(name, supplier), *parents, stores=stores_of(supplier))
        return self

    def add_store(self, spec: StoreSpec, *processors: str) -> Self:
        """Add a store and connect it to processors."""
        self._assembly.add_store(spec, *processors)
        return self

    def connect(self, processor: str, *stores: str) -> Self:
        """Let a processor use stores."""
        self._assembly.connect(processor, *stores)
        return self

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
        self._assembly.add(Sink(name, topic, key, value, partitioner), *parents)
        return self

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
        validate.makes_new_ones(supplier, processor)
        reader = Source(source or f"{spec.name}-source", (topic,), None, key, value, timestamp)
        self._assembly.add_global_store(spec, reader, Process(processor, supplier))
        return self

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

    @property
    def internal_topics(self) -> list[str]:
        """The repartition and foreign-key topics, sorted, without application id."""
        return sorted(self._assembly.internal_topics)

    def graph(self) -> Graph:
        """All that has been added so far, frozen."""
        return self._assembly.graph()

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
    compiled = re.compile(pattern) if isinstance(pattern, str) else pattern
    return Source(name, topics, compiled, key, value, timestamp, checked_reset(offset_reset))


def checked_reset(reset: str | int | timedelta | None) -> str | int | None:
    """Where to start in a topic without a position: earliest, latest, none, or so many milliseconds back."""
    if isinstance(reset, str):
        if reset not in ("earliest", "latest", "none"):
            raise ValueError(f"offset_reset is 'earliest', 'latest', 'none' or a duration, not {reset!r}")
        return reset
    return None if reset is None else milliseconds(reset, "offset_reset")


def stores_of(supplier: Callable[[], Any]) -> tuple[StoreSpec, ...]:
    """The stores that a supplier brings along, as its attribute `stores`: they are added and connected."""
    brought: object = getattr(supplier, "stores", ())
    if not isinstance(brought, list | tuple | set | frozenset):
        return ()
    return tuple(spec for spec in cast("Iterable[object]", brought) if isinstance(spec, StoreSpec))
