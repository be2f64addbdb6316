"""Joins with tables: stream-table, stream-global table and table-table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.model.record import Change, Headers
from headrace.runtime.environment import Emit, Env, Lookup
from headrace.runtime.tables import forwarder, keyed
from headrace.state.buffer import GraceBuffer
from headrace.topology.nodes import GlobalJoin, StreamTableJoin, TableJoin, TableJoinMerge

UNKNOWN = -1  # the timestamp of an absent value


def stream_table_join(node: StreamTableJoin, env: Env, buffer: GraceBuffer | None, emit: Emit) -> Emit:
    table = env.lookup(node.table)
    get, as_of, joiner, left, drop = table.get, table.as_of, node.joiner, node.left, env.drop

    def join(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if value is None or (key is None and not left):
            drop("null key or value")
            return
        found = None if key is None else as_of(key, timestamp) if as_of else get(key)
        if found is not None:
            emit(key, joiner(key, value, found[0]), timestamp, headers)
        elif left:
            emit(key, joiner(key, value, None), timestamp, headers)

    return join if buffer is None or node.grace is None else with_grace(node, env, table, buffer, join)


def with_grace(node: StreamTableJoin, env: Env, table: Lookup, buffer: GraceBuffer, join: Emit) -> Emit:
    """Joins a record when its grace has passed, with the table's version at the record's timestamp."""
    if table.as_of is None:
        raise ValueError(
            f"{node.name}: a join with grace needs a versioned table; give it store=Materialized(name, history=...)"
        )
    here, grace = env.here, node.grace or 0
    observed = env.state.cell(f"{node.name}/stream time", -1)

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if value is None or (key is None and not node.left):
            join(key, value, timestamp, headers)  # drops it
            return
        observed.value = max(observed.value, timestamp)
        if key is None:
            raise ValueError(
                f"{node.name}: a record without a key cannot wait for its grace; filter it out before the join"
            )
        if timestamp < observed.value - grace:
            join(key, value, timestamp, headers)
            return
        buffer.add(timestamp, key, value, headers, here.metadata)
        row = here.row
        for entry in buffer.take_until(observed.value - grace):
            here.metadata = entry.metadata
            join(entry.key, entry.value, entry.timestamp, entry.headers)
        here.row = row

    return run


def global_join(node: GlobalJoin, lookup: Lookup, env: Env, emit: Emit) -> Emit:
    on, joiner, left, drop, get = node.on, node.joiner, node.left, env.drop, lookup.get

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        join_key = on(key, value)
        if value is None or (join_key is None and not left):
            drop("null key or value")
            return
        found = None if join_key is None else get(join_key)
        if found is not None:
            emit(key, joiner(key, value, found[0]), timestamp, headers)
        elif left:
            emit(key, joiner(key, value, None), timestamp, headers)

    return run


def table_join(node: TableJoin, env: Env, emit: Emit) -> Emit:
    """The operator of one side of a table-table join."""
    get, drop, send_old, versioned = env.lookup(node.other).get, env.drop, node.send_old, node.versioned
    join = both_values(node)
    other_needed = not (node.left_outer if node.left_side else node.right_outer)

    def run(key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        new, old, latest = value
        if key is None:
            drop("null key")
            return
        if versioned and not latest:
            drop("older version")
            return
        found = get(key)
        if found is None:
            if other_needed or (new is None and old is None):
                return
            other = None
        else:
            other, time = found
            timestamp = max(timestamp, time)
        joined_old = join(old, other) if send_old else None
        emit(key, (join(new, other), joined_old, latest), timestamp, headers)

    return run


def both_values(node: TableJoin) -> Callable[[Any, Any], Any]:
    """The joined value of (this, other), None where an inner side is absent."""
    joiner, left_side = node.joiner, node.left_side
    alone = node.right_outer if left_side else node.left_outer  # whether the other value is forwarded without this one

    def run(this: Any, other: Any) -> Any:
        if this is None and (not alone or other is None):
            return None
        return joiner(this, other) if left_side else joiner(other, this)

    return run


def joined_lookup(node: TableJoin, env: Env) -> Lookup:
    """The lookup in a join without a store, through both tables; `node` is its left side."""
    left_get, right_get = env.lookup(node.this).get, env.lookup(node.other).get

    def get(key: Any) -> tuple[Any, int] | None:
        left = left_get(key)
        if left is None and not node.right_outer:
            return None
        right = right_get(key)
        if right is None and (not node.left_outer or left is None):
            return None
        value = node.joiner(left and left[0], right and right[0])
        return None if value is None else (value, max(left[1] if left else UNKNOWN, right[1] if right else UNKNOWN))

    return Lookup(get)


def merge(node: TableJoinMerge, env: Env, emit: Emit) -> Emit:
    send_old = node.send_old
    if node.store is None:

        def pass_on(key: Any, value: Change, timestamp: int, headers: Headers) -> None:
            emit(key, value if send_old else (value[0], None, value[2]), timestamp, headers)

        return pass_on
    place_of, _, put = keyed(env.store(node.store))
    forward = forwarder(node.store, env, emit, send_old=send_old)

    def run(key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        place = place_of(key)
        latest = put(place, value[0], timestamp)
        if latest is not None:
            forward(place, key, value[0], value[1], timestamp, timestamp, headers, latest)

    return run
