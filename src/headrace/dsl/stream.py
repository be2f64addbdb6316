"""KStream: records that stand for themselves, one method per verb.

A stream split into branches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TextIO, TypeVar, Unpack

from headrace.dsl import joins, retired_names
from headrace.dsl.functions import Function, printer, topic_extractor, with_key, with_key_joiner
from headrace.dsl.grouped import KGroupedStream
from headrace.dsl.joins import JoinKind, JoinOptions, Side
from headrace.dsl.logical.graph import Place, repartition
from headrace.dsl.logical.steps import Operate, Step, Write
from headrace.dsl.materialization import StoreOption, materialized, named, table_store, with_serdes
from headrace.dsl.table import GlobalKTable, KTable
from headrace.topology import validation
from headrace.topology.builder import stores_of
from headrace.topology.naming import valid_name
from headrace.topology.nodes import (
    Branch,
    Filter,
    FlatMap,
    FlatMapValues,
    Foreach,
    Map,
    MapValues,
    Partitioner,
    PassThrough,
    Peek,
    Process,
    SelectKey,
    SerdeLike,
    Sink,
    TableSource,
    TopicExtractor,
)


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class KStream:
    """A stream of records; `rekeyed`: its keys have changed since it was last partitioned by them."""

    place: Place
    rekeyed: bool = False

    def __repr__(self) -> str:
        return f"<KStream {self.place.name}>"

    # ------------------------------------------------------------------------------------------- record by record
    def filter(self, keep: Function, *, name: str | None = None) -> KStream:
        """Keep the records for which `keep` is true."""
        return self._then(Filter(self._name(name, "KSTREAM-FILTER-"), with_key(keep)))

    def filter_not(self, drop: Function, *, name: str | None = None) -> KStream:
        """Drop the records for which `drop` is true."""
        return self._then(Filter(self._name(name, "KSTREAM-FILTER-"), with_key(drop), negate=True))

    def map(self, change: Function, *, name: str | None = None) -> KStream:
        """One `(key, value)` for every record."""
        node = Map(self._name(name, "KSTREAM-MAP-"), with_key(change))
        return KStream(self.place.changing(node, key=True, value=True), rekeyed=True)

    def map_values(self, change: Function, *, name: str | None = None) -> KStream:
        """Another value for every record."""
        node = MapValues(self._name(name, "KSTREAM-MAPVALUES-"), with_key(change))
        return KStream(self.place.changing(node, value=True), self.rekeyed)

    def flat_map(self, change: Function, *, name: str | None = None) -> KStream:
        """Any number of `(key, value)` pairs for every record."""
        node = FlatMap(self._name(name, "KSTREAM-FLATMAP-"), with_key(change))
        return KStream(self.place.changing(node, key=True, value=True), rekeyed=True)

    def flat_map_values(self, change: Function, *, name: str | None = None) -> KStream:
        """Any number of values for every record."""
        node = FlatMapValues(self._name(name, "KSTREAM-FLATMAPVALUES-"), with_key(change))
        return KStream(self.place.changing(node, value=True), self.rekeyed)

    def select_key(self, select: Function, *, name: str | None = None) -> KStream:
        """Another key for every record."""
        node = SelectKey(self._name(name, "KSTREAM-KEY-SELECT-"), with_key(select))
        return KStream(self.place.changing(node, key=True), rekeyed=True)

    def peek(self, look: Function, *, name: str | None = None) -> KStream:
        """Look at every record and pass it on."""
        return self._then(Peek(self._name(name, "KSTREAM-PEEK-"), with_key(look)))

    def foreach(self, look: Function, *, name: str | None = None) -> None:
        """Look at every record; nothing follows."""
        self._then(Foreach(self._name(name, "KSTREAM-FOREACH-"), with_key(look)))

    def print(self, *, label: str | None = None, to: TextIO | None = None, name: str | None = None) -> None:
        """Print every record, to standard output or to an open file."""
        self._then(Foreach(self._name(name, "KSTREAM-PRINTER-"), printer(label or self.place.name, to)))

    def process(self, supplier: Callable[[], Any], *store_names: str, name: str | None = None) -> KStream:
        """Hand every record to a processor, which may forward any number of records."""
        name = self.place.draft.names.take("KSTREAM-PROCESSOR-") if name is None else valid_name(name)
        place = self._process(Process(name, supplier), store_names)
        return KStream(replace(place, key=None, value=None), rekeyed=True)

    def process_values(self, supplier: Callable[[], Any], *store_names: str, name: str | None = None) -> KStream:
        """Hand every record to a processor that cannot change its key."""
        name = self.place.draft.names.take("KSTREAM-PROCESSVALUES-") if name is None else valid_name(name)
        place = self._process(Process(name, supplier, fixed_key=True), store_names)
        return KStream(replace(place, value=None), self.rekeyed)

    # ------------------------------------------------------------------------------------------- streams and topics
    def split(self, *, name: str | None = None) -> BranchedKStream[KStream]:
        """Send every record down the first branch whose predicate holds."""
        return BranchedKStream(self.place, name, lambda place: KStream(place, self.rekeyed))

    def merge(self, other: KStream, *, name: str | None = None) -> KStream:
        """The records of both streams."""
        mine, theirs = self.place, other.place
        node = PassThrough(self._name(name, "KSTREAM-MERGE-"))
        step = mine.draft.add(Step(node.name, Operate(node), merges=True), mine.step, theirs.step)
        key = mine.key if mine.key == theirs.key else None
        value = mine.value if mine.value == theirs.value else None
        place = Place(mine.draft, step, node.name, key, value, mine.sources | theirs.sources)
        return KStream(place, self.rekeyed or other.rekeyed)

    def repartition(
        self,
        *,
        name: str | None = None,
        partitions: int | None = None,
        key: SerdeLike | None = None,
        value: SerdeLike | None = None,
        partitioner: Partitioner | None = None,
    ) -> KStream:
        """Through a topic of the application's own, to the partition of the key."""
        if partitions is not None and partitions < 1:
            raise ValueError(f"a topic has at least one partition, not {partitions}")
        place = self._with_serdes(key, value)
        prefix = place.draft.names.take("KSTREAM-REPARTITION-") if name is None else valid_name(name)
        step = repartition(
            place.draft, prefix, place.key, place.value, partitioner=partitioner, partitions=partitions, mergeable=False
        )
        return KStream(replace(place.at(step), sources=frozenset({step.name})))

    def to(
        self,
        topic: str | TopicExtractor,
        *,
        key: SerdeLike | None = None,
        value: SerdeLike | None = None,
        partitioner: Partitioner | None = None,
        name: str | None = None,
    ) -> None:
        """Write to a topic, or to the one that `topic(key, value, context)` names."""
        place = self._with_serdes(key, value)
        target = topic if isinstance(topic, str) else topic_extractor(topic)
        sink = Sink(self._name(name, "KSTREAM-SINK-"), target, place.key, place.value, partitioner)
        place.at(Step(sink.name, Write(sink)))

    def to_table(self, *, store: StoreOption = None, name: str | None = None) -> KTable:
        """The latest value of every key."""
        table = self._name(name, "KSTREAM-TOTABLE-")
        given = with_serdes(materialized(store), self.place.key, self.place.value)
        spec = table_store(given, named(given, self.place.draft.names, "KSTREAM-TOTABLE-"))
        place = self._with_serdes(given.key, given.value)
        if self.rekeyed:
            place = place.at(repartition(place.draft, table, place.key, place.value))
            place = replace(place, sources=frozenset({place.name}))
        node = TableSource(table, given.name)
        step = Step(table, Operate(node, (spec,)), versioned=given.history is not None)
        return KTable(place.at(step), given.name)

    # ----------------------------------------------------------------------------------------------------- groups
    def group_by_key(
        self, *, key: SerdeLike | None = None, value: SerdeLike | None = None, name: str | None = None
    ) -> KGroupedStream:
        """Group the records by their keys."""
        return KGroupedStream(self._with_serdes(key, value), self.rekeyed, None if name is None else valid_name(name))

    def group_by(
        self, select: Function, *, key: SerdeLike | None = None, value: SerdeLike | None = None, name: str | None = None
    ) -> KGroupedStream:
        """Group the records by the keys that `select` gives."""
        return self.select_key(select, name=name).group_by_key(key=key, value=value, name=name)

    # ------------------------------------------------------------------------------------------------------ joins
    def join(self, other: KStream | KTable | GlobalKTable, joiner: Function, **options: Unpack[JoinOptions]) -> KStream:
        """Records with a partner: of the other stream in the same window, in the table, or in the global table."""
        return self._join(other, joiner, "inner", options)

    def left_join(
        self, other: KStream | KTable | GlobalKTable, joiner: Function, **options: Unpack[JoinOptions]
    ) -> KStream:
        """All records of this stream, with None for a partner that is not there."""
        return self._join(other, joiner, "left", options)

    def outer_join(self, other: KStream, joiner: Function, **options: Unpack[JoinOptions]) -> KStream:
        """All records of both streams, with None for a partner that is not there."""
        if not isinstance(other, KStream):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError("a stream has an outer join only with another stream: use left_join with a table")
        return self._join(other, joiner, "outer", options)

    def _join(
        self, other: KStream | KTable | GlobalKTable, joiner: Function, kind: JoinKind, options: JoinOptions
    ) -> KStream:
        mine, f = Side(self.place, self.rekeyed), with_key_joiner(joiner)
        match other:
            case KStream():
                return KStream(joins.with_stream(mine, Side(other.place, other.rekeyed), f, kind, options))
            case KTable():
                return KStream(joins.with_table(mine, other.place, f, kind, options))
            case GlobalKTable():
                return KStream(joins.with_global_table(mine, other.store, f, kind, options), self.rekeyed)
            case _:
                raise TypeError(f"a stream is joined with a KStream, a KTable or a GlobalKTable, not with {other!r}")

    # --------------------------------------------------------------------------------------------------------------
    def _name(self, name: str | None, prefix: str) -> str:
        return self.place.named(name, prefix)

    def _then(self, node: Filter | Peek | Foreach) -> KStream:
        return KStream(self.place.then(node), self.rekeyed)

    def _process(self, node: Process, store_names: tuple[str, ...]) -> Place:
        validation.makes_new_ones(node.supplier, node.name)
        return self.place.then(node, stores_of(node.supplier), store_names)

    def _with_serdes(self, key: SerdeLike | None, value: SerdeLike | None) -> Place:
        place = self.place
        return replace(place, key=place.key if key is None else key, value=place.value if value is None else value)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            retired_names.refuse("KStream", retired_names.STREAM, name)


