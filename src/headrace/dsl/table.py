"""KTable: the latest value of every key; GlobalKTable: the same, whole on every task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from headrace.dsl import joins, retired_names
from headrace.dsl.functions import Function, exactly, with_key
from headrace.dsl.joins import ForeignPair, TableJoinOptions, join_on_foreign_key
from headrace.dsl.logical.graph import Place
from headrace.dsl.logical.steps import Operate, Step
from headrace.dsl.logical.table_properties import send_old
from headrace.dsl.materialization import StoreOption, materialized, suppress, table_store, with_serdes
from headrace.dsl.options import Suppressed
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


@dataclass(frozen=True, eq=False, slots=True)
class GlobalKTable:
    """A table that every task has whole, for joins by any key."""

    store: str
    queryable_store_name: str | None


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class KTable:
    """A table of the latest values; it is made of its changes."""

    place: Place
    queryable_store_name: str | None = None

    def __repr__(self) -> str:
        return f"<KTable {self.place.name}>"

    def filter(self, keep: Function, *, store: StoreOption = None, name: str | None = None) -> KTable:
        """The rows for which `keep` is true."""
        return self._filter(keep, store, name, negate=False)

    def filter_not(self, drop: Function, *, store: StoreOption = None, name: str | None = None) -> KTable:
        """The rows for which `drop` is not true."""
        return self._filter(drop, store, name, negate=True)

    def map_values(self, change: Function, *, store: StoreOption = None, name: str | None = None) -> KTable:
        """Another value for every row."""
        kept = self._kept(store, "KTABLE-MAPVALUES-", None)
        node = TableMapValues(self._name(name, "KTABLE-MAPVALUES-"), with_key(change), kept.store)
        return self._then(node, kept)

    def transform_values(
        self, supplier: Callable[[], Any], *store_names: str, store: StoreOption = None, name: str | None = None
    ) -> KTable:
        """Another value for every row, by objects with `init(context)`, `transform(key, value)` and `close()`."""
        kept = self._kept(store, None, None)
        node = TableTransformValues(self._name(name, "KTABLE-TRANSFORMVALUES-"), supplier, kept.store)
        validation.makes_new_ones(supplier, node.name)
        return self._then(node, kept, store_names)

    def to_stream(self, key_selector: Function | None = None, *, name: str | None = None) -> KStream:
        """The changes of the table as a stream, under new keys if a selector is given."""
        from headrace.dsl.stream import KStream  # noqa: PLC0415 streams and tables make each other

        stream = KStream(self.place.then(TableToStream(self._name(name, "KTABLE-TOSTREAM-"))))
        return stream if key_selector is None else stream.select_key(key_selector)

    def suppress(self, suppressed: Suppressed, *, name: str | None = None) -> KTable:
        """Hold updates back until a window closes or some time has passed."""
        return KTable(suppress(self.place, suppressed, None if name is None else valid_name(name)))

    def group_by(
        self, select: Function, *, key: SerdeLike | None = None, value: SerdeLike | None = None, name: str | None = None
    ) -> KGroupedTable:
        """Group the rows anew: `select` gives a `(key, value)` for every row."""
        from headrace.dsl.grouped import KGroupedTable  # noqa: PLC0415

        node = TableRekey(self._name(name, "KTABLE-SELECT-"), with_key(select))
        place = self.place.then(node)
        send_old(self.place.step, keep=True)
        return KGroupedTable(replace(place, key=key, value=value), name)

    def join(self, other: KTable, joiner: Function, **options: Unpack[TableJoinOptions]) -> KTable:
        """Rows with a partner under the same key, or under the foreign key that `on` gives."""
        return self._join(other, joiner, "inner", options)

    def left_join(self, other: KTable, joiner: Function, **options: Unpack[TableJoinOptions]) -> KTable:
        """All rows of this table, with None for a partner that is not there."""
        return self._join(other, joiner, "left", options)

    def outer_join(self, other: KTable, joiner: Function, **options: Unpack[TableJoinOptions]) -> KTable:
        """All rows of both tables, with None for a partner that is not there."""
        if options.get("on") is not None:
            raise TypeError("there is no outer join on a foreign key: use left_join, or join without on=")
        return self._join(other, joiner, "outer", options)

    # --------------------------------------------------------------------------------------------------------------
    def _join(self, other: KTable, joiner: Function, kind: joins.TableJoinKind, options: TableJoinOptions) -> KTable:
        if not isinstance(other, KTable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a table is joined with a KTable, not with {other!r}")
        f, on = exactly(2, joiner, "the joiner of two tables"), options.get("on")
        if on is None:
            return KTable(*joins.join(self.place, other.place, f, kind, options))
        pair = ForeignPair(self.place, other.place, with_key(on, "on="), f, is_left=kind == "left")
        return KTable(*join_on_foreign_key(pair, options))

    def _filter(self, keep: Function, store: StoreOption, name: str | None, *, negate: bool) -> KTable:
        kept = self._kept(store, "KTABLE-FILTER-", self.place.value)
        parent_sends_old = send_old(self.place.step, keep=False)
        node = TableFilter(
            self._name(name, "KTABLE-FILTER-"), with_key(keep), negate, kept.store, send_old=parent_sends_old
        )
        return self._then(node, kept)

    def _kept(self, store: StoreOption, prefix: str | None, value: SerdeLike | None) -> _Kept:
        """What `store=` means for an operator that needs no store: one only if it is named."""
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
    ) -> KTable:
        stores = () if kept.spec is None else (kept.spec,)
        place = self.place.at(Step(node.name, Operate(node, stores, uses), versioned=kept.versioned))
        return KTable(replace(place, key=kept.key, value=kept.value), kept.store)

    def _name(self, name: str | None, prefix: str) -> str:
        return self.place.named(name, prefix)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            retired_names.refuse("KTable", retired_names.TABLE, name)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The serdes and the store of a derived table, and whether it is versioned (None: as the table above)."""

    key: SerdeLike | None
    value: SerdeLike | None
    spec: StoreSpec | None
    versioned: bool | None

    @property
    def store(self) -> str | None:
        return None if self.spec is None else self.spec.name
