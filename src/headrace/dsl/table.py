"""KTable, the latest value of each key; GlobalKTable, the same with all partitions on every task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, overload

from headrace.dsl import joins
from headrace.dsl.functions import Function, exactly, with_key
from headrace.dsl.joins import ForeignKeyJoin, JoinKind
from headrace.dsl.logical.graph import Operate, Place, Step
from headrace.dsl.logical.table_properties import send_old
from headrace.dsl.materialization import StoreOption, materialized, suppress, table_store, with_serdes
from headrace.dsl.options import Suppressed, check_serde
from headrace.dsl.preview import Preview, preview
from headrace.dsl.types import K2, V2, K, PartitionFunction, R, V_co, ValueTransformer
from headrace.hints import explain_names, explain_options
from headrace.model.sink import Sink
from headrace.serde.protocol import Serde
from headrace.state.spec import StoreSpec
from headrace.topology import validation
from headrace.topology.naming import valid_name
from headrace.topology.nodes import (
    SerdeLike,
    TableFilter,
    TableMapValues,
    TableRekey,
    TableToStream,
    TableTransformValues,
)

if TYPE_CHECKING:
    from headrace.dsl.grouped import KGroupedTable
    from headrace.dsl.stream import KStream


@explain_names()
@dataclass(frozen=True, eq=False, slots=True)
class GlobalKTable(Generic[K, V_co]):
    """A table that every task has whole, so that a stream can be joined with it by any key.

    >>> from headrace import StreamsBuilder
    >>> StreamsBuilder().global_table("products", store="products").queryable_store_name
    'products'
    """

    store: str
    queryable_store_name: str | None


@explain_names(
    {
        "foreach": "to_stream().foreach(f)",
        "for_each": "to_stream().foreach(f)",
        "get_store_name": "queryable_store_name",
        "group_by_key": "group_by(lambda key, value: (key, value)), or to_stream().group_by_key()",
        "map": "to_stream().map(f)",
        "peek": "to_stream().peek(f)",
        "print": "to_stream().print()",
        "process": "to_stream().process(supplier), or transform_values(supplier)",
        "select_key": "to_stream(key_selector)",
        "through": "to_stream().repartition(), or to_stream().to(topic) and builder.table(topic)",
        "to": "to_stream().to(topic)",
        "write_as_text": "to_stream().print(to=open(path, 'w'))",
    }
)
@dataclass(frozen=True, eq=False, repr=False, slots=True)
class KTable(Generic[K, V_co]):
    """The latest value of each key. `StreamsBuilder.table`, `KStream.to_table` and aggregates make one.

    A function of values takes `(value)` or `(key, value)`; if it returns None the row is deleted. `store=` keeps a
    table in a store that can be queried: a name, or a `Materialized`.

    >>> from headrace import StreamsBuilder, serde
    >>> from headrace.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> prices = builder.table("prices", key=serde.STRING, value=serde.LONG)
    >>> high = prices.filter(lambda price: price > 100, store="high-prices")
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input_topic("prices", key=serde.STRING, value=serde.LONG).pipe_key_values([("tea", 2), ("rum", 900)])
    ...     [key for key, _ in driver.store("high-prices").all()]
    ['rum']
    """

    place: Place
    queryable_store_name: str | None = None

    def __repr__(self) -> str:
        return f"<KTable {self.place.name}>"

    def preview(
        self, records: Iterable[Any] | Mapping[str, Iterable[Any]], *, config: Mapping[str, Any] | None = None
    ) -> Preview[K, V_co]:
        """Run the topology up to here on sample data, and return the changes of the table: see `KStream.preview`.

        >>> from headrace import StreamsBuilder, serde
        >>> words = StreamsBuilder().stream("words", key=serde.STRING, value=serde.STRING)
        >>> words.group_by(lambda key, word: word, key=serde.STRING).count().preview(["tea", "rum", "tea"])
        key  value  timestamp
        tea  1      0
        rum  1      0
        tea  2      0
        """
        return preview(self.place, records, is_table=True, config=config)

    @overload
    def filter(
        self, keep: Callable[[V_co], object], *, store: StoreOption[K, V_co] = None, name: str | None = None
    ) -> KTable[K, V_co]: ...
    @overload
    def filter(
        self, keep: Callable[[K, V_co], object], *, store: StoreOption[K, V_co] = None, name: str | None = None
    ) -> KTable[K, V_co]: ...
    def filter(
        self, keep: Function, *, store: StoreOption[Any, Any] = None, name: str | None = None
    ) -> KTable[K, V_co]:
        """The rows for which `keep` is true.

        >>> from headrace import StreamsBuilder, serde
        >>> StreamsBuilder().table("prices", value=serde.LONG).filter(lambda price: price > 100)
        <KTable KTABLE-FILTER-0000000003>
        """
        return self._filter(keep, store, name, negate=False)

    @overload
    def filter_not(
        self, drop: Callable[[V_co], object], *, store: StoreOption[K, V_co] = None, name: str | None = None
    ) -> KTable[K, V_co]: ...
    @overload
    def filter_not(
        self, drop: Callable[[K, V_co], object], *, store: StoreOption[K, V_co] = None, name: str | None = None
    ) -> KTable[K, V_co]: ...
    def filter_not(
        self, drop: Function, *, store: StoreOption[Any, Any] = None, name: str | None = None
    ) -> KTable[K, V_co]:
        """The rows for which `drop` is not true."""
        return self._filter(drop, store, name, negate=True)

    @overload
    def map_values(
        self, change: Callable[[V_co], V2 | None], *, store: StoreOption[K, V2] = None, name: str | None = None
    ) -> KTable[K, V2]: ...
    @overload
    def map_values(
        self, change: Callable[[K, V_co], V2 | None], *, store: StoreOption[K, V2] = None, name: str | None = None
    ) -> KTable[K, V2]: ...
    def map_values(
        self, change: Function, *, store: StoreOption[Any, Any] = None, name: str | None = None
    ) -> KTable[K, Any]:
        """The table with the values that `change` returns.

        >>> from headrace import StreamsBuilder, serde
        >>> StreamsBuilder().table("prices", value=serde.LONG).map_values(lambda price: price / 100)
        <KTable KTABLE-MAPVALUES-0000000003>
        """
        kept = self._kept(store, "KTABLE-MAPVALUES-", None)
        node = TableMapValues(self._name(name, "KTABLE-MAPVALUES-"), with_key(change), kept.store)
        return self._then(node, kept)

    def transform_values(
        self,
        supplier: Callable[[], ValueTransformer[K, V_co, V2 | None]],
        *store_names: str,
        store: StoreOption[K, V2] = None,
        name: str | None = None,
    ) -> KTable[K, V2]:
        """The table with the values that objects with `init(context)`, `transform(key, value)` and `close()` return.

        >>> from headrace import StreamsBuilder, serde
        >>> class Rounded:
        ...     def transform(self, key: str, price: float) -> int:
        ...         return round(price)
        >>> StreamsBuilder().table("prices", key=serde.STRING, value=serde.DOUBLE).transform_values(Rounded)
        <KTable KTABLE-TRANSFORMVALUES-0000000003>
        """
        kept = self._kept(store, None, None)
        node = TableTransformValues(self._name(name, "KTABLE-TRANSFORMVALUES-"), supplier, kept.store)
        validation.makes_new_ones(supplier, node.name)
        return self._then(node, kept, store_names)

    @overload
    def to_stream(self, key_selector: None = None, *, name: str | None = None) -> KStream[K, V_co]: ...
    @overload
    def to_stream(self, key_selector: Callable[[V_co], K2], *, name: str | None = None) -> KStream[K2, V_co]: ...
    @overload
    def to_stream(self, key_selector: Callable[[K, V_co], K2], *, name: str | None = None) -> KStream[K2, V_co]: ...
    def to_stream(self, key_selector: Function | None = None, *, name: str | None = None) -> KStream[Any, Any]:
        """The changes of the table as a stream, with the keys that `key_selector` returns. None is a deleted row.

        >>> from headrace import StreamsBuilder
        >>> StreamsBuilder().table("prices").to_stream()
        <KStream KTABLE-TOSTREAM-0000000003>
        """
        from headrace.dsl.stream import KStream  # noqa: PLC0415 streams and tables make each other

        stream: KStream[K, V_co] = KStream(self.place.then(TableToStream(self._name(name, "KTABLE-TOSTREAM-"))))
        return stream if key_selector is None else stream.select_key(key_selector)

    def sink(
        self,
        sink: Sink,
        *,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        on_rejected: Literal["fail", "continue", "dead_letter"] | None = None,
        name: str | None = None,
    ) -> None:
        """Write the table to another system: an update of a row inserts or replaces it there, a tombstone deletes it.

        The options are those of `KStream.sink`.

        >>> from headrace import StreamsBuilder, serde
        >>> from headrace.connect import PostgresSink
        >>> prices = StreamsBuilder().table("prices", key=serde.STRING, value=serde.JSON)
        >>> prices.sink(PostgresSink("postgresql://shop@db/shop", "prices", key="product", mode="upsert"))
        """
        self.to_stream().sink(sink, key=key, value=value, on_rejected=on_rejected, name=name)

    def suppress(self, suppressed: Suppressed, *, name: str | None = None) -> KTable[K, V_co]:
        """Hold updates back until a window closes or some time has passed.

        >>> from headrace import Buffer, StreamsBuilder, Suppressed, TimeWindows
        >>> counts = StreamsBuilder().stream("clicks").group_by_key().windowed_by(TimeWindows.of(60_000)).count()
        >>> counts.suppress(Suppressed.until_window_closes(Buffer.unbounded()))
        <KTable KTABLE-SUPPRESS-0000000003>
        """
        if not isinstance(suppressed, Suppressed):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                "suppress takes Suppressed.until_window_closes(buffer) or Suppressed.until_time_limit(wait, buffer), "
                f"not {suppressed!r}"
            )
        return KTable(suppress(self.place, suppressed, None if name is None else valid_name(name)))

    @overload
    def group_by(
        self,
        select: Callable[[V_co], tuple[K2, V2]],
        *,
        key: Serde[K2] | None = None,
        value: Serde[V2] | None = None,
        name: str | None = None,
    ) -> KGroupedTable[K2, V2]: ...
    @overload
    def group_by(
        self,
        select: Callable[[K, V_co], tuple[K2, V2]],
        *,
        key: Serde[K2] | None = None,
        value: Serde[V2] | None = None,
        name: str | None = None,
    ) -> KGroupedTable[K2, V2]: ...
    def group_by(
        self,
        select: Function,
        *,
        key: Serde[Any] | None = None,
        value: Serde[Any] | None = None,
        name: str | None = None,
    ) -> KGroupedTable[Any, Any]:
        """Group the rows by other keys: `select` returns a `(key, value)` for each row.

        >>> from headrace import StreamsBuilder, serde
        >>> towns = StreamsBuilder().table("towns-of-users", key=serde.STRING, value=serde.STRING)
        >>> towns.group_by(lambda user, town: (town, user), key=serde.STRING, value=serde.STRING).count()
        <KTable KTABLE-AGGREGATE-0000000007>
        """
        from headrace.dsl.grouped import KGroupedTable  # noqa: PLC0415

        check_serde("key", key)
        check_serde("value", value)
        node = TableRekey(self._name(name, "KTABLE-SELECT-"), with_key(select))
        place = self.place.then(node)
        send_old(self.place.step, keep=True)
        return KGroupedTable(replace(place, key=key, value=value), name)

    # ------------------------------------------------------------------------------------------------------- joins
    @overload
    def join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[V_co, V2], R | None],
        *,
        store: StoreOption[K, R] = None,
        name: str | None = None,
    ) -> KTable[K, R]: ...
    @overload
    def join(
        self,
        other: KTable[K2, V2],
        joiner: Callable[[V_co, V2], R | None],
        *,
        on: Callable[[V_co], K2 | None],
        partitioner: PartitionFunction[K, Any] | None = None,
        other_partitioner: PartitionFunction[K2, Any] | None = None,
        store: StoreOption[K, R] = None,
        name: str | None = None,
    ) -> KTable[K, R]: ...
    @overload
    def join(
        self,
        other: KTable[K2, V2],
        joiner: Callable[[V_co, V2], R | None],
        *,
        on: Callable[[K, V_co], K2 | None],
        partitioner: PartitionFunction[K, Any] | None = None,
        other_partitioner: PartitionFunction[K2, Any] | None = None,
        store: StoreOption[K, R] = None,
        name: str | None = None,
    ) -> KTable[K, R]: ...
    def join(
        self,
        other: KTable[Any, Any],
        joiner: Function,
        *,
        on: Function | None = None,
        partitioner: PartitionFunction[Any, Any] | None = None,
        other_partitioner: PartitionFunction[Any, Any] | None = None,
        store: StoreOption[Any, Any] = None,
        name: str | None = None,
    ) -> KTable[Any, Any]:
        """Join the rows of two tables that have the same key; `joiner(left, right)` returns the joined value.

        With `on`, a function of this table's rows, it is a foreign-key join: a row is joined with the other table's row
        of the key that `on` returns. `partitioner` and `other_partitioner` say how the tables' topics are partitioned,
        if not by key.

        >>> from headrace import StreamsBuilder, serde
        >>> builder = StreamsBuilder()
        >>> orders = builder.table("orders", key=serde.STRING, value=serde.JSON)
        >>> payments = builder.table("payments", key=serde.STRING, value=serde.JSON)
        >>> customers = builder.table("customers", key=serde.STRING, value=serde.JSON)
        >>> orders.join(payments, lambda order, payment: order | payment)
        <KTable KTABLE-MERGE-0000000009>
        >>> orders.join(customers, lambda order, customer: order | customer, on=lambda order: order["customer"])
        <KTable KTABLE-FK-JOIN-OUTPUT-0000000024>
        """
        return self._join(other, joiner, "inner", on, partitioner, other_partitioner, store, name)

    @overload
    def left_join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[V_co, V2 | None], R | None],
        *,
        store: StoreOption[K, R] = None,
        name: str | None = None,
    ) -> KTable[K, R]: ...
    @overload
    def left_join(
        self,
        other: KTable[K2, V2],
        joiner: Callable[[V_co, V2 | None], R | None],
        *,
        on: Callable[[V_co], K2 | None],
        partitioner: PartitionFunction[K, Any] | None = None,
        other_partitioner: PartitionFunction[K2, Any] | None = None,
        store: StoreOption[K, R] = None,
        name: str | None = None,
    ) -> KTable[K, R]: ...
    @overload
    def left_join(
        self,
        other: KTable[K2, V2],
        joiner: Callable[[V_co, V2 | None], R | None],
        *,
        on: Callable[[K, V_co], K2 | None],
        partitioner: PartitionFunction[K, Any] | None = None,
        other_partitioner: PartitionFunction[K2, Any] | None = None,
        store: StoreOption[K, R] = None,
        name: str | None = None,
    ) -> KTable[K, R]: ...
    def left_join(
        self,
        other: KTable[Any, Any],
        joiner: Function,
        *,
        on: Function | None = None,
        partitioner: PartitionFunction[Any, Any] | None = None,
        other_partitioner: PartitionFunction[Any, Any] | None = None,
        store: StoreOption[Any, Any] = None,
        name: str | None = None,
    ) -> KTable[Any, Any]:
        """Join all rows of this table; a row without a partner is joined with None. The options are those of `join`.

        >>> from headrace import StreamsBuilder, serde
        >>> builder = StreamsBuilder()
        >>> stock = builder.table("stock", key=serde.STRING, value=serde.LONG)
        >>> reserved = builder.table("reserved", key=serde.STRING, value=serde.LONG)
        >>> stock.left_join(reserved, lambda there, taken: there - (taken or 0))
        <KTable KTABLE-MERGE-0000000006>
        """
        return self._join(other, joiner, "left", on, partitioner, other_partitioner, store, name)

    @explain_options({"on": "left_join(other, joiner, on=…), since there is no outer join on a foreign key"})
    def outer_join(
        self,
        other: KTable[K, V2],
        joiner: Callable[[V_co | None, V2 | None], R | None],
        *,
        store: StoreOption[K, R] = None,
        name: str | None = None,
    ) -> KTable[K, R]:
        """Join all rows of both tables; a row without a partner is joined with None.

        >>> from headrace import StreamsBuilder, serde
        >>> builder = StreamsBuilder()
        >>> shop = builder.table("shop-sales", key=serde.STRING, value=serde.LONG)
        >>> web = builder.table("web-sales", key=serde.STRING, value=serde.LONG)
        >>> shop.outer_join(web, lambda one, other: (one or 0) + (other or 0))
        <KTable KTABLE-MERGE-0000000006>
        """
        return self._join(other, joiner, "outer", None, None, None, store, name)

    def _join(
        self,
        other: KTable[Any, Any],
        joiner: Function,
        kind: JoinKind,
        on: Function | None,
        partitioner: PartitionFunction[Any, Any] | None,
        other_partitioner: PartitionFunction[Any, Any] | None,
        store: StoreOption[Any, Any],
        name: str | None,
    ) -> KTable[Any, Any]:
        if not isinstance(other, KTable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a table is joined with a KTable, not with {other!r}")
        f = exactly(2, joiner, "the joiner of two tables")
        left, right = self.place, other.place
        if on is not None:
            by, is_left = with_key(on, "on="), kind == "left"
            foreign = ForeignKeyJoin(left, right, by, f, is_left, partitioner, other_partitioner, store, name)
            return KTable(*joins.join_on_foreign_key(foreign))
        for option, given in ("partitioner", partitioner), ("other_partitioner", other_partitioner):
            if given is not None:
                raise TypeError(f"{option}= is for foreign-key joins: give on=, or leave it out")
        return KTable(*joins.join_tables(left, right, f, kind, store, name))

    # --------------------------------------------------------------------------------------------------------------
    def _filter(
        self, keep: Function, store: StoreOption[Any, Any], name: str | None, *, negate: bool
    ) -> KTable[K, V_co]:
        kept = self._kept(store, "KTABLE-FILTER-", self.place.value)
        parent_sends_old = send_old(self.place.step, keep=False)
        node = TableFilter(
            self._name(name, "KTABLE-FILTER-"), with_key(keep), negate, kept.store, send_old=parent_sends_old
        )
        return self._then(node, kept)

    def _kept(self, store: StoreOption[Any, Any], prefix: str | None, value: SerdeLike | None) -> _Kept:
        """The serdes and the store of a derived table, which has a store only if `store=` names one."""
        if store is None:
            return _Kept(self.place.key, value, None, None)
        given = with_serdes(materialized(store), self.place.key, value)
        if given.name is None:
            if prefix is not None:
                self.place.draft.names.store(prefix)
            return _Kept(given.key, given.value, None, False)
        return _Kept(given.key, given.value, table_store(given, given.name), given.history is not None)

    def _then(
        self, node: TableFilter | TableMapValues | TableTransformValues, kept: _Kept, uses: tuple[str, ...] = ()
    ) -> KTable[Any, Any]:
        stores = () if kept.spec is None else (kept.spec,)
        place = self.place.at(Step(node.name, Operate(node, stores, uses), versioned=kept.versioned))
        return KTable(replace(place, key=kept.key, value=kept.value), kept.store)

    def _name(self, name: str | None, prefix: str) -> str:
        return self.place.named(name, prefix)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The serdes and the store of a derived table. `versioned` is None if the table above decides."""

    key: SerdeLike | None
    value: SerdeLike | None
    spec: StoreSpec | None
    versioned: bool | None

    @property
    def store(self) -> str | None:
        return None if self.spec is None else self.spec.name
