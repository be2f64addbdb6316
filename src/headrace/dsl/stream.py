"""KStream, a stream of records with one method for each operator; BranchedKStream, a stream that is being split."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Generic, Literal, Self, TextIO, cast, overload

from headrace.dsl import joins
from headrace.dsl.functions import Function, exactly, printer, takes_arrow, topic_extractor, with_key, with_key_joiner
from headrace.dsl.grouped import KGroupedStream
from headrace.dsl.joins import JoinKind, JoinOptions, Side
from headrace.dsl.logical.graph import Operate, Place, Step, Write, repartition
from headrace.dsl.materialization import StoreOption, materialized, named, table_store, with_serdes
from headrace.dsl.options import check_serde
from headrace.dsl.preview import Preview, preview
from headrace.dsl.table import GlobalKTable, KTable
from headrace.dsl.types import (
    K2,
    V2,
    Encoder,
    FixedKeyRecordProcessor,
    K,
    K_co,
    PartitionFunction,
    R,
    RecordProcessor,
    V,
    V_co,
)
from headrace.hints import explain_names
from headrace.model import sink as sinks
from headrace.model.windows import JoinWindows, milliseconds
from headrace.serde.internal import ROW
from headrace.serde.protocol import Serde
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
    MapValuesAsync,
    MapValuesBatch,
    PassThrough,
    Peek,
    Process,
    SelectKey,
    SerdeLike,
    Sink,
    TableSource,
)
from headrace.topology.processor import FixedKeyProcessor, Processor


@explain_names(
    {
        "aggregate": "group_by_key().aggregate(init, f)",
        "aggregate_by_key": "group_by_key().aggregate(init, f)",
        "branch": "split().branch(predicate, name=…).default_branch()",
        "count": "group_by_key().count()",
        "count_by_key": "group_by_key().count()",
        "flat_transform": "process(supplier, *store_names)",
        "flat_transform_values": "process_values(supplier, *store_names)",
        "for_each": "foreach(f)",
        "reduce": "group_by_key().reduce(f)",
        "reduce_by_key": "group_by_key().reduce(f)",
        "through": "repartition(name=…), or to(topic) and builder.stream(topic)",
        "transform": "process(supplier, *store_names)",
        "transform_values": "process_values(supplier, *store_names)",
        "windowed_by": "group_by_key().windowed_by(windows)",
        "write_as_text": "print(to=open(path, 'w'))",
    }
)
@dataclass(frozen=True, eq=False, repr=False, slots=True)
class KStream(Generic[K_co, V_co]):
    """A stream of records. `StreamsBuilder.stream` makes one, and each operator makes another.

    A function of values takes `(value)` or `(key, value)`; a joiner takes `(left, right)` or `(key, left, right)`. The
    options `key=` and `value=` are serdes.

    >>> from headrace import StreamsBuilder, serde
    >>> from headrace.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> lines = builder.stream("lines", key=serde.STRING, value=serde.STRING)
    >>> full_lines = lines.filter(lambda line: line).map_values(lambda key, line: f"{key}: {line}")
    >>> full_lines.to("full-lines", value=serde.STRING)
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input_topic("lines", key=serde.STRING, value=serde.STRING).pipe_key_values([("a", "x"), ("b", "")])
    ...     driver.output_topic("full-lines", value=serde.STRING).read_values()
    ['a: x']
    """

    place: Place
    rekeyed: bool = False  # the keys have changed since the stream was last partitioned by them

    def __repr__(self) -> str:
        return f"<KStream {self.place.name}>"

    def preview(
        self, records: Iterable[Any] | Mapping[str, Iterable[Any]], *, config: Mapping[str, Any] | None = None
    ) -> Preview[K_co, V_co]:
        """Run the topology up to here on sample data, and return what comes out: for notebooks and the console.

        A sample is a `Record`, a (key, value) pair, or a value. If the stream depends on several topics, give a dict of
        samples by topic. They go in by timestamp; a pair or a value alone has the timestamp 0. Only what the stream
        depends on runs, in the test driver: no log is read, nothing is written.

        >>> from headrace import StreamsBuilder, serde
        >>> orders = StreamsBuilder().stream("orders", key=serde.STRING, value=serde.LONG)
        >>> orders.filter(lambda amount: amount > 10).map_values(lambda n: 2 * n).preview([("ada", 5), ("bob", 20)])
        key  value  timestamp
        bob  40     0
        """
        return preview(self.place, records, is_table=False, config=config)

    # ------------------------------------------------------------------------------------------- record by record
    @overload
    def filter(self, keep: Callable[[V_co], object], *, name: str | None = None) -> KStream[K_co, V_co]: ...
    @overload
    def filter(self, keep: Callable[[K_co, V_co], object], *, name: str | None = None) -> KStream[K_co, V_co]: ...
    def filter(self, keep: Function, *, name: str | None = None) -> KStream[K_co, V_co]:
        """Keep the records for which `keep` is true.

        >>> from headrace import StreamsBuilder, serde
        >>> StreamsBuilder().stream("prices", value=serde.LONG).filter(lambda price: price > 100)
        <KStream KSTREAM-FILTER-0000000001>
        """
        return self._then(Filter(self._name(name, "KSTREAM-FILTER-"), with_key(keep)))

    @overload
    def filter_not(self, drop: Callable[[V_co], object], *, name: str | None = None) -> KStream[K_co, V_co]: ...
    @overload
    def filter_not(self, drop: Callable[[K_co, V_co], object], *, name: str | None = None) -> KStream[K_co, V_co]: ...
    def filter_not(self, drop: Function, *, name: str | None = None) -> KStream[K_co, V_co]:
        """Drop the records for which `drop` is true."""
        return self._then(Filter(self._name(name, "KSTREAM-FILTER-"), with_key(drop), negate=True))

    @overload
    def map(self, change: Callable[[V_co], tuple[K2, V2]], *, name: str | None = None) -> KStream[K2, V2]: ...
    @overload
    def map(self, change: Callable[[K_co, V_co], tuple[K2, V2]], *, name: str | None = None) -> KStream[K2, V2]: ...
    def map(self, change: Function, *, name: str | None = None) -> KStream[Any, Any]:
        """Replace each record by the `(key, value)` that `change` returns.

        >>> from headrace import StreamsBuilder, serde
        >>> StreamsBuilder().stream("lines", value=serde.STRING).map(lambda line: (line[0], len(line)))
        <KStream KSTREAM-MAP-0000000001>
        """
        node = Map(self._name(name, "KSTREAM-MAP-"), with_key(change))
        return KStream(self.place.changing(node, key=True, value=True), rekeyed=True)

    @overload
    def map_values(self, change: Callable[[V_co], V2], *, name: str | None = None) -> KStream[K_co, V2]: ...
    @overload
    def map_values(self, change: Callable[[K_co, V_co], V2], *, name: str | None = None) -> KStream[K_co, V2]: ...
    def map_values(self, change: Function, *, name: str | None = None) -> KStream[K_co, Any]:
        """Replace each value by the one that `change` returns.

        >>> from headrace import StreamsBuilder, serde
        >>> StreamsBuilder().stream("lines", value=serde.STRING).map_values(str.upper)
        <KStream KSTREAM-MAPVALUES-0000000001>
        """
        node = MapValues(self._name(name, "KSTREAM-MAPVALUES-"), with_key(change))
        return KStream(self.place.changing(node, value=True), self.rekeyed)

    @overload
    def map_values_batch(
        self,
        change: Callable[[list[V_co]], Iterable[V2]],
        *,
        max_records: int = 1000,
        arrow: Literal[False] | None = None,
        name: str | None = None,
    ) -> KStream[K_co, V2]: ...
    @overload
    def map_values_batch(
        self,
        change: Callable[[Any], Any],
        *,
        max_records: int = 1000,
        arrow: bool | None = None,
        name: str | None = None,
    ) -> KStream[K_co, Any]: ...
    def map_values_batch(
        self,
        change: Callable[[Any], Any],
        *,
        max_records: int = 1000,
        arrow: bool | None = None,
        name: str | None = None,
    ) -> KStream[K_co, Any]:
        """Replace values by those that `change` returns for a list of them: for models and vectorised code.

        `change` gets up to `max_records` values of a batch, and returns as many, in the same order. It gets an Arrow
        array if its parameter is annotated with `pyarrow.Array`, or with `arrow=True`. If it raises, it is called again
        for each value alone, and the records for which it raises then go where the exception handler says.

        In a `TopologyTestDriver` a batch is one record.

        >>> from headrace import StreamsBuilder, serde
        >>> from headrace.testing import TopologyTestDriver
        >>> builder = StreamsBuilder()
        >>> numbers = builder.stream("numbers", value=serde.DOUBLE)
        >>> scaled = numbers.map_values_batch(lambda values: [value / 10 for value in values], max_records=500)
        >>> scaled.to("scaled", value=serde.DOUBLE)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input_topic("numbers", value=serde.DOUBLE).pipe_all([1.0, 2.0])
        ...     driver.output_topic("scaled", value=serde.DOUBLE).read_values()
        [0.1, 0.2]
        """
        function = exactly(1, change, "a function of many values")
        if max_records < 1:
            raise ValueError(f"max_records is 1 or more, not {max_records}")
        wants_arrow = takes_arrow(function) if arrow is None else arrow
        node = MapValuesBatch(self._name(name, "KSTREAM-MAPVALUES-BATCH-"), function, max_records, wants_arrow)
        return KStream(self.place.changing(node, value=True), self.rekeyed)

    @overload
    def map_values_async(
        self,
        lookup: Callable[[V_co], Awaitable[V2]] | Callable[[K_co, V_co], Awaitable[V2]],
        *,
        capacity: int = 100,
        timeout: int | timedelta | None = 10_000,
        retry: int = 0,
        cache: int | timedelta | None = None,
        max_cached: int = 10_000,
        name: str | None = None,
    ) -> KStream[K_co, V2]: ...
    @overload
    def map_values_async(
        self,
        lookup: Callable[[R], Awaitable[V]],
        *,
        on: Callable[[V_co], R] | Callable[[K_co, V_co], R],
        joiner: Callable[[V_co, V], V2] | Callable[[K_co, V_co, V], V2],
        capacity: int = 100,
        timeout: int | timedelta | None = 10_000,
        retry: int = 0,
        cache: int | timedelta | None = None,
        max_cached: int = 10_000,
        name: str | None = None,
    ) -> KStream[K_co, V2]: ...
    @overload
    def map_values_async(
        self,
        lookup: Callable[..., Any],
        *,
        on: Callable[..., Any] | None = None,
        joiner: Callable[..., Any] | None = None,
        capacity: int = 100,
        timeout: int | timedelta | None = 10_000,
        retry: int = 0,
        cache: int | timedelta | None = None,
        max_cached: int = 10_000,
        name: str | None = None,
    ) -> KStream[K_co, Any]: ...
    def map_values_async(
        self,
        lookup: Callable[..., Any],
        *,
        on: Callable[..., Any] | None = None,
        joiner: Callable[..., Any] | None = None,
        capacity: int = 100,
        timeout: int | timedelta | None = 10_000,
        retry: int = 0,
        cache: int | timedelta | None = None,
        max_cached: int = 10_000,
        name: str | None = None,
    ) -> KStream[K_co, Any]:
        """Replace values by what `lookup` finds elsewhere: for calls of other services. Up to `capacity` run at a time.

        `lookup` is an `async def` of the value, or of key and value; a plain function runs in threads. The records keep
        their order, and all calls of a batch end before it is committed, so results are exactly once, calls are not.
        A call that takes longer than `timeout` ms or raises is repeated `retry` times, with growing pauses; then the
        record goes where the exception handler says.

        With `on`, `lookup` gets what `on` chooses of the value, and `joiner(value, found)` makes the new value. Equal
        arguments are looked up once in a batch, and answers are used again for `cache` ms, for `max_cached` arguments.

        >>> from headrace import StreamsBuilder, serde
        >>> from headrace.testing import TopologyTestDriver
        >>> async def find_name(customer: int) -> str:
        ...     return {1: "Ada"}[customer]
        >>> builder = StreamsBuilder()
        >>> orders = builder.stream("orders", value=serde.JSON)
        >>> named = orders.map_values_async(
        ...     find_name, on=lambda order: order["by"], joiner=lambda order, name: {**order, "by": name}, cache=60_000
        ... )
        >>> named.to("named", value=serde.JSON)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input_topic("orders", value=serde.JSON).pipe({"by": 1, "what": "pen"})
        ...     driver.output_topic("named", value=serde.JSON).read_values()
        [{'by': 'Ada', 'what': 'pen'}]
        """
        if capacity < 1 or retry < 0 or max_cached < 0:
            raise ValueError(f"capacity={capacity}, retry={retry}, max_cached={max_cached}: at least 1, 0 and 0")
        if (on is None) != (joiner is None):
            raise TypeError("on= chooses what is looked up, joiner= what becomes of the value: give both or none")
        node = MapValuesAsync(
            self._name(name, "KSTREAM-MAPVALUES-ASYNC-"),
            with_key(lookup) if on is None else exactly(1, lookup, "a lookup"),
            None if on is None else with_key(on),
            None if joiner is None else with_key_joiner(joiner),
            capacity,
            None if timeout is None else milliseconds(timeout, "the timeout", at_least=1),
            retry,
            0 if cache is None else max_cached,
            None if cache is None else milliseconds(cache, "the time in the cache"),
        )
        return KStream(self.place.changing(node, value=True), self.rekeyed)

    @overload
    def flat_map(
        self, change: Callable[[V_co], list[tuple[K2, V2]]], *, name: str | None = None
    ) -> KStream[K2, V2]: ...
    @overload
    def flat_map(
        self, change: Callable[[K_co, V_co], list[tuple[K2, V2]]], *, name: str | None = None
    ) -> KStream[K2, V2]: ...
    @overload
    def flat_map(
        self, change: Callable[[V_co], Iterable[tuple[K2, V2]]], *, name: str | None = None
    ) -> KStream[K2, V2]: ...
    @overload
    def flat_map(
        self, change: Callable[[K_co, V_co], Iterable[tuple[K2, V2]]], *, name: str | None = None
    ) -> KStream[K2, V2]: ...
    def flat_map(self, change: Function, *, name: str | None = None) -> KStream[Any, Any]:
        """Replace each record by any number of `(key, value)` pairs.

        >>> from headrace import StreamsBuilder, serde
        >>> StreamsBuilder().stream("lines", value=serde.STRING).flat_map(lambda line: [(w, 1) for w in line.split()])
        <KStream KSTREAM-FLATMAP-0000000001>
        """
        node = FlatMap(self._name(name, "KSTREAM-FLATMAP-"), with_key(change))
        return KStream(self.place.changing(node, key=True, value=True), rekeyed=True)

    @overload
    def flat_map_values(
        self, change: Callable[[V_co], Iterable[V2]], *, name: str | None = None
    ) -> KStream[K_co, V2]: ...
    @overload
    def flat_map_values(
        self, change: Callable[[K_co, V_co], Iterable[V2]], *, name: str | None = None
    ) -> KStream[K_co, V2]: ...
    def flat_map_values(self, change: Function, *, name: str | None = None) -> KStream[K_co, Any]:
        """Replace each value by any number of values.

        >>> from headrace import StreamsBuilder, serde
        >>> StreamsBuilder().stream("lines", value=serde.STRING).flat_map_values(str.split)
        <KStream KSTREAM-FLATMAPVALUES-0000000001>
        """
        node = FlatMapValues(self._name(name, "KSTREAM-FLATMAPVALUES-"), with_key(change))
        return KStream(self.place.changing(node, value=True), self.rekeyed)

    @overload
    def select_key(self, select: Callable[[V_co], K2], *, name: str | None = None) -> KStream[K2, V_co]: ...
    @overload
    def select_key(self, select: Callable[[K_co, V_co], K2], *, name: str | None = None) -> KStream[K2, V_co]: ...
    def select_key(self, select: Function, *, name: str | None = None) -> KStream[Any, V_co]:
        """Replace each key by the one that `select` returns.

        >>> from headrace import StreamsBuilder, serde
        >>> StreamsBuilder().stream("orders", value=serde.JSON).select_key(lambda order: order["customer"])
        <KStream KSTREAM-KEY-SELECT-0000000001>
        """
        node = SelectKey(self._name(name, "KSTREAM-KEY-SELECT-"), with_key(select))
        return KStream(self.place.changing(node, key=True), rekeyed=True)

    @overload
    def peek(self, look: Callable[[V_co], object], *, name: str | None = None) -> KStream[K_co, V_co]: ...
    @overload
    def peek(self, look: Callable[[K_co, V_co], object], *, name: str | None = None) -> KStream[K_co, V_co]: ...
    def peek(self, look: Function, *, name: str | None = None) -> KStream[K_co, V_co]:
        """Call `look` for each record and pass the record on."""
        return self._then(Peek(self._name(name, "KSTREAM-PEEK-"), with_key(look)))

    @overload
    def foreach(self, look: Callable[[V_co], object], *, name: str | None = None) -> None: ...
    @overload
    def foreach(self, look: Callable[[K_co, V_co], object], *, name: str | None = None) -> None: ...
    def foreach(self, look: Function, *, name: str | None = None) -> None:
        """Call `look` for each record; nothing follows."""
        self._then(Foreach(self._name(name, "KSTREAM-FOREACH-"), with_key(look)))

    def print(self, *, label: str | None = None, to: TextIO | None = None, name: str | None = None) -> None:
        """Print each record as `[label]: key, value`, to standard output or to an open file."""
        self._then(Foreach(self._name(name, "KSTREAM-PRINTER-"), printer(label or self.place.name, to)))

    @overload
    def process(
        self, supplier: Callable[[], Processor[K_co, V_co, K2, V2]], *store_names: str, name: str | None = None
    ) -> KStream[K2, V2]: ...
    @overload
    def process(
        self, supplier: Callable[[], RecordProcessor[K_co, V_co]], *store_names: str, name: str | None = None
    ) -> KStream[Any, Any]: ...
    def process(
        self, supplier: Callable[[], RecordProcessor[K_co, V_co]], *store_names: str, name: str | None = None
    ) -> KStream[Any, Any]:
        """Give each record to a processor, which forwards any number of records.

        `supplier` is called once for each task: it is the processor's class, or a function. `store_names` are the
        stores that the processor uses.

        >>> from headrace import Processor, Record, StreamsBuilder, serde
        >>> class Later(Processor[str, str, str, str]):
        ...     def init(self, context):
        ...         self.context = context
        ...     def process(self, record: Record[str, str]) -> None:
        ...         self.context.forward(record.with_timestamp(record.timestamp + 1000))
        >>> StreamsBuilder().stream("lines", key=serde.STRING, value=serde.STRING).process(Later)
        <KStream KSTREAM-PROCESSOR-0000000001>
        """
        name = self.place.draft.names.take("KSTREAM-PROCESSOR-") if name is None else valid_name(name)
        place = self._process(Process(name, supplier), store_names)
        return KStream(replace(place, key=None, value=None), rekeyed=True)

    @overload
    def process_values(
        self, supplier: Callable[[], FixedKeyProcessor[K_co, V_co, V2]], *store_names: str, name: str | None = None
    ) -> KStream[K_co, V2]: ...
    @overload
    def process_values(
        self, supplier: Callable[[], FixedKeyRecordProcessor[K_co, V_co]], *store_names: str, name: str | None = None
    ) -> KStream[K_co, Any]: ...
    def process_values(
        self, supplier: Callable[[], FixedKeyRecordProcessor[K_co, V_co]], *store_names: str, name: str | None = None
    ) -> KStream[K_co, Any]:
        """Give each record to a `FixedKeyProcessor`, which cannot change keys. So no repartition is needed after it."""
        name = self.place.draft.names.take("KSTREAM-PROCESSVALUES-") if name is None else valid_name(name)
        place = self._process(Process(name, supplier, fixed_key=True), store_names)
        return KStream(replace(place, value=None), self.rekeyed)

    # ------------------------------------------------------------------------------------------- streams and topics
    def split(self, *, name: str | None = None) -> BranchedKStream[K_co, V_co]:
        """Split the stream: each record goes to the first branch whose predicate is true.

        >>> from headrace import StreamsBuilder, serde
        >>> prices = StreamsBuilder().stream("prices", value=serde.LONG)
        >>> prices.split(name="price-").branch(lambda price: price > 100, name="high").default_branch(name="low")
        {'price-high': <KStream price-high>, 'price-low': <KStream price-low>}
        """
        return BranchedKStream(self, name)

    def merge(self, other: KStream[K2, V2], *, name: str | None = None) -> KStream[K_co | K2, V_co | V2]:
        """The records of both streams.

        >>> from headrace import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> builder.stream("shop").merge(builder.stream("web"))
        <KStream KSTREAM-MERGE-0000000002>
        """
        if not isinstance(other, KStream):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a stream is merged with a KStream, not with {other!r}: a table has to_stream()")
        mine, theirs = self.place, other.place
        node = PassThrough(self._name(name, "KSTREAM-MERGE-"))
        step = mine.draft.add(Step(node.name, Operate(node), merges=True), mine.step, theirs.step)
        key = mine.key if mine.key == theirs.key else None
        value = mine.value if mine.value == theirs.value else None
        place = Place(mine.draft, step, node.name, key, value, mine.sources | theirs.sources)
        return KStream(place, self.rekeyed or other.rekeyed)

    def repartition(
        self: KStream[K, V],
        *,
        name: str | None = None,
        partitions: int | None = None,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        partitioner: PartitionFunction[K, V] | None = None,
    ) -> KStream[K, V]:
        """Send the records through an internal topic, each to the partition of its key.

        >>> from headrace import StreamsBuilder
        >>> StreamsBuilder().stream("lines").repartition(name="by-line", partitions=4)
        <KStream by-line-repartition-source>
        """
        if partitions is not None and partitions < 1:
            raise ValueError(f"a topic has at least one partition, not {partitions}")
        place = self._with_serdes(key, value)
        prefix = place.draft.names.take("KSTREAM-REPARTITION-") if name is None else valid_name(name)
        step = repartition(
            place.draft, prefix, place.key, place.value, partitioner=partitioner, partitions=partitions, mergeable=False
        )
        return KStream(replace(place.at(step), sources=frozenset({step.name})))

    @overload
    def to(
        self: KStream[K | None, V | None],
        topic: str | Callable[[K, V, Any], str],
        *,
        key: Encoder[K] | None = None,
        value: Encoder[V] | None = None,
        partitioner: PartitionFunction[K, V] | None = None,
        name: str | None = None,
    ) -> None: ...
    @overload
    def to(
        self: KStream[K | None, V | None],
        topic: Callable[[K, V], str],
        *,
        key: Encoder[K] | None = None,
        value: Encoder[V] | None = None,
        partitioner: PartitionFunction[K, V] | None = None,
        name: str | None = None,
    ) -> None: ...
    def to(
        self,
        topic: str | Function,
        *,
        key: Encoder[Any] | None = None,
        value: Encoder[Any] | None = None,
        partitioner: PartitionFunction[Any, Any] | None = None,
        name: str | None = None,
    ) -> None:
        """Write the records to a topic, or to the topic that `topic(key, value, context)` returns.

        >>> from headrace import StreamsBuilder, serde
        >>> lines = StreamsBuilder().stream("lines", key=serde.STRING, value=serde.STRING)
        >>> lines.map_values(len).to("lengths", value=serde.LONG)
        """
        place = self._with_serdes(cast("SerdeLike | None", key), cast("SerdeLike | None", value))
        target = topic if isinstance(topic, str) else topic_extractor(topic)
        sink = Sink(self._name(name, "KSTREAM-SINK-"), target, place.key, place.value, partitioner)
        place.at(Step(sink.name, Write(sink)))

    def sink(
        self,
        sink: sinks.Sink,
        *,
        key: Encoder[Any] | None = None,
        value: Encoder[Any] | None = None,
        on_rejected: Literal["fail", "continue", "dead_letter"] | None = None,
        name: str | None = None,
    ) -> None:
        """Write the records to another system: `headrace.connect` has the sinks.

        The target stores `name` with the batches that it has, so keep it when the topology changes; without one it is
        the sink's own, such as `orders` for `PostgresSink(dsn, "orders")`. `on_rejected` says what happens to a record
        that the target does not take: stop with an error, leave it out, or write it to the dead-letter topic. Without
        it `production.exception.handler` decides.

        >>> from headrace import StreamsBuilder, serde
        >>> from headrace.connect import FileSink
        >>> builder = StreamsBuilder()
        >>> builder.stream("orders", value=serde.JSON).sink(FileSink("/var/lib/shop/orders"), name="order-files")
        >>> print(builder.build().describe())
        Topologies:
           Sub-topology: 0
            Source: KSTREAM-SOURCE-0000000000 (topics: [orders])
              --> order-files
            Sink: order-files (sink: order-files, atomic)
              <-- KSTREAM-SOURCE-0000000000
        <BLANKLINE>
        <BLANKLINE>
        """
        if not isinstance(sink, sinks.Sink):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"sink() takes a sink of headrace.connect, or one of your own, not {sink!r}")
        if on_rejected not in (None, "fail", "continue", "dead_letter"):
            raise ValueError(f"on_rejected is 'fail', 'continue' or 'dead_letter', not {on_rejected!r}")
        place = self._with_serdes(cast("SerdeLike | None", key), cast("SerdeLike | None", value))
        fallback = None if sink.takes_bytes else ROW
        node = Sink(
            self._name(name, "KSTREAM-SINK-"),
            sinks.sink_topic(name or sink.label),
            place.key or fallback,
            place.value or fallback,
            target=sink,
            on_rejected=on_rejected,
        )
        place.at(Step(node.name, Write(node)))

    def to_spark(
        self,
        function: Callable[[Any, int], object],
        *,
        schema: Any = None,
        key: str | Sequence[str] = (),
        timestamp: str | None = None,
        on_rejected: Literal["fail", "continue", "dead_letter"] | None = None,
        name: str | None = None,
    ) -> None:
        """Give the records of each batch to a Spark DataFrame writer: `function(frame, batch)`, in the driver.

        `frame` is a Spark DataFrame, `batch` the number of the batch. After a crash the function may be called again
        with the same records and the same number. If it stores the number with the data, or overwrites what has the
        number, every record has its effect exactly once; if not, at least once. The frame is valid during the call.

        The columns are the fields of the values. `key` names the columns of the record's key, `timestamp` that of its
        timestamp. `schema`, a type with annotations, a mapping from names to types or a schema of pyarrow, says which
        columns there are; without it they are inferred from each batch. `name` and `on_rejected` are those of `sink`.

        >>> from headrace import StreamsBuilder, serde
        >>> def write(frame, batch):
        ...     frame.write.mode("overwrite").parquet(f"/lake/orders/batch={batch}")
        >>> builder = StreamsBuilder()
        >>> orders = builder.stream("orders", key=serde.STRING, value=serde.JSON)
        >>> orders.to_spark(write, key="order", schema={"order": str, "amount": float}, name="lake")
        >>> print(builder.build().describe())
        Topologies:
           Sub-topology: 0
            Source: KSTREAM-SOURCE-0000000000 (topics: [orders])
              --> lake
            Sink: lake (sink: lake, atomic if the function uses the batch number)
              <-- KSTREAM-SOURCE-0000000000
        <BLANKLINE>
        <BLANKLINE>
        """
        from headrace.connect.spark_sink import SparkSink  # noqa: PLC0415 - a topology without it need not import Arrow

        self.sink(SparkSink(function, schema, key, timestamp), on_rejected=on_rejected, name=name)

    def to_table(
        self: KStream[K | None, V | None], *, store: StoreOption[K, V] = None, name: str | None = None
    ) -> KTable[K, V]:
        """The table of the latest value of each key; a record without a value deletes the row of its key.

        >>> from headrace import StreamsBuilder, serde
        >>> StreamsBuilder().stream("prices", key=serde.STRING, value=serde.LONG).to_table(store="prices")
        <KTable KSTREAM-TOTABLE-0000000001>
        """
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
        self: KStream[K | None, V | None],
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> KGroupedStream[K, V]:
        """Group the records by their keys. Records without a key or a value are dropped.

        >>> from headrace import StreamsBuilder
        >>> StreamsBuilder().stream("clicks").group_by_key().count(store="clicks-by-user")
        <KTable KSTREAM-AGGREGATE-0000000001>
        """
        return KGroupedStream(self._with_serdes(key, value), self.rekeyed, None if name is None else valid_name(name))

    @overload
    def group_by(
        self: KStream[K_co, V | None],
        select: Callable[[V], K2 | None],
        *,
        key: Serde[K2] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> KGroupedStream[K2, V]: ...
    @overload
    def group_by(
        self: KStream[K_co, V | None],
        select: Callable[[K_co, V], K2 | None],
        *,
        key: Serde[K2] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> KGroupedStream[K2, V]: ...
    def group_by(
        self,
        select: Function,
        *,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        name: str | None = None,
    ) -> KGroupedStream[Any, Any]:
        """Group the records by the keys that `select` returns. Records without a key or a value are dropped.

        >>> from headrace import StreamsBuilder, serde
        >>> words = StreamsBuilder().stream("words", value=serde.STRING)
        >>> words.group_by(lambda word: word, key=serde.STRING).count()
        <KTable KSTREAM-AGGREGATE-0000000003>
        """
        return self.select_key(select, name=name).group_by_key(key=key, value=value, name=name)

    # ------------------------------------------------------------------------------------------------------ joins
    @overload
    def join(
        self: KStream[K_co, V | None],
        other: KStream[K_co, V2 | None],
        joiner: Callable[[V, V2], R],
        *,
        windows: JoinWindows,
        key: Serde[K_co] | None = None,
        value: Serde[V] | None = None,
        other_value: Serde[V2] | None = None,
        store: StoreOption[Any, Any] = None,
        name: str | None = None,
    ) -> KStream[K_co, R]: ...
    @overload
    def join(
        self: KStream[K_co, V | None],
        other: KTable[K_co, V2],
        joiner: Callable[[V, V2], R],
        *,
        grace: int | timedelta | None = None,
        key: Serde[K_co] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> KStream[K_co, R]: ...
    @overload
    def join(
        self: KStream[K_co, V | None],
        other: GlobalKTable[K2, V2],
        joiner: Callable[[V, V2], R],
        *,
        on: Callable[[V], K2 | None],
        name: str | None = None,
    ) -> KStream[K_co, R]: ...
    @overload
    def join(
        self: KStream[K_co, V | None],
        other: GlobalKTable[K2, V2],
        joiner: Callable[[V, V2], R],
        *,
        on: Callable[[K_co, V], K2 | None],
        name: str | None = None,
    ) -> KStream[K_co, R]: ...
    @overload
    def join(
        self: KStream[K_co, V | None],
        other: KStream[K_co, V2 | None],
        joiner: Callable[[K_co, V, V2], R],
        *,
        windows: JoinWindows,
        key: Serde[K_co] | None = None,
        value: Serde[V] | None = None,
        other_value: Serde[V2] | None = None,
        store: StoreOption[Any, Any] = None,
        name: str | None = None,
    ) -> KStream[K_co, R]: ...
    @overload
    def join(
        self: KStream[K_co, V | None],
        other: KTable[K_co, V2],
        joiner: Callable[[K_co, V, V2], R],
        *,
        grace: int | timedelta | None = None,
        key: Serde[K_co] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> KStream[K_co, R]: ...
    @overload
    def join(
        self: KStream[K_co, V | None],
        other: GlobalKTable[K2, V2],
        joiner: Callable[[K_co, V, V2], R],
        *,
        on: Callable[[V], K2 | None],
        name: str | None = None,
    ) -> KStream[K_co, R]: ...
    @overload
    def join(
        self: KStream[K_co, V | None],
        other: GlobalKTable[K2, V2],
        joiner: Callable[[K_co, V, V2], R],
        *,
        on: Callable[[K_co, V], K2 | None],
        name: str | None = None,
    ) -> KStream[K_co, R]: ...
    def join(
        self,
        other: KStream[Any, Any] | KTable[Any, Any] | GlobalKTable[Any, Any],
        joiner: Function,
        *,
        windows: JoinWindows | None = None,
        grace: int | timedelta | None = None,
        on: Function | None = None,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        other_value: Serde[Any] | None = None,
        store: StoreOption[Any, Any] = None,
        name: str | None = None,
    ) -> KStream[Any, Any]:
        """Join each record with its partners. Records without a partner are dropped.

        With a KStream, partners have the same key and are at most `windows` apart. Both streams keep their records in
        window stores: `store` names them, `key`, `value` and `other_value` are their serdes.

        With a KTable, the partner is the row of the same key. If the table is versioned, `grace` makes the join wait
        for late rows. `key` and `value` are the serdes of a repartition topic, if the stream needs one.

        With a GlobalKTable, the partner is the row of the key that `on` returns.

        >>> from headrace import JoinWindows, StreamsBuilder, serde
        >>> builder = StreamsBuilder()
        >>> orders = builder.stream("orders", key=serde.STRING, value=serde.JSON)
        >>> payments = builder.stream("payments", key=serde.STRING, value=serde.JSON)
        >>> customers = builder.table("customers", key=serde.STRING, value=serde.JSON)
        >>> products = builder.global_table("products", key=serde.STRING, value=serde.JSON)
        >>> orders.join(payments, lambda order, payment: order | payment, windows=JoinWindows.of(60_000))
        <KStream KSTREAM-MERGE-0000000012>
        >>> orders.join(customers, lambda order, customer: order | customer)
        <KStream KSTREAM-JOIN-0000000013>
        >>> orders.join(products, lambda order, product: order | product, on=lambda order: order["product"])
        <KStream KSTREAM-LEFTJOIN-0000000014>
        """
        return self._join(other, joiner, "inner", JoinOptions(windows, grace, on, key, value, other_value, store, name))

    @overload
    def left_join(
        self: KStream[K_co, V | None],
        other: KStream[K_co, V2 | None],
        joiner: Callable[[V, V2 | None], R],
        *,
        windows: JoinWindows,
        key: Serde[K_co] | None = None,
        value: Serde[V] | None = None,
        other_value: Serde[V2] | None = None,
        store: StoreOption[Any, Any] = None,
        name: str | None = None,
    ) -> KStream[K_co, R]: ...
    @overload
    def left_join(
        self: KStream[K_co, V | None],
        other: KTable[K_co, V2],
        joiner: Callable[[V, V2 | None], R],
        *,
        grace: int | timedelta | None = None,
        key: Serde[K_co] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> KStream[K_co, R]: ...
    @overload
    def left_join(
        self: KStream[K_co, V | None],
        other: GlobalKTable[K2, V2],
        joiner: Callable[[V, V2 | None], R],
        *,
        on: Callable[[V], K2 | None],
        name: str | None = None,
    ) -> KStream[K_co, R]: ...
    @overload
    def left_join(
        self: KStream[K_co, V | None],
        other: GlobalKTable[K2, V2],
        joiner: Callable[[V, V2 | None], R],
        *,
        on: Callable[[K_co, V], K2 | None],
        name: str | None = None,
    ) -> KStream[K_co, R]: ...
    @overload
    def left_join(
        self: KStream[K_co, V | None],
        other: KStream[K_co, V2 | None],
        joiner: Callable[[K_co, V, V2 | None], R],
        *,
        windows: JoinWindows,
        key: Serde[K_co] | None = None,
        value: Serde[V] | None = None,
        other_value: Serde[V2] | None = None,
        store: StoreOption[Any, Any] = None,
        name: str | None = None,
    ) -> KStream[K_co, R]: ...
    @overload
    def left_join(
        self: KStream[K_co, V | None],
        other: KTable[K_co, V2],
        joiner: Callable[[K_co, V, V2 | None], R],
        *,
        grace: int | timedelta | None = None,
        key: Serde[K_co] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> KStream[K_co, R]: ...
    @overload
    def left_join(
        self: KStream[K_co, V | None],
        other: GlobalKTable[K2, V2],
        joiner: Callable[[K_co, V, V2 | None], R],
        *,
        on: Callable[[V], K2 | None],
        name: str | None = None,
    ) -> KStream[K_co, R]: ...
    @overload
    def left_join(
        self: KStream[K_co, V | None],
        other: GlobalKTable[K2, V2],
        joiner: Callable[[K_co, V, V2 | None], R],
        *,
        on: Callable[[K_co, V], K2 | None],
        name: str | None = None,
    ) -> KStream[K_co, R]: ...
    def left_join(
        self,
        other: KStream[Any, Any] | KTable[Any, Any] | GlobalKTable[Any, Any],
        joiner: Function,
        *,
        windows: JoinWindows | None = None,
        grace: int | timedelta | None = None,
        on: Function | None = None,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        other_value: Serde[Any] | None = None,
        store: StoreOption[Any, Any] = None,
        name: str | None = None,
    ) -> KStream[Any, Any]:
        """Join each record with its partners; a record without a partner is joined with None.

        The options are those of `join`.

        >>> from headrace import StreamsBuilder, serde
        >>> builder = StreamsBuilder()
        >>> orders = builder.stream("orders", key=serde.STRING, value=serde.LONG)
        >>> names = builder.table("customers", key=serde.STRING, value=serde.STRING)
        >>> orders.left_join(names, lambda amount, name: f"{name or 'unknown'}: {amount}")
        <KStream KSTREAM-LEFTJOIN-0000000004>
        """
        return self._join(other, joiner, "left", JoinOptions(windows, grace, on, key, value, other_value, store, name))

    @overload
    def outer_join(
        self: KStream[K_co, V | None],
        other: KStream[K_co, V2 | None],
        joiner: Callable[[V | None, V2 | None], R],
        *,
        windows: JoinWindows,
        key: Serde[K_co] | None = None,
        value: Serde[V] | None = None,
        other_value: Serde[V2] | None = None,
        store: StoreOption[Any, Any] = None,
        name: str | None = None,
    ) -> KStream[K_co, R]: ...
    @overload
    def outer_join(
        self: KStream[K_co, V | None],
        other: KStream[K_co, V2 | None],
        joiner: Callable[[K_co, V | None, V2 | None], R],
        *,
        windows: JoinWindows,
        key: Serde[K_co] | None = None,
        value: Serde[V] | None = None,
        other_value: Serde[V2] | None = None,
        store: StoreOption[Any, Any] = None,
        name: str | None = None,
    ) -> KStream[K_co, R]: ...
    def outer_join(
        self,
        other: KStream[Any, Any],
        joiner: Function,
        *,
        windows: JoinWindows | None = None,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        other_value: Serde[Any] | None = None,
        store: StoreOption[Any, Any] = None,
        name: str | None = None,
    ) -> KStream[Any, Any]:
        """Join the records of two streams; a record of either stream without a partner is joined with None.

        The options are those of `join` with a KStream.

        >>> from headrace import JoinWindows, StreamsBuilder, serde
        >>> builder = StreamsBuilder()
        >>> sent = builder.stream("sent", key=serde.STRING, value=serde.LONG)
        >>> received = builder.stream("received", key=serde.STRING, value=serde.LONG)
        >>> sent.outer_join(received, lambda s, r: "ok" if s and r else "lost", windows=JoinWindows.of(1000))
        <KStream KSTREAM-MERGE-0000000006>
        """
        if not isinstance(other, KStream):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError("a stream has an outer join only with another stream: use left_join with a table")
        options = JoinOptions(windows, None, None, key, value, other_value, store, name)
        return self._join(other, joiner, "outer", options)

    def _join(
        self,
        other: KStream[Any, Any] | KTable[Any, Any] | GlobalKTable[Any, Any],
        joiner: Function,
        kind: JoinKind,
        options: JoinOptions,
    ) -> KStream[Any, Any]:
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

    def _then(self, node: Filter | Peek | Foreach) -> KStream[K_co, V_co]:
        return KStream(self.place.then(node), self.rekeyed)

    def _process(self, node: Process, store_names: tuple[str, ...]) -> Place:
        validation.makes_new_ones(node.supplier, node.name)
        return self.place.then(node, stores_of(node.supplier), store_names)

    def _with_serdes(self, key: SerdeLike | None, value: SerdeLike | None) -> Place:
        check_serde("key", key)
        check_serde("value", value)
        place = self.place
        return replace(place, key=place.key if key is None else key, value=place.value if value is None else value)


Then = Callable[[KStream[K, V]], KStream[K, V] | None]


@explain_names({"build": "default_branch() or no_default_branch()"})
class BranchedKStream(Generic[K, V]):
    """A stream that is being split: branches are tried in the order in which they are added.

    The result of `default_branch` and `no_default_branch` is a dict of all branches, by name.

    >>> from headrace import StreamsBuilder, serde
    >>> prices = StreamsBuilder().stream("prices", value=serde.LONG)
    >>> branches = prices.split(name="price-").branch(lambda price: price > 100, name="high").no_default_branch()
    >>> branches["price-high"].to("high-prices")
    """

    def __init__(self, stream: KStream[K, V], name: str | None) -> None:
        self._name = stream.place.named(name, "KSTREAM-BRANCH-")
        self._split = Operate(Branch(self._name, (), ()))
        self._place = stream.place.at(Step(self._name, self._split))
        self._rekeyed = stream.rekeyed
        self._streams: dict[str, KStream[K, V]] = {}
        self._predicates: list[Function] = []
        self._branches: list[str] = []

    @overload
    def branch(
        self, predicate: Callable[[V], object], *, name: str | None = None, then: Then[K, V] | None = None
    ) -> Self: ...
    @overload
    def branch(
        self, predicate: Callable[[K, V], object], *, name: str | None = None, then: Then[K, V] | None = None
    ) -> Self: ...
    def branch(self, predicate: Function, *, name: str | None = None, then: Then[K, V] | None = None) -> Self:
        """Add a branch. `then` is called with it; the stream that `then` returns, if any, is in the dict instead."""
        self._predicates.append(with_key(predicate, "a predicate"))
        self._add(f"{self._name}{len(self._predicates)}" if name is None else valid_name(self._name + name), then)
        return self

    def default_branch(self, *, name: str | None = None, then: Then[K, V] | None = None) -> dict[str, KStream[K, V]]:
        """Add a branch for the records that no predicate accepts, and return all branches by name."""
        self._add(f"{self._name}0" if name is None else valid_name(self._name + name), then)
        return self._streams

    def no_default_branch(self) -> dict[str, KStream[K, V]]:
        """Drop the records that no predicate accepts, and return all branches by name."""
        return self._streams

    def _add(self, name: str, then: Then[K, V] | None) -> None:
        self._place.draft.names.take(name)
        self._branches.append(name)
        self._split.node = Branch(self._name, tuple(self._predicates), tuple(self._branches))
        stream: KStream[K, V] = KStream(self._place.then(PassThrough(name)), self._rekeyed)
        kept = stream if then is None else then(stream)
        if kept is not None:
            self._streams[name] = kept
