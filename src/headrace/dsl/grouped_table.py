"""Grouped tables: rows under new keys."""

from __future__ import annotations

from headrace.dsl import aggregates as agg
from headrace.dsl.aggregates import Group, aggregate_table, key_value_store
from headrace.dsl.functions import Function, exactly
from headrace.dsl.options import Materialized
from headrace.dsl.place import Place
from headrace.dsl.stores import StoreOption, materialized, with_serdes
from headrace.dsl.table import KTable
from headrace.topology.nodes import TableAggregate, TableReduce
from headrace.topology.serdes import SerdeLike

AGGREGATE, REDUCE = "KTABLE-AGGREGATE-", "KTABLE-REDUCE-"


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
        spec = key_value_store(place, given, AGGREGATE)
        ends = self._ends(name)
        node = TableReduce(place.named(name, REDUCE), spec.name, add, subtract)
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
        spec = key_value_store(place, given, AGGREGATE)
        ends = self._ends(name)
        node = TableAggregate(place.named(name, AGGREGATE), spec.name, initialize, add, subtract)
        return KTable(aggregate_table(self.group, node, given, spec, ends), given.name)

    def _ends(self, name: str | None) -> tuple[str, str]:
        """The sink and the source of the repartition topic."""
        place = self.group.place
        return place.named(name, "KSTREAM-SINK-", "-sink"), place.named(name, "KSTREAM-SOURCE-", "-source")
