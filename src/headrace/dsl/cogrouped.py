"""CogroupedKStream and WindowedCogroupedKStream: grouped streams that are aggregated together into one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic

from headrace.dsl import aggregates as agg
from headrace.dsl.aggregates import Group, grace_until_close, window_node
from headrace.dsl.functions import Function, exactly
from headrace.dsl.logical.graph import Operate, Place, Step, repartition
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
from headrace.dsl.types import V2, A, Aggregator, Initializer, K, Merger
from headrace.dsl.windowed import check_windows, windowed_functions
from headrace.hints import explain_names
from headrace.model.windows import Windowed
from headrace.serde.protocol import Serde
from headrace.state.spec import StoreSpec, VersionedKind
from headrace.topology.nodes import Node, SerdeLike, StreamAggregate, TablePassThrough

if TYPE_CHECKING:
    from headrace.dsl.grouped import KGroupedStream

NodeOf = Callable[[str, Function], Node]
PREFIX = "COGROUPKSTREAM-AGGREGATE-"


@dataclass(frozen=True, slots=True)
class Member:
    """One of the streams, and the function that adds its values to the aggregate."""

    group: Group
    add: Function


@explain_names()
@dataclass(frozen=True, eq=False, slots=True)
class CogroupedKStream(Generic[K, A]):
    """Grouped streams with keys of type `K`, to be aggregated into one table with values of type `A`.

    `KGroupedStream.cogroup` makes one. All aggregates of it share the repartition topics.

    >>> from headrace import StreamsBuilder, serde
    >>> builder = StreamsBuilder()
    >>> paid = builder.stream("payments", key=serde.STRING, value=serde.LONG).group_by_key()
    >>> refunds = builder.stream("refunds", key=serde.STRING, value=serde.LONG).group_by_key()
    >>> both = paid.cogroup(lambda user, cents, sum: sum + cents).cogroup(refunds, lambda user, cents, sum: sum - cents)
    >>> both.aggregate(lambda: 0, value=serde.LONG, store="balances")
    <KTable COGROUPKSTREAM-MERGE-0000000004>
    """

    members: tuple[Member, ...]
    repartitions: dict[Group, Step] = field(default_factory=dict[Group, Step])

    def cogroup(self, grouped: KGroupedStream[K, V2], add: Aggregator[K, V2, A]) -> CogroupedKStream[K, A]:
        """Together with one more stream. If the stream is here already, `add` replaces its aggregator."""
        member = Member(grouped.group, exactly(3, add, "an aggregator"))
        if any(m.group is member.group for m in self.members):
            return replace(self, members=tuple(member if m.group is member.group else m for m in self.members))
        return replace(self, members=(*self.members, member))

    def windowed_by(self, windows: AnyWindows) -> WindowedCogroupedKStream[K, A]:
        """Aggregate by key and window."""
        return WindowedCogroupedKStream(self.members, self.repartitions, windows)

    def aggregate(
        self,
        initialize: Initializer[A],
        *,
        store: StoreOption[K, A] = None,
        value: Serde[A] | None = None,
        name: str | None = None,
    ) -> KTable[K, A]:
        """Aggregate the values of all streams by key, from `initialize()` on."""
        exactly(0, initialize, "an initializer")
        given = _serdes(self.members, materialized(store, value=value))
        spec = table_store(given, named(given, self.members[0].group.place.draft.names, PREFIX))

        def node(name: str, add: Function) -> Node:
            return StreamAggregate(name, spec.name, initialize, add)

        return _table(_Cogroup(self.members, self.repartitions, spec, name, None), node, given, given.key)


@explain_names()
@dataclass(frozen=True, eq=False, slots=True)
class WindowedCogroupedKStream(Generic[K, A]):
    """Grouped streams, to be aggregated by key and window into one table. `CogroupedKStream.windowed_by` makes one."""

    members: tuple[Member, ...]
    repartitions: dict[Group, Step]
    windows: AnyWindows

    def __post_init__(self) -> None:
        check_windows(self.windows)

    def aggregate(
        self,
        initialize: Initializer[A],
        *,
        merger: Merger[K, A] | None = None,
        store: StoreOption[K, A] = None,
        value: Serde[A] | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], A]:
        """Aggregate the values of all streams by key and window. Session windows need a `merger(key, left, right)`."""
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
    """The aggregates of a cogrouped stream, before they are in the graph."""

    members: tuple[Member, ...]
    repartitions: dict[Group, Step]
    spec: StoreSpec
    name: str | None
    grace: int | None


def _serdes(members: tuple[Member, ...], given: Materialized) -> Materialized:
    """The key serde of the first stream that has one, unless one is given."""
    known = (member.group.place.key for member in members)
    return given if given.key is not None else replace(given, key=next((key for key in known if key is not None), None))


def _table(cogroup: _Cogroup, node: NodeOf, given: Materialized, key: SerdeLike | None) -> KTable[Any, Any]:
    """One aggregate for each stream, all on one store, and a node that merges them."""
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
    """The place of a grouped stream, below a repartition if its keys have changed."""
    if not group.rekeyed:
        return group.place
    place = group.place
    step = repartition(place.draft, group.topic or cogroup.spec.name, place.key, place.value)
    if group not in cogroup.repartitions:
        cogroup.repartitions[group] = place.draft.add(step, place.step)
    step = cogroup.repartitions[group]
    return replace(place, step=step, sources=frozenset({step.name}))
