"""How a join of two tables becomes nodes."""

from __future__ import annotations

from typing import Literal, TypedDict

from headrace.dsl.functions import Function
from headrace.dsl.lookup import send_old, stores_to_look_up
from headrace.dsl.place import Place
from headrace.dsl.steps import JoinTables, Step
from headrace.dsl.stores import StoreOption, materialized, named, table_store, with_serdes
from headrace.state.spec import StoreSpec, VersionedKind
from headrace.topology.nodes import Partitioner, TableJoin, TableJoinMerge
from headrace.topology.serdes import SerdeLike

JoinKind = Literal["inner", "left", "outer"]


class TableJoinOptions(TypedDict, total=False):
    store: StoreOption
    name: str | None
    on: Function | None  # the foreign key of a row
    partitioner: Partitioner | None  # how the left table is partitioned, in a foreign-key join
    other_partitioner: Partitioner | None  # how the right one is


def join(
    left: Place, right: Place, joiner: Function, kind: JoinKind, options: TableJoinOptions
) -> tuple[Place, str | None]:
    """The joined table, and the name of its store if it has one."""
    refuse_partitioners(options)
    draft, name = left.draft, options.get("name")
    spec, key, value = result_store(left, options.get("store"))
    merge = TableJoinMerge(left.named(name, "KTABLE-MERGE-"), None if spec is None else spec.name)
    sources = draft.copartition(left.sources, right.sources)
    left_outer, right_outer = kind != "inner", kind == "outer"
    if left_outer:
        send_old(left.step, keep=True)
    if right_outer:
        send_old(right.step, keep=True)
    left_stores, right_stores = stores_to_look_up(left.step), stores_to_look_up(right.step)
    this = left.named(name, "KTABLE-JOINTHIS-", "-join-this")
    other = left.named(name, "KTABLE-JOINOTHER-", "-join-other")
    step = Step(
        merge.name,
        JoinTables(
            left=TableJoin(this, left.name, right.name, True, joiner, left_outer, right_outer),
            right=TableJoin(other, right.name, left.name, False, joiner, left_outer, right_outer),
            merge=merge,
            left_table=left.step,
            right_table=right.step,
            left_stores=left_stores,
            right_stores=right_stores,
            spec=spec,
        ),
        versioned=spec is not None and isinstance(spec.kind, VersionedKind),
    )
    draft.add(step, left.step, right.step)
    return Place(draft, step, merge.name, key, value, sources), merge.store


def result_store(left: Place, store: StoreOption) -> tuple[StoreSpec | None, SerdeLike | None, SerdeLike | None]:
    """The store of a joined table, and its serdes; a Materialized makes one also without a name."""
    if store is None:
        return None, left.key, None
    given = with_serdes(materialized(store), left.key, None)
    return table_store(given, named(given, left.draft.names, "KTABLE-MERGE-")), given.key, given.value


def refuse_partitioners(options: TableJoinOptions) -> None:
    for option in ("partitioner", "other_partitioner"):
        if options.get(option) is not None:
            raise TypeError(f"{option}= is for foreign-key joins: give on=, or leave it out")
