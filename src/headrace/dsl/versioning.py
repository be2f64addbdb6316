"""Versioned tables and windows above: what an operator inherits from the steps it comes from."""

from __future__ import annotations

from dataclasses import replace

from headrace.dsl.draft import Draft
from headrace.dsl.steps import JoinTables, Operate, Step
from headrace.errors import TopologyError
from headrace.topology.nodes import ForeignUpdate, Subscribe, Suppress, TableFilter, TableRekey


def set_versioned(draft: Draft) -> None:
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