Stream = TypeVar("Stream")
Then = Callable[[Stream], Stream | None]


class BranchedKStream(Generic[Stream]):
    """Branches are asked in the order in which they are added; the streams are told apart by name."""

    def __init__(self, place: Place, name: str | None, stream: Callable[[Place], Stream]) -> None:
        self._name = place.named(name, "KSTREAM-BRANCH-")
        self._split = Operate(Branch(self._name, (), ()))
        self._place = place.at(Step(self._name, self._split))
        self._stream = stream
        self._streams: dict[str, Stream] = {}
        self._predicates: list[Function] = []
        self._branches: list[str] = []

    def branch(self, predicate: Function, *, name: str | None = None, then: Then[Stream] | None = None) -> Self:
        """Add a branch; `then` gets it, and what it returns takes its place among the streams."""
        self._predicates.append(with_key(predicate, "a predicate"))
        self._add(f"{self._name}{len(self._predicates)}" if name is None else valid_name(self._name + name), then)
        return self

    def default_branch(self, *, name: str | None = None, then: Then[Stream] | None = None) -> dict[str, Stream]:
        """What no predicate wants; gives all streams by name."""
        self._add(f"{self._name}0" if name is None else valid_name(self._name + name), then)
        return self._streams

    def no_default_branch(self) -> dict[str, Stream]:
        """Drop what no predicate wants; gives all streams by name."""
        return self._streams

    def _add(self, name: str, then: Then[Stream] | None) -> None:
        self._place.draft.names.take(name)
        self._branches.append(name)
        self._split.node = Branch(self._name, tuple(self._predicates), tuple(self._branches))
        stream = self._stream(self._place.then(PassThrough(name)))
        kept = stream if then is None else then(stream)
        if kept is not None:
            self._streams[name] = kept
