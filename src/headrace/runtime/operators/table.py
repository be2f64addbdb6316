"""Operators on tables: source, filter, map, transform, and the two halves of `group_by`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from headrace.errors import StreamsError
from headrace.model.record import Change, Headers
from headrace.runtime.environment import Emit, Env
from headrace.runtime.tables import forwarder, keyed
from headrace.topology.nodes import (
    TableAggregate,
    TableFilter,
    TableMapValues,
    TableReduce,
    TableRekey,
    TableSource,
    TableTransformValues,
)


def source(node: TableSource, env: Env, emit: Emit) -> Emit:
    drop = env.drop
    if node.store is None:

        def pass_on(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            if key is None:
                drop("null key")
            else:
                emit(key, (value, None, True), timestamp, headers)

        return pass_on
    place_of, get, put = keyed(env.store(node.store))
    forward = forwarder(node.store, env, emit, send_old=node.send_old)

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            drop("null key")
            return
        place = place_of(key)
        before = get(place)
        latest = put(place, value, timestamp)
        if latest is not None:
            forward(place, key, value, before and before[0], timestamp, timestamp, headers, latest)

    return run


def to_stream(emit: Emit) -> Emit:
    def run(key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        emit(key, value[0], timestamp, headers)

    return run


def derived(
    node: TableFilter | TableMapValues | TableTransformValues, value_of: Callable[[Any, Any], Any], env: Env, emit: Emit
) -> Emit:
    """A table that computes its values from its parent's; with `send_old` it also forwards the old values."""
    send_old = node.send_old
    # Quiet: forwards nothing if both values are absent. A versioned table forwards, because readers need every version.
    quiet = isinstance(node, TableFilter) and send_old and not node.versioned
    if node.store is None:

        def compute(key: Any, value: Change, timestamp: int, headers: Headers) -> None:
            new = value_of(key, value[0])
            old = value_of(key, value[1]) if send_old else None
            if not (quiet and new is None and old is None):
                emit(key, (new, old, value[2]), timestamp, headers)

        return compute
    place_of, get, put = keyed(env.store(node.store))
    forward = forwarder(node.store, env, emit, send_old=send_old)

    def run(key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        new = value_of(key, value[0])
        place = place_of(key)
        before = get(place) if send_old else None
        old = before and before[0]
        if quiet and new is None and old is None:
            return
        latest = put(place, new, timestamp)
        if latest is not None:
            forward(place, key, new, old, timestamp, timestamp, headers, latest)

    return run


def filtered(node: TableFilter) -> Callable[[Any, Any], Any]:
    keep, negate = node.keep, node.negate
    return lambda key, value: value if value is not None and bool(keep(key, value)) != negate else None


def mapped(node: TableMapValues) -> Callable[[Any, Any], Any]:
    change = node.change
    return lambda key, value: None if value is None else change(key, value)


def rekey(node: TableRekey, emit: Emit) -> Emit:
    select, versioned, name = node.select, node.versioned, node.name

    def pair_of(key: Any, value: Any) -> tuple[Any, Any] | None:
        if value is None:
            return None
        pair = select(key, value)
        if not isinstance(pair, tuple) or len(pair) != 2:  # pyright: ignore[reportUnknownArgumentType]
            raise TypeError(f"{name}: a function given to a table's group_by returns a (key, value) pair, not {pair!r}")
        group, part = cast("tuple[Any, Any]", pair)
        return None if group is None or part is None else (group, part)

    def run(key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        if key is None:
            raise StreamsError(f"{name}: a record without a key cannot be grouped; filter it out before the table")
        new, old, latest = value
        if versioned and not latest:
            return
        added, removed = pair_of(key, new), pair_of(key, old)
        if added and removed and added[0] == removed[0]:
            emit(added[0], (added[1], removed[1], latest), timestamp, headers)
            return
        if removed:
            emit(removed[0], (None, removed[1], latest), timestamp, headers)
        if added:
            emit(added[0], (added[1], None, latest), timestamp, headers)

    return run


def aggregate(node: TableAggregate, env: Env, emit: Emit) -> Emit:
    initialize = node.initialize

    def first(key: Any, value: Any) -> Any:
        return node.add(key, value, initialize())

    return changed_aggregate(node, node.add, node.subtract, first, env, emit)


def reduce(node: TableReduce, env: Env, emit: Emit) -> Emit:
    return changed_aggregate(
        node,
        lambda key, value, aggregate: node.add(aggregate, value),
        lambda key, value, aggregate: node.subtract(aggregate, value),
        lambda key, value: value,
        env,
        emit,
    )


def changed_aggregate(
    node: TableAggregate | TableReduce,
    add: Callable[[Any, Any, Any], Any],
    subtract: Callable[[Any, Any, Any], Any],
    first: Callable[[Any, Any], Any],
    env: Env,
    emit: Emit,
) -> Emit:
    """Subtracts the old value from the aggregate and adds the new one."""
    place_of, get, put = keyed(env.store(node.store))
    forward = forwarder(node.store, env, emit, send_old=node.send_old)

    def run(key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        if key is None:
            raise StreamsError(f"{node.name}: the group key is null; let group_by select one, or filter the record out")
        place = place_of(key)
        before, time = get(place), timestamp
        old = before and before[0]
        aggregate = old
        if value[1] is not None and old is not None:
            aggregate = subtract(key, value[1], old)
        if value[0] is not None:
            aggregate = first(key, value[0]) if aggregate is None else add(key, value[0], aggregate)
        if before is not None and (value[0] is not None or value[1] is not None):
            time = max(timestamp, before[1])
        latest = put(place, aggregate, time)
        if latest is not None:
            forward(place, key, aggregate, old, time, timestamp, headers, latest)

    return run
