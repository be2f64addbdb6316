"""StreamsBuilder: makes streams and tables of topics, and builds the topology."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Self, cast

from headrace.dsl.logical.graph import AddStore, LogicalGraph, Place, ReadGlobal, ReadStream, ReadTable, Step
from headrace.dsl.logical.lowering import write_all
from headrace.dsl.logical.optimizations import optimizations
from headrace.dsl.logical.optimizations import optimize as rewrite
from headrace.dsl.logical.table_properties import set_versioned
from headrace.dsl.materialization import StoreOption, materialized, named, table_store, with_serdes
from headrace.dsl.options import Materialized, check_serde
from headrace.dsl.stream import KStream
from headrace.dsl.table import GlobalKTable, KTable
from headrace.dsl.types import K, RecordProcessor, V
from headrace.errors import TopologyError
from headrace.hints import explain_names
from headrace.serde.protocol import Serde
from headrace.state.spec import StoreSpec
from headrace.topology import validation
from headrace.topology.builder import Assembly, Topology
from headrace.topology.builder import source as source_node
from headrace.topology.connectors import Source as ConnectSource
from headrace.topology.connectors import SourceSpec
from headrace.topology.nodes import Process, Source, TableSource, TimestampExtractor

Reset = str | int | timedelta | None


@explain_names(
    {
        "add_state_store": "add_store(spec)",
        "global_k_table": "global_table(topic)",
        "k_stream": "stream(topic)",
        "k_table": "table(topic)",
        "merge": "stream.merge(other)",
        "new_name": "name= of the operators",
    }
)
class StreamsBuilder:
    """Makes streams and tables of topics, and builds their topology.

    The options `key=` and `value=` are serdes. Without one, `default.key.serde` and `default.value.serde` of the
    configuration apply, else bytes.

    >>> builder = StreamsBuilder()
    >>> builder.stream("lines").filter(lambda line: line).to("full-lines")
    >>> print(builder.build().describe())
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [lines])
          --> KSTREAM-FILTER-0000000001
        Processor: KSTREAM-FILTER-0000000001 (stores: [])
          --> KSTREAM-SINK-0000000002
          <-- KSTREAM-SOURCE-0000000000
        Sink: KSTREAM-SINK-0000000002 (topic: full-lines)
          <-- KSTREAM-FILTER-0000000001
    <BLANKLINE>
    <BLANKLINE>
    """

    def __init__(self) -> None:
        self._draft = LogicalGraph()

    def stream(
        self,
        *topics: str | Collection[str],
        pattern: re.Pattern[str] | str | None = None,
        source: ConnectSource | None = None,
        topic: str | None = None,
        partitions: int | None = None,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        timestamp: TimestampExtractor | None = None,
        offset_reset: Reset = None,
        name: str | None = None,
    ) -> KStream[K, V]:
        """The stream of one or more topics, of all topics whose names match a pattern, or of a source.

        `timestamp` returns the timestamp of a record: `f(record, partition_time)` or one of `headrace.timestamps`.
        `offset_reset` says where to start without a position: "earliest", "latest", "none", or a duration back.

        A `source` of `headrace.connect` runs with the application, and writes into `topic`, which is named after the
        source if no name is given, and made with so many `partitions`. The serdes are for writing and reading.

        >>> from headrace import serde
        >>> StreamsBuilder().stream("shop-orders", "web-orders", key=serde.STRING, value=serde.JSON)
        <KStream KSTREAM-SOURCE-0000000000>
        >>> StreamsBuilder().stream(pattern="orders-.*", name="orders")
        <KStream orders>
        >>> from headrace.connect import FileSource
        >>> StreamsBuilder().stream(source=FileSource("/var/shop/*.csv", format="csv"), topic="orders", name="orders")
        <KStream orders>
        """
        check_serde("key", key)
        check_serde("value", value)
        names = _topic_names(topics)
        if source is not None:
            if names or pattern is not None:
                raise TypeError("a source fills one topic of its own: stream(source=..., topic=...)")
            spec = self._add_source(source, topic, partitions, key, value)
            names, key, value = (spec.topic,), spec.key, spec.value
        else:
            _check_no_source(topic, partitions)
        if pattern is None:
            validation.topics_given(name or "stream", names)
        name = self._draft.names.given(name, "KSTREAM-SOURCE-")
        node = source_node(name, names, pattern, key, value, timestamp, _reset(offset_reset, source))
        step = self._draft.add(Step(name, ReadStream(node)), self._draft.root)
        return KStream(Place(self._draft, step, name, key, value, frozenset({name})))

    def table(
        self,
        topic: str | None = None,
        *,
        source: ConnectSource | None = None,
        partitions: int | None = None,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        store: StoreOption[K, V] = None,
        timestamp: TimestampExtractor | None = None,
        offset_reset: Reset = None,
        name: str | None = None,
    ) -> KTable[K, V]:
        """The table of the latest value of each key of a topic, or of a source: see `stream`.

        >>> from headrace import serde
        >>> StreamsBuilder().table("prices", key=serde.STRING, value=serde.LONG, store="prices").queryable_store_name
        'prices'
        >>> from headrace.connect import PostgresChanges
        >>> StreamsBuilder().table(source=PostgresChanges("postgresql://shop", "customers"), name="customers")
        <KTable customers>
        """
        given = _table_settings(store, key, value)
        if source is not None:
            filled = self._add_source(source, topic, partitions, given.key, given.value, {"cleanup.policy": "compact"})
            topic, given = filled.topic, replace(given, key=filled.key, value=filled.value)
        elif topic is None:
            raise TypeError("a table needs a topic, or a source: table(topic) or table(source=...)")
        else:
            _check_no_source(None, partitions)
        spec = table_store(given, named(given, self._draft.names, f"{topic}-"))
        reader, node = self._table_names(name)
        read = source_node(reader, (topic,), None, given.key, given.value, timestamp, _reset(offset_reset, source))
        what = ReadTable(read, TableSource(node, given.name), spec)
        step = self._draft.add(Step(node, what, versioned=given.history is not None), self._draft.root)
        return KTable(Place(self._draft, step, node, given.key, given.value, frozenset({reader})), given.name)

    def global_table(
        self,
        topic: str,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        store: StoreOption[K, V] = None,
        timestamp: TimestampExtractor | None = None,
        name: str | None = None,
    ) -> GlobalKTable[K, V]:
        """The table of a topic, with all partitions on every task: a stream can be joined with it by any key.

        >>> from headrace import serde
        >>> products = StreamsBuilder().global_table("products", key=serde.STRING, value=serde.JSON)
        >>> products.queryable_store_name
        'products-STATE-STORE-0000000000'
        """
        given = _table_settings(store, key, value)
        if given.history is not None:
            raise TopologyError(f"the global table of {topic!r} cannot be versioned: leave out the history")
        spec = table_store(given, named(given, self._draft.names, f"{topic}-"))
        reader, node = self._table_names(name)
        read = Source(reader, (topic,), None, given.key, given.value, timestamp)
        self._draft.add(Step(node, ReadGlobal(read, TableSource(node, spec.name), spec)), self._draft.root)
        return GlobalKTable(spec.name, spec.name if store is None else given.name)

    def add_store(self, spec: StoreSpec) -> Self:
        """Add a store for processors. `process(supplier, store_name)` connects it to a processor.

        >>> from headrace import Stores
        >>> builder = StreamsBuilder().add_store(Stores.key_value("seen"))
        """
        if not isinstance(spec, StoreSpec):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"add_store takes a store of Stores, such as Stores.key_value(name), not {spec!r}")
        self._draft.add(Step(spec.name, AddStore(spec)), self._draft.root)
        return self

    def add_global_store(
        self,
        spec: StoreSpec,
        topic: str,
        supplier: Callable[[], RecordProcessor[K, V]],
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        timestamp: TimestampExtractor | None = None,
        name: str | None = None,
    ) -> Self:
        """Add a store that a processor fills from all partitions of a topic; every processor may read it."""
        check_serde("key", key)
        check_serde("value", value)
        reader, node = self._table_names(name)
        validation.makes_new_ones(supplier, node)
        read = Source(reader, (topic,), None, key, value, timestamp)
        self._draft.add(Step(spec.name, ReadGlobal(read, Process(node, supplier), spec)), self._draft.root)
        return self

    def build(self, optimize: bool | str | Iterable[str] | None = None) -> Topology:
        """The topology of all streams and tables. More nodes can be added to it, also below named operators.

        `optimize` is True or "all", False or "none", or names of optimizations. Without it, the setting
        `topology.optimization` of the application decides.

        >>> builder = StreamsBuilder()
        >>> builder.stream("lines").group_by(lambda line: line).count(store="counts")
        <KTable KSTREAM-AGGREGATE-0000000002>
        >>> builder.build(optimize=True).internal_topics
        ['counts-repartition']
        """
        draft = self._draft.copy()
        topology = Topology(
            _assembled(draft.copy(), optimizations(optimize)),
            None if optimize is not None else lambda wanted: _assembled(draft.copy(), wanted),
        )
        topology.sources = tuple(draft.sources)
        return topology

    def _add_source(
        self,
        source: ConnectSource,
        topic: str | None,
        partitions: int | None,
        key: Serde[Any] | None,
        value: Serde[Any] | None,
        config: Mapping[str, str] | None = None,
    ) -> SourceSpec:
        if not isinstance(source, ConnectSource):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"source= takes a source of headrace.connect, or one of your own, not {source!r}")
        spec = SourceSpec(
            source=source,
            topic=topic or source.name,
            key=key or source.key,
            value=value or source.value,
            partitions=partitions,
            config=config or {},
        )
        if any(other.name == spec.name for other in self._draft.sources):
            raise TopologyError(f"two sources have the name {spec.name!r}: give one of them another, name=")
        self._draft.sources.append(spec)
        return spec

    def _table_names(self, name: str | None) -> tuple[str, str]:
        """The names of a table's source and of its node."""
        names = self._draft.names
        return names.given(name, "KSTREAM-SOURCE-", "-source"), names.given(name, "KTABLE-SOURCE-")


