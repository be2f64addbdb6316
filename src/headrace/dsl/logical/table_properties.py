"""Properties of tables: whether they send old values, which stores a lookup needs, whether they are versioned.

A table of a topic has a store only if the user named one, an operator looks rows up, or an operator needs old values.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.dsl.logical.graph import JoinTables, LogicalGraph, Operate, ReadTable, Step
from headrace.errors import TopologyError
from headrace.topology.java_order import hash_order
from headrace.topology.nodes import (
    ForeignUpdate,
    SessionAggregate,
    SlidingAggregate,
    StreamAggregate,
    StreamReduce,
    Subscribe,
    Suppress,
    TableAggregate,
    TableFilter,
    TableMapValues,
    TablePassThrough,
    TableReduce,
    TableRekey,
    TableSource,
    TableTransformValues,
    WindowAggregate,
)

StreamTable = StreamAggregate | StreamReduce | WindowAggregate | SlidingAggregate | SessionAggregate
Derived = TableFilter | TableMapValues | TableTransformValues
TableNode = StreamTable | TableAggregate | TableReduce | Derived | TableSource | TablePassThrough | Suppress


def send_old(table: Step, *, keep: bool) -> bool:
    """Make a table send old values; `keep`: also if it must be kept in a store for that. Says whether it does."""
    if not table.sends_old:
        table.sends_old = _send_old(table, keep=keep)
    return table.sends_old


def _send_old(table: Step, *, keep: bool) -> bool:
    if isinstance(table.what, JoinTables):
        return _send_old_of_join(table.what)
    node = node_of(table)
    if isinstance(node, TableSource):
        if node.store is None and not keep:
            return False
        keep_in_store(table)
    elif isinstance(node, Suppress) or (isinstance(node, Derived) and node.store is None):
        if not send_old(parent_of(table), keep=keep):
            return False
    elif isinstance(node, TablePassThrough):
        for aggregate in table.parents:
            _mark(aggregate)
    _mark(table)
    return True


def _send_old_of_join(join: JoinTables) -> bool:
    """A join subtracts the result of the old values, so it needs those of both sides."""
    send_old(join.left_table, keep=True)
    send_old(join.right_table, keep=True)
    join.left, join.right = replace(join.left, send_old=True), replace(join.right, send_old=True)
    join.merge = replace(join.merge, send_old=True)
    return True


def _mark(table: Step) -> None:
    set_node(table, replace(node_of(table), send_old=True))


def keep_in_store(table: Step) -> str:
    """Keep a table from a topic in the store that is set aside for it."""
    match table.what:
        case ReadTable(node=node, spec=spec) | Operate(node=TableSource() as node, stores=(spec,)):
            set_node(table, replace(node, store=spec.name))
            return spec.name
        case _:
            raise AssertionError(f"{table.name} has no store set aside")


def stores_to_look_up(table: Step) -> tuple[str, ...]:
    """The stores that are needed to look up a key of a table."""
    if isinstance(table.what, JoinTables):
        join = table.what
        if join.merge.store is not None:
            return (join.merge.store,)
        both = [*stores_to_look_up(join.left_table), *stores_to_look_up(join.right_table)]
        return tuple(hash_order(both, room=len(both)))
    node = node_of(table)
    if isinstance(node, TableSource):
        return (keep_in_store(table),)
    if isinstance(node, Suppress):
        return (node.buffer, *stores_to_look_up(parent_of(table)))
    return stores_to_look_up(parent_of(table)) if node.store is None else (node.store,)


def node_of(table: Step) -> TableNode:
    """The node of a table that is not a join."""
    match table.what:
        case ReadTable(node=node):
            return node
        case Operate(node=node) if isinstance(node, TableNode):
            return node
        case _:
            raise AssertionError(f"{table.name} is not a table")


def set_node(table: Step, node: TableNode) -> None:
    match table.what:
        case ReadTable() as read if isinstance(node, TableSource):
            read.node = node
        case Operate() as operate:
            operate.node = node
        case _:
            raise AssertionError(f"{table.name} is not a table")


def parent_of(step: Step) -> Step:
    return next(iter(step.parents))


def set_versioned(draft: LogicalGraph) -> None:
    """Tell operators below versioned tables so: they treat updates that come out of order in another way."""
    for step in draft.steps:
        match step.what:
            case Operate(node=TableFilter() | TableRekey() | Subscribe() | ForeignUpdate() as node) as operate:
                operate.node = replace(node, versioned=any(map(is_versioned, step.parents)))
            case JoinTables() as join:
                join.left = replace(join.left, versioned=is_versioned(join.left_table))
                join.right = replace(join.right, versioned=is_versioned(join.right_table))
            case Operate(node=Suppress()) if all_versioned(step):
                refuse_suppress(step.name)
            case _:
                pass


def is_versioned(step: Step) -> bool:
    return all_versioned(step) if step.versioned is None else step.versioned


def all_versioned(step: Step) -> bool:
    return bool(step.parents) and all(is_versioned(parent) for parent in step.parents)


def refuse_suppress(name: str) -> None:
    raise TopologyError(
        f"the updates of a versioned table cannot be held back by {name!r}: suppress a table without history"
    )


def grace_of(step: Step) -> int:
    """The grace of the windows above, the longest one if there are several."""
    return _grace(step, "")


def _grace(step: Step, path: str) -> int:
    if step.grace is not None:
        return step.grace
    path = f"{step.name} -> {path}" if path else step.name
    if not step.parents:
        raise TopologyError(
            f"only a windowed table has windows that close, but this one comes from {path}: use until_time_limit"
        )
    return max(_grace(parent, path) for parent in step.parents)
