"""StreamsBuilder: where streams and tables begin, and where they become a topology."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Self

from headrace.dsl import retired_names
from headrace.dsl.logical.graph import LogicalGraph, Place
from headrace.dsl.logical.lowering import write_all
from headrace.dsl.logical.optimizations import optimizations
from headrace.dsl.logical.optimizations import optimize as rewrite
from headrace.dsl.logical.steps import AddStore, ReadGlobal, ReadStream, ReadTable, Step
from headrace.dsl.logical.table_properties import set_versioned
from headrace.dsl.materialization import StoreOption, materialized, named, table_store, with_serdes
from headrace.dsl.stream import KStream
from headrace.dsl.table import GlobalKTable, KTable
from headrace.errors import TopologyError
from headrace.state.spec import StoreSpec
from headrace.topology import validation
from headrace.topology.builder import Assembly, Topology, source
from headrace.topology.nodes import Process, SerdeLike, Source, TableSource, TimestampExtractor

Reset = str | int | timedelta | None


class StreamsBuilder:
    """Streams and tables of topics, and the topology they become.

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
        *topics: str,
        pattern: re.Pattern[str] | str | None = None,
        key: SerdeLike | None = None,
        value: SerdeLike | None = None,
        timestamp: TimestampExtractor | None = None,
        offset_reset: Reset = None,
        name: str | None = None,
    ) -> KStream:
        """The records of topics: of the ones named, or of all that match a pattern."""
        if pattern is None:
            validation.topics_given(name or "stream", topics)
        name = self._draft.names.given(name, "KSTREAM-SOURCE-")
        node = source(name, tuple(dict.fromkeys(topics)), pattern, key, value, timestamp, offset_reset)
        step = self._draft.add(Step(name, ReadStream(node)), self._draft.root)
        return KStream(Place(self._draft, step, name, key, value, frozenset({name})))

    def table(
        self,
        topic: str,
        *,
        key: SerdeLike | None = None,
        value: SerdeLike | None = None,
        store: StoreOption = None,
        timestamp: TimestampExtractor | None = None,
        offset_reset: Reset = None,
        name: str | None = None,
    ) -> KTable:
        """A topic's latest value of every key."""
        given = with_serdes(materialized(store), key, value)
        spec = table_store(given, named(given, self._draft.names, f"{topic}-"))
        reader, node = self._table_names(name)
        read = source(reader, (topic,), None, given.key, given.value, timestamp, offset_reset)
        what = ReadTable(read, TableSource(node, given.name), spec)
        step = self._draft.add(Step(node, what, versioned=given.history is not None), self._draft.root)
        return KTable(Place(self._draft, step, node, given.key, given.value, frozenset({reader})), given.name)

    def global_table(
        self,
        topic: str,
        *,
        key: SerdeLike | None = None,
        value: SerdeLike | None = None,
        store: StoreOption = None,
        timestamp: TimestampExtractor | None = None,
        name: str | None = None,
    ) -> GlobalKTable:
        """A topic's latest value of every key, whole on every task."""
        given = with_serdes(materialized(store), key, value)
        if given.history is not None:
            raise TopologyError(f"the global table of {topic!r} cannot be versioned: leave out the history")
        spec = table_store(given, named(given, self._draft.names, f"{topic}-"))
        reader, node = self._table_names(name)
        read = Source(reader, (topic,), None, given.key, given.value, timestamp)
        self._draft.add(Step(node, ReadGlobal(read, TableSource(node, spec.name), spec)), self._draft.root)
        return GlobalKTable(spec.name, spec.name if store is None else given.name)

    def add_store(self, spec: StoreSpec) -> Self:
        """A store for processors; they name it when they are added."""
        self._draft.add(Step(spec.name, AddStore(spec)), self._draft.root)
        return self

    def add_global_store(
        self,
        spec: StoreSpec,
        topic: str,
        supplier: Callable[[], Any],
        *,
        key: SerdeLike | None = None,
        value: SerdeLike | None = None,
        timestamp: TimestampExtractor | None = None,
        name: str | None = None,
    ) -> Self:
        """A store that a processor fills from all partitions of a topic, and that every processor may read."""
        reader, node = self._table_names(name)
        validation.makes_new_ones(supplier, node)
        read = Source(reader, (topic,), None, key, value, timestamp)
        self._draft.add(Step(spec.name, ReadGlobal(read, Process(node, supplier), spec)), self._draft.root)
        return self

    def build(self, optimize: str | Iterable[str] | None = None) -> Topology:
        """The topology of all streams and tables; more nodes can be added to it, below named ones too.

        Without `optimize` the setting `topology.optimization` of the application decides.
        """
        draft = self._draft.copy()
        return Topology(
            _assembled(draft.copy(), optimizations(optimize)),
            None if optimize is not None else lambda wanted: _assembled(draft.copy(), wanted),
        )

    def _table_names(self, name: str | None) -> tuple[str, str]:
        """The source and the node of a table."""
        names = self._draft.names
        return names.given(name, "KSTREAM-SOURCE-", "-source"), names.given(name, "KTABLE-SOURCE-")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            retired_names.refuse("StreamsBuilder", retired_names.BUILDER, name)


def _assembled(draft: LogicalGraph, optimize: frozenset[str]) -> Assembly:
    """The nodes of a draft, which is used up."""
    rewrite(draft, optimize)
    set_versioned(draft)
    return write_all(draft)
