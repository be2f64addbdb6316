"""The steps of the DSL's graph. A call of the DSL adds a `Step`, and `lowering` turns each step into nodes.

`Step.what` says which nodes a step becomes. The other fields of a step are for the optimizations: whether it changes
keys or values, whether it merges streams, and in which order the steps were added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from headrace.state.spec import StoreSpec
from headrace.topology.nodes import (
    Node,
    Partitioner,
    PassThrough,
    Process,
    SelfJoin,
    SerdeLike,
    Sink,
    Source,
    StreamJoin,
    TableJoin,
    TableJoinMerge,
    TableSource,
)


@dataclass(frozen=True, slots=True)
class Root:
    """The parent of all sources."""


@dataclass(slots=True)
class ReadStream:
    source: Source


@dataclass(slots=True)
class ReadTable:
    source: Source
    node: TableSource
    spec: StoreSpec


@dataclass(frozen=True, slots=True)
class ReadGlobal:
    source: Source
    node: TableSource | Process
    spec: StoreSpec


@dataclass(frozen=True, slots=True)
class AddStore:
    spec: StoreSpec


@dataclass(slots=True)
class Operate:
    """One node, with the stores that it owns and the names of other stores that it uses."""

    node: Node
    stores: tuple[StoreSpec, ...] = ()
    uses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Write:
    sink: Sink


@dataclass(slots=True)
class Repartition:
    """Sends records to the partition of their new key, through an internal topic. The step has the source's name."""

    topic: str
    sink: str
    filter: str | None  # the node that drops records without a key; None for a grouped table
    key: SerdeLike | None
    value: SerdeLike | None
    partitioner: Partitioner | None = None
    partitions: int | None = None
    mergeable: bool = False  # optimization may merge its topic with others
    drops_null_keys: bool = False  # set by `drop_null_keys`: no step below needs them


@dataclass(slots=True)
class JoinStreams:
    left: StreamJoin
    right: StreamJoin
    merge: PassThrough
    with_itself: SelfJoin
    left_window: str  # the nodes that store the records of each side
    right_window: str
    left_spec: StoreSpec
    right_spec: StoreSpec
    outer_spec: StoreSpec | None
    is_self_join: bool = False  # set by optimization


@dataclass(slots=True)
class JoinTables:
    left: TableJoin
    right: TableJoin
    merge: TableJoinMerge
    left_table: Step
    right_table: Step
    left_stores: tuple[str, ...]  # the stores that a lookup in the left table needs
    right_stores: tuple[str, ...]
    spec: StoreSpec | None


What = (
    Root | ReadStream | ReadTable | ReadGlobal | AddStore | Operate | Write | Repartition | JoinStreams | JoinTables
)  # fmt: skip


@dataclass(eq=False, repr=False, slots=True)
class Step:
    name: str
    what: What
    order: int = -1
    parents: dict[Step, None] = field(default_factory=dict["Step", None])
    children: dict[Step, None] = field(default_factory=dict["Step", None])
    changes_key: bool = False
    changes_value: bool = False
    merges: bool = False
    needs_null_keys: bool = False  # a join that passes on records without a key
    grace: int | None = None  # of the windows that it aggregates
    versioned: bool | None = None  # whether its table is versioned; None: like the tables above
    sends_old: bool = False  # a step below needs the old values
    for_joins: Step | None = None  # the repartition that joins of this stream share

    def __repr__(self) -> str:
        return f"<step {self.name}>"

    def add_child(self, child: Step) -> None:
        self.children[child] = None
        child.parents[self] = None

    def remove_child(self, child: Step) -> None:
        self.children.pop(child, None)
        child.parents.pop(self, None)

    def nearest(self, wanted: Callable[[Step], bool]) -> Step | None:
        """Returns this step or the first step above it, depth first, for which `wanted` is true."""
        return next((step for step in self.upward() if wanted(step)), None)

    def downward(self) -> list[Step]:
        """Returns all steps below, each once."""
        seen: dict[Step, None] = {}
        todo: list[Step] = [self]
        while todo:
            for child in todo.pop().children:
                if child not in seen:
                    seen[child] = None
                    todo.append(child)
        return list(seen)

    def upward(self) -> Iterator[Step]:
        """Yields this step and all steps above it, depth first, each once."""
        seen: set[Step] = set()
        todo: list[Step] = [self]
        while todo:
            step = todo.pop()
            if step not in seen:
                seen.add(step)
                yield step
                todo.extend(reversed(step.parents))