def _topic_names(topics: tuple[str | Collection[str], ...]) -> tuple[str, ...]:
    """The topics, each once: `stream("a", "b")` and `stream(["a", "b"])` are the same."""
    names: list[str] = []
    for topic in topics:
        names.extend(topic if isinstance(topic, list | tuple | set | frozenset) else [cast("str", topic)])
    for name in names:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f'a topic is a str, not {name!r}: stream("orders", "returns", key=..., value=...)')
    return tuple(dict.fromkeys(names))


def _check_no_source(topic: str | None, partitions: int | None) -> None:
    if topic is not None or partitions is not None:
        raise TypeError("topic= and partitions= belong to a source: stream(source=..., topic=...)")


def _reset(offset_reset: Reset, source: ConnectSource | None) -> Reset:
    """The topic of a source is read from its beginning: the source may have written before the application reads."""
    return "earliest" if source is not None and offset_reset is None else offset_reset


def _table_settings(store: StoreOption[Any, Any], key: Serde[Any] | None, value: Serde[Any] | None) -> Materialized:
    check_serde("key", key)
    return with_serdes(materialized(store, value=value), key, None)


def _assembled(draft: LogicalGraph, optimize: frozenset[str]) -> Assembly:
    """The nodes of a logical graph. Optimizing changes the graph, so it is used once."""
    rewrite(draft, optimize)
    set_versioned(draft)
    return write_all(draft)
