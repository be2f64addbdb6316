"""Aggregates of grouped streams and tables: their nodes, stores and repartitions.

`grouped`, `windowed` and `cogrouped` call `aggregate_stream`, `aggregate_table` and `aggregate_windows`. These add
steps to the DSL's graph and return the `Place` of the resulting table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headrace.dsl.functions import Function
from headrace.dsl.logical.graph import SUFFIX, Operate, Place, Repartition, Step, repartition
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
from headrace.model.windows import SessionWindows, SlidingWindows
from headrace.serde.primitives import LONG
from headrace.state.spec import StoreSpec, VersionedKind
from headrace.topology.nodes import ChangeOf, Node, SerdeLike, SessionAggregate, SlidingAggregate, WindowAggregate


@dataclass(eq=False, slots=True)
class Group:
    """A grouped stream or table. All its aggregates share the repartition topic `topic`, if the user named one."""

    place: Place
    rekeyed: bool
    topic: str | None
    repartition: Step | None = None

    def store_for_count(self, store: StoreOption[Any, Any], value: SerdeLike | None) -> Materialized:
        """Returns the store of a count. Like Kafka Streams, a Materialized without a name uses up one more number."""
        if isinstance(store, Materialized) and store.name is None:
            self.place.draft.names.store("KSTREAM-AGGREGATE-")
        return materialized(store, value=value)


def aggregate_stream(group: Group, node: Node, given: Materialized, spec: StoreSpec, grace: int | None = None) -> Place:
    """Adds a table that aggregates a grouped stream."""
    draft, parent, sources = group.place.draft, group.place.step, group.place.sources
    if group.rekeyed:
        parent = repartitioned(group, spec.name)
        sources = frozenset({parent.name})
    step = Step(node.name, Operate(node, (spec,)), grace=grace, versioned=isinstance(spec.kind, VersionedKind))
    draft.add(step, parent)
    return Place(draft, step, node.name, given.key, given.value, sources)


def repartitioned(group: Group, store: str) -> Step:
    """Adds the repartition of the group. Its topic is named after the store, unless the user named it."""
    place = group.place
    step = repartition(place.draft, group.topic or store, place.key, place.value)
    if group.repartition is None or group.topic is None:
        group.repartition = step
    return place.draft.add(group.repartition, place.step)


def aggregate_table(group: Group, node: Node, given: Materialized, spec: StoreSpec, names: tuple[str, str]) -> Place:
    """Adds a table that aggregates a grouped table: old values are subtracted, new values added."""
    place, (sink, source) = group.place, names
    topic = (group.topic or spec.name) + SUFFIX
    if group.repartition is None or group.topic is None:
        change = ChangeOf(place.value)
        group.repartition = Step(source, Repartition(topic, sink, None, place.key, change))
    parent = place.draft.add(group.repartition, place.step)
    step = Step(node.name, Operate(node, (spec,)), versioned=isinstance(spec.kind, VersionedKind))
    place.draft.add(step, parent)
    return Place(place.draft, step, node.name, given.key, given.value, frozenset({parent.name}))


def key_value_store(place: Place, given: Materialized, prefix: str) -> StoreSpec:
    return table_store(given, named(given, place.draft.names, prefix))


@dataclass(frozen=True, slots=True)
class WindowedFunctions:
    """The functions of a windowed aggregate; only session windows merge."""

    initialize: Function
    add: Function
    merge: Function


def aggregate_windows(
    group: Group,
    windows: AnyWindows,
    emit: EmitStrategy,
    f: WindowedFunctions,
    given: Materialized,
    names: tuple[str, str],
) -> Place:
    """Adds a windowed table that aggregates a grouped stream. `names` are those of the store and of the node."""
    store, name = names
    spec = window_store(given, store, windows, emit)
    node = window_node(name, store, windows, f, on_close=emit is EmitStrategy.ON_WINDOW_CLOSE)
    place = aggregate_stream(group, node, given, spec, grace_until_close(windows))
    return replace(place, key=windowed_key(windows, given.key))


def window_node(name: str, store: str, windows: AnyWindows, f: WindowedFunctions, *, on_close: bool = False) -> Node:
    match windows:
        case SessionWindows():
            return SessionAggregate(name, store, windows, f.initialize, f.add, f.merge, on_close)
        case SlidingWindows():
            return SlidingAggregate(name, store, windows, f.initialize, f.add, on_close)
        case _:
            return WindowAggregate(name, store, windows, f.initialize, f.add, on_close)


def grace_until_close(windows: AnyWindows) -> int:
    """Returns how long after its end a window closes. A session can still be extended during its gap."""
    return windows.gap + windows.grace if isinstance(windows, SessionWindows) else windows.grace


# ------------------------------------------------------------------------------------------------------ functions
COUNT_VALUE = LONG


def zero() -> int:
    return 0


def nothing() -> None:
    return None


def plus_one(key: Any, value: Any, count: int) -> int:
    return count + 1


def minus_one(key: Any, value: Any, count: int) -> int:
    return count - 1


def sum_of_counts(key: Any, one: int, other: int) -> int:
    return one + other


def adding(reduce: Function) -> Function:
    """Turns a reducer into an aggregator whose first value is the first record's."""

    def run(key: Any, value: Any, so_far: Any) -> Any:
        return value if so_far is None else reduce(so_far, value)

    return run


def merging(reduce: Function) -> Function:
    """Turns a reducer into a merger of sessions."""

    def run(key: Any, one: Any, other: Any) -> Any:
        return other if one is None else reduce(one, other)

    return run
