"""Grouped streams that are aggregated together into one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.dsl import aggregates as agg
from headrace.dsl.aggregates import Group, grace_until_close, window_node
from headrace.dsl.functions import Function, exactly
from headrace.dsl.logical.graph import Place, repartition
from headrace.dsl.logical.steps import Operate, Step
from headrace.dsl.materialization import (
    AnyWindows,
    StoreOption,
    materialized,
    named,
    table_store,
    window_store,
    windowed_key,
)
from headrace.dsl.options import EmitStrategy, Materialized
from headrace.dsl.table import KTable
from headrace.dsl.windowed import check_windows, windowed_functions
from headrace.state.spec import StoreSpec, VersionedKind
from headrace.topology.nodes import Node, SerdeLike, StreamAggregate, TablePassThrough

if TYPE_CHECKING:
    from headrace.dsl.grouped import KGroupedStream

NodeOf = Callable[[str, Function], Node]
PREFIX = "COGROUPKSTREAM-AGGREGATE-"


@dataclass(frozen=True, slots=True)
class Member:
    """One of the streams, and how its values are added to the aggregate."""

    group: Group
    add: Function


@dataclass(frozen=True, eq=False, slots=True)
class CogroupedKStream:
    """Grouped streams, to be aggregated into one table; all its aggregates share the repartitions."""

    members: tuple[Member, ...]
    repartitions: dict[Group, Step] = field(default_factory=dict[Group, Step])

    def cogroup(self, grouped: KGroupedStream, add: Function) -> CogroupedKStream:
        """Together with one more stream; if it is one of them already its aggregator is replaced."""
        member = Member(grouped.group, exactly(3, add, "an aggregator"))
        if any(m.group is member.group for m in self.members):
            return replace(self, members=tuple(member if m.group is member.group else m for m in self.members))
        return replace(self, members=(*self.members, member))

    def windowed_by(self, windows: AnyWindows) -> WindowedCogroupedKStream:
        """Aggregate per key and window."""
        return WindowedCogroupedKStream(self.members, self.repartitions, windows)

    def aggregate(
        self,
        initialize: Function,
        *,
        store: StoreOption = None,
        value: SerdeLike | None = None,
        name: str | None = None,
    ) -> KTable:
        """Aggregate the values of all streams by key, starting from `initialize()`."""
        exactly(0, initialize, "an initializer")
        given = _serdes(self.members, materialized(store, value=value))
        spec = table_store(given, named(given, self.members[0].group.place.draft.names, PREFIX))

        def node(name: str, add: Function) -> Node:
            return StreamAggregate(name, spec.name, initialize, add)

        return _table(_Cogroup(self.members, self.repartitions, spec, name, None), node, given, given.key)


@dataclass(frozen=True, eq=False, slots=True)
class WindowedCogroupedKStream:
    """Grouped streams in windows, to be aggregated into one table."""

    members: tuple[Member, ...]
    repartitions: dict[Group, Step]
    windows: AnyWindows

    def __post_init__(self) -> None:
        check_windows(self.windows)

    def aggregate(
        self,
        initialize: Function,
        *,
        merger: Function | None = None,
        store: StoreOption = None,
        value: SerdeLike | None = None,
        name: str | None = None,
    ) -> KTable:
        """Aggregate the values of all streams by key and window; sessions need a `merger(key, left, right)`."""
        initial = windowed_functions(self.windows, initialize, agg.nothing, merger)
        given = _serdes(self.members, materialized(store, value=value))
        store_name = named(given, self.members[0].group.place.draft.names, PREFIX)
        spec = window_store(given, store_name, self.windows, EmitStrategy.ON_WINDOW_UPDATE)

        def node(name: str, add: Function) -> Node:
            return window_node(name, spec.name, self.windows, replace(initial, add=add))

        cogroup = _Cogroup(self.members, self.repartitions, spec, name, grace_until_close(self.windows))
        return _table(cogroup, node, given, windowed_key(self.windows, given.key))


@dataclass(frozen=True, slots=True)
class _Cogroup:
    members: tuple[Member, ...]
    repartitions: dict[Group, Step]
    spec: StoreSpec
    name: str | None
    grace: int | None


def _serdes(members: tuple[Member, ...], given: Materialized) -> Materialized:
    """The key serde of the first stream that has one, unless one is given."""
    known = (member.group.place.key for member in members)
    return given if given.key is not None else replace(given, key=next((key for key in known if key is not None), None))


def _table(cogroup: _Cogroup, node: NodeOf, given: Materialized, key: SerdeLike | None) -> KTable:
    """One aggregate per stream, all on one store, and a node where they meet."""
    draft = cogroup.members[0].group.place.draft
    parents = [_partitioned(member.group, cogroup) for member in cogroup.members]
    draft.copartition(*(parent.sources for parent in parents))
    versioned = isinstance(cogroup.spec.kind, VersionedKind) if cogroup.grace is None else None
    steps: list[Step] = []
    for index, (member, parent) in enumerate(zip(cogroup.members, parents, strict=True)):
        name = parent.named(cogroup.name, PREFIX, f"-cogroup-agg-{index}")
        operate = Operate(node(name, member.add), (cogroup.spec,))
        steps.append(draft.add(Step(name, operate, grace=cogroup.grace, versioned=versioned), parent.step))
    merge = draft.names.given(cogroup.name, "COGROUPKSTREAM-MERGE-", "-cogroup-merge")
    step = draft.add(Step(merge, Operate(TablePassThrough(merge, cogroup.spec.name))), *steps)
    sources = frozenset[str]().union(*(parent.sources for parent in parents))
    return KTable(Place(draft, step, merge, key, given.value, sources), given.name)


def _partitioned(group: Group, cogroup: _Cogroup) -> Place:
    if not group.rekeyed:
        return group.place
    place = group.place
    step = repartition(place.draft, group.topic or cogroup.spec.name, place.key, place.value)
    if group not in cogroup.repartitions:
        cogroup.repartitions[group] = place.draft.add(step, place.step)
    step = cogroup.repartitions[group]
    return replace(place, step=step, sources=frozenset({step.name}))
