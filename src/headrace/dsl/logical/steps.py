"""The steps of the DSL. A step becomes one node or several; `what` it is says which.

It also knows what optimization wants to know: whether it changes keys or values, where streams merge, when it was said.
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
    """Above all sources."""


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
    """One node with the stores that are its own, and the names of stores that it uses besides."""

    node: Node
    stores: tuple[StoreSpec, ...] = ()
    uses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Write:
    sink: Sink


@dataclass(slots=True)
class Repartition:
    """Through a topic of its own to the partition of the new key; the step's name is that of the source."""

    topic: str
    sink: str
    filter: str | None  # the node that holds back records without key; None in a grouped table
    key: SerdeLike | None
    value: SerdeLike | None
    partitioner: Partitioner | None = None
    partitions: int | None = None
    mergeable: bool = False  # optimization may make one topic of several
    drops_null_keys: bool = False  # set when all is known: nobody below needs them


@dataclass(slots=True)
class JoinStreams:
    left: StreamJoin
    right: StreamJoin
    merge: PassThrough
    with_itself: SelfJoin
    left_window: str  # the nodes that keep the records of each side
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
    left_stores: tuple[str, ...]  # what looking the left table up needs
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
    needs_null_keys: bool = False  # a join that lets records without key pass
    grace: int | None = None  # of the windows that it aggregates
    versioned: bool | None = None  # whether the table it gives is versioned; None: as the tables above
    sends_old: bool = False  # somebody below wants the old values
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
        """This step or the first one above it, depth first, that is wanted."""
        return next((step for step in self.upward() if wanted(step)), None)

    def downward(self) -> list[Step]:
        """All steps below, each once."""
        seen: dict[Step, None] = {}
        todo: list[Step] = [self]
        while todo:
            for child in todo.pop().children:
                if child not in seen:
                    seen[child] = None
                    todo.append(child)
        return list(seen)

    def upward(self) -> Iterator[Step]:
        seen: set[Step] = set()
        todo: list[Step] = [self]
        while todo:
            step = todo.pop()
            if step not in seen:
                seen.add(step)
                yield step
                todo.extend(reversed(step.parents))
