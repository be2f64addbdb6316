"""KGroupedStream and KGroupedTable: records and rows that are grouped by key, to be aggregated."""

from __future__ import annotations

from typing import Generic

from headrace.dsl import aggregates as agg
from headrace.dsl.aggregates import Group, aggregate_stream, aggregate_table, key_value_store
from headrace.dsl.cogrouped import CogroupedKStream
from headrace.dsl.functions import Function, exactly
from headrace.dsl.logical.graph import Place
from headrace.dsl.materialization import AnyWindows, StoreOption, materialized, with_serdes
from headrace.dsl.options import Materialized
from headrace.dsl.table import KTable
from headrace.dsl.types import A, Aggregator, Initializer, K, Reducer, V
from headrace.dsl.windowed import WindowedKStream
from headrace.hints import explain_names
from headrace.serde.protocol import Serde
from headrace.topology.nodes import StreamAggregate, StreamReduce, TableAggregate, TableReduce

AGGREGATE, REDUCE = "KSTREAM-AGGREGATE-", "KSTREAM-REDUCE-"


@explain_names({"count_by_key": "count()", "windowed": "windowed_by(windows)", "to_stream": "count().to_stream()"})
class KGroupedStream(Generic[K, V]):
    """Records by key, to be aggregated. `KStream.group_by_key` and `group_by` make one.

    The option `store=` is the name of the table's store or a `Materialized`; `value=` is the serde of its values.

    >>> from headrace import StreamsBuilder, serde
    >>> sales = StreamsBuilder().stream("sales", key=serde.STRING, value=serde.LONG).group_by_key()
    >>> sales.count(store="sales-by-shop").queryable_store_name
    'sales-by-shop'
    """

    __slots__ = ("group",)

    def __init__(self, place: Place, rekeyed: bool, topic: str | None) -> None:
        self.group = Group(place, rekeyed, topic)

    def count(
        self, *, store: StoreOption[K, int] = None, value: Serde[int] | None = None, name: str | None = None
    ) -> KTable[K, int]:
        """Count the records of each key.

        >>> from headrace import StreamsBuilder
        >>> StreamsBuilder().stream("clicks").group_by_key().count()
        <KTable KSTREAM-AGGREGATE-0000000002>
        """
        given = with_serdes(self.group.store_for_count(store, value), self.group.place.key, agg.COUNT_VALUE)
        return self._aggregate(agg.zero, agg.plus_one, given, name)

    def reduce(
        self,
        reduce: Reducer[V],
        *,
        store: StoreOption[K, V] = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> KTable[K, V]:
        """Combine the values of each key: `reduce(aggregate, value)` returns the new aggregate.

        >>> from headrace import StreamsBuilder, serde
        >>> prices = StreamsBuilder().stream("prices", key=serde.STRING, value=serde.LONG)
        >>> prices.group_by_key().reduce(max, store="highest-prices")
        <KTable KSTREAM-REDUCE-0000000001>
        """
        add, place = exactly(2, reduce, "a reducer"), self.group.place
        given = with_serdes(materialized(store, value=value), place.key, place.value)
        spec = key_value_store(place, given, REDUCE)
        node = StreamReduce(place.named(name, REDUCE), spec.name, add)
        return KTable(aggregate_stream(self.group, node, given, spec), given.name)

    def aggregate(
        self,
        initialize: Initializer[A],
        add: Aggregator[K, V, A],
        *,
        store: StoreOption[K, A] = None,
        value: Serde[A] | None = None,
        name: str | None = None,
    ) -> KTable[K, A]:
        """Aggregate the values of each key, from `initialize()` on; `add(key, value, aggregate)` returns the new one.

        >>> from headrace import StreamsBuilder, serde
        >>> sales = StreamsBuilder().stream("sales", key=serde.STRING, value=serde.LONG)
        >>> sales.group_by_key().aggregate(lambda: 0.0, lambda shop, cents, sum: sum + cents / 100, value=serde.DOUBLE)
        <KTable KSTREAM-AGGREGATE-0000000002>
        """
        given = with_serdes(materialized(store, value=value), self.group.place.key, None)
        return self._aggregate(exactly(0, initialize, "an initializer"), exactly(3, add, "an aggregator"), given, name)

    def windowed_by(self, windows: AnyWindows) -> WindowedKStream[K, V]:
        """Aggregate by key and window.

        >>> from headrace import StreamsBuilder, TimeWindows
        >>> StreamsBuilder().stream("clicks").group_by_key().windowed_by(TimeWindows.of(60_000)).count()
        <KTable KSTREAM-AGGREGATE-0000000002>
        """
        return WindowedKStream(self.group, windows)

    def cogroup(self, add: Aggregator[K, V, A]) -> CogroupedKStream[K, A]:
        """Aggregate together with other grouped streams; `add(key, value, aggregate)` is for this stream's values."""
        empty: CogroupedKStream[K, A] = CogroupedKStream(())
        return empty.cogroup(self, add)

    def _aggregate(self, initialize: Function, add: Function, given: Materialized, name: str | None) -> KTable[K, A]:
        place = self.group.place
        spec = key_value_store(place, given, AGGREGATE)
        node = StreamAggregate(place.named(name, AGGREGATE), spec.name, initialize, add, counts=add is agg.plus_one)
        return KTable(aggregate_stream(self.group, node, given, spec), given.name)


TABLE_AGGREGATE, TABLE_REDUCE = "KTABLE-AGGREGATE-", "KTABLE-REDUCE-"


@explain_names({"windowed_by": "to_stream().group_by_key().windowed_by(windows) of the table"})
class KGroupedTable(Generic[K, V]):
    """Rows of a table under other keys, to be aggregated. `KTable.group_by` makes one.

    When a row changes, its old value is subtracted and its new value is added.

    >>> from headrace import StreamsBuilder, serde
    >>> towns = StreamsBuilder().table("towns-of-users", key=serde.STRING, value=serde.STRING)
    >>> by_town = towns.group_by(lambda user, town: (town, 1), key=serde.STRING, value=serde.LONG)
    >>> by_town.reduce(lambda sum, one: sum + one, lambda sum, one: sum - one, store="users-by-town")
    <KTable KTABLE-REDUCE-0000000006>
    """

    __slots__ = ("group",)

    def __init__(self, place: Place, topic: str | None) -> None:
        self.group = Group(place, rekeyed=True, topic=topic)

    def count(
        self, *, store: StoreOption[K, int] = None, value: Serde[int] | None = None, name: str | None = None
    ) -> KTable[K, int]:
        """Count the rows of each key."""
        given = with_serdes(materialized(store, value=value), self.group.place.key, agg.COUNT_VALUE)
        return self._aggregate(agg.zero, agg.plus_one, agg.minus_one, given, name)

    def reduce(
        self,
        add: Reducer[V],
        subtract: Reducer[V],
        *,
        store: StoreOption[K, V] = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> KTable[K, V]:
        """Combine the values of each key: `add(aggregate, value)` and `subtract(aggregate, value)`."""
        exactly(2, add, "an adder")
        exactly(2, subtract, "a subtractor")
        place = self.group.place
        given = with_serdes(materialized(store, value=value), place.key, place.value)
        spec = key_value_store(place, given, TABLE_AGGREGATE)
        ends = self._ends(name)
        node = TableReduce(place.named(name, TABLE_REDUCE), spec.name, add, subtract)
        return KTable(aggregate_table(self.group, node, given, spec, ends), given.name)

    def aggregate(
        self,
        initialize: Initializer[A],
        add: Aggregator[K, V, A],
        subtract: Aggregator[K, V, A],
        *,
        store: StoreOption[K, A] = None,
        value: Serde[A] | None = None,
        name: str | None = None,
    ) -> KTable[K, A]:
        """Aggregate the values of each key: `add` and `subtract` take `(key, value, aggregate)`."""
        exactly(0, initialize, "an initializer")
        exactly(3, add, "an adder")
        exactly(3, subtract, "a subtractor")
        given = with_serdes(materialized(store, value=value), self.group.place.key, None)
        return self._aggregate(initialize, add, subtract, given, name)

    def _aggregate(
        self, initialize: Function, add: Function, subtract: Function, given: Materialized, name: str | None
    ) -> KTable[K, A]:
        place = self.group.place
        spec = key_value_store(place, given, TABLE_AGGREGATE)
        ends = self._ends(name)
        node = TableAggregate(place.named(name, TABLE_AGGREGATE), spec.name, initialize, add, subtract)
        return KTable(aggregate_table(self.group, node, given, spec, ends), given.name)

    def _ends(self, name: str | None) -> tuple[str, str]:
        """The names of the sink and the source of the repartition topic."""
        place = self.group.place
        return place.named(name, "KSTREAM-SINK-", "-sink"), place.named(name, "KSTREAM-SOURCE-", "-source")
