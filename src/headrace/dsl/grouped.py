"""Grouped streams: what can be aggregated by key, by key and window, or together with others.

Grouped tables: rows under new keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from headrace.dsl import aggregates as agg
from headrace.dsl import retired_names
from headrace.dsl.aggregates import Group, aggregate_stream, aggregate_table, key_value_store
from headrace.dsl.cogrouped import CogroupedKStream
from headrace.dsl.functions import Function, exactly
from headrace.dsl.logical.graph import Place
from headrace.dsl.materialization import AnyWindows, StoreOption, materialized, with_serdes
from headrace.dsl.options import Materialized
from headrace.dsl.table import KTable
from headrace.dsl.windowed import WindowedKStream
from headrace.topology.nodes import SerdeLike, StreamAggregate, StreamReduce, TableAggregate, TableReduce

AGGREGATE, REDUCE = "KSTREAM-AGGREGATE-", "KSTREAM-REDUCE-"


class KGroupedStream:
    """Records by key, to be aggregated."""

    __slots__ = ("group",)

    def __init__(self, place: Place, rekeyed: bool, topic: str | None) -> None:
        self.group = Group(place, rekeyed, topic)

    def count(self, *, store: StoreOption = None, value: SerdeLike | None = None, name: str | None = None) -> KTable:
        """How many records each key has."""
        given = with_serdes(self.group.store_for_count(store, value), self.group.place.key, agg.COUNT_VALUE)
        return self._aggregate(agg.zero, agg.plus_one, given, name)

    def reduce(
        self, reduce: Function, *, store: StoreOption = None, value: SerdeLike | None = None, name: str | None = None
    ) -> KTable:
        """Combine the values of each key: `reduce(so far, value)`."""
        add = exactly(2, reduce, "a reducer")
        place = self.group.place
        given = with_serdes(materialized(store, value=value), place.key, place.value)
        spec = key_value_store(place, given, REDUCE)
        node = StreamReduce(place.named(name, REDUCE), spec.name, add)
        return KTable(aggregate_stream(self.group, node, given, spec), given.name)

    def aggregate(
        self,
        initialize: Function,
        add: Function,
        *,
        store: StoreOption = None,
        value: SerdeLike | None = None,
        name: str | None = None,
    ) -> KTable:
        """Aggregate the values of each key: `add(key, value, aggregate)`, starting from `initialize()`."""
        given = with_serdes(materialized(store, value=value), self.group.place.key, None)
        return self._aggregate(exactly(0, initialize, "an initializer"), exactly(3, add, "an aggregator"), given, name)

    def windowed_by(self, windows: AnyWindows) -> WindowedKStream:
        """Aggregate per key and window."""
        return WindowedKStream(self.group, windows)

    def cogroup(self, add: Function) -> CogroupedKStream:
        """Aggregate together with other grouped streams: `add(key, value, aggregate)`."""
        return CogroupedKStream(()).cogroup(self, add)

    def _aggregate(self, initialize: Function, add: Function, given: Materialized, name: str | None) -> KTable:
        place = self.group.place
        spec = key_value_store(place, given, AGGREGATE)
        node = StreamAggregate(place.named(name, AGGREGATE), spec.name, initialize, add, counts=add is agg.plus_one)
        return KTable(aggregate_stream(self.group, node, given, spec), given.name)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            retired_names.refuse("KGroupedStream", retired_names.GROUPED, name)


TABLE_AGGREGATE, TABLE_REDUCE = "KTABLE-AGGREGATE-", "KTABLE-REDUCE-"


class KGroupedTable:
    """Rows of a table under new keys, to be aggregated."""

    __slots__ = ("group",)

    def __init__(self, place: Place, topic: str | None) -> None:
        self.group = Group(place, rekeyed=True, topic=topic)

    def count(self, *, store: StoreOption = None, value: SerdeLike | None = None, name: str | None = None) -> KTable:
        """How many rows each key has."""
        given = with_serdes(materialized(store, value=value), self.group.place.key, agg.COUNT_VALUE)
        return self._aggregate(agg.zero, agg.plus_one, agg.minus_one, given, name)

    def reduce(
        self,
        add: Function,
        subtract: Function,
        *,
        store: StoreOption = None,
        value: SerdeLike | None = None,
        name: str | None = None,
    ) -> KTable:
        """Combine the values of each key; a value that changes is first subtracted, then added."""
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
        initialize: Function,
        add: Function,
        subtract: Function,
        *,
        store: StoreOption = None,
        value: SerdeLike | None = None,
        name: str | None = None,
    ) -> KTable:
        """Aggregate the values of each key; a value that changes is first subtracted, then added."""
        exactly(0, initialize, "an initializer")
        exactly(3, add, "an adder")
        exactly(3, subtract, "a subtractor")
        given = with_serdes(materialized(store, value=value), self.group.place.key, None)
        return self._aggregate(initialize, add, subtract, given, name)

    def _aggregate(
        self, initialize: Function, add: Function, subtract: Function, given: Materialized, name: str | None
    ) -> KTable:
        place = self.group.place
        spec = key_value_store(place, given, TABLE_AGGREGATE)
        ends = self._ends(name)
        node = TableAggregate(place.named(name, TABLE_AGGREGATE), spec.name, initialize, add, subtract)
        return KTable(aggregate_table(self.group, node, given, spec, ends), given.name)

    def _ends(self, name: str | None) -> tuple[str, str]:
        """The sink and the source of the repartition topic."""
        place = self.group.place
        return place.named(name, "KSTREAM-SINK-", "-sink"), place.named(name, "KSTREAM-SOURCE-", "-source")
