"""The graph of steps that the operators of the DSL build, before it is optimized and lowered to topology nodes.

A call of the DSL adds a `Step`, and `lowering` turns each step into nodes: `Step.what` says which. The other fields of
a step are for the optimizations: whether it changes keys or values, whether it merges streams, and in which order the
steps were added.

A `Place` is the position of a stream or table in the graph. `repartition` makes the step that sends records through an
internal topic, between a step that changes keys and one that needs them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace

from headrace.state.spec import StoreSpec
from headrace.topology.connectors import SourceSpec
from headrace.topology.graph import InternalTopic
from headrace.topology.naming import Names
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


class LogicalGraph:
    """All steps of a builder, with the names that are used up and the groups of sources that must be co-partitioned."""

    def __init__(self) -> None:
        self.root = Step("root", Root())
        self.names = Names()
        self.steps: dict[Step, None] = {}
        self.merges: dict[Step, None] = {}
        self.rekeyed: dict[Step, dict[Step, None]] = {}  # by the step that changes keys: the repartitions it causes
        self.copartitioned: list[frozenset[str]] = []
        self.internal_topics: list[InternalTopic] = []  # of foreign-key joins
        self.sources: list[SourceSpec] = []  # systems that fill topics
        self._said = 0

    def add(self, step: Step, *parents: Step) -> Step:
        for parent in parents:
            parent.add_child(step)
            step.order = self._said
            self._said += 1
            self._note(step)
        return step

    def _note(self, step: Step) -> None:
        self.steps[step] = None
        if step.changes_key:
            self.rekeyed[step] = {}
        elif isinstance(step.what, Repartition) and step.what.mergeable:
            cause = rekeying_above(step)
            if cause is not None:
                self.rekeyed[cause][step] = None
        elif step.merges:
            self.merges[step] = None

    def copy(self) -> LogicalGraph:
        """A graph of its own steps, which optimizations can rewrite; nodes, functions and serdes are shared."""
        twins = {
            step: replace(step, what=copy(step.what), parents={}, children={}) for step in (self.root, *self.steps)
        }
        for step, twin in twins.items():
            twin.parents = {twins[parent]: None for parent in step.parents}
            twin.children = {twins[child]: None for child in step.children}
            twin.for_joins = None if step.for_joins is None else twins[step.for_joins]
            if isinstance(twin.what, JoinTables):
                twin.what.left_table, twin.what.right_table = twins[twin.what.left_table], twins[twin.what.right_table]
        other = LogicalGraph()
        other.root, other.names, other._said = twins[self.root], copy(self.names), self._said
        other.steps = {twins[step]: None for step in self.steps}
        other.merges = {twins[step]: None for step in self.merges}
        other.rekeyed = {twins[cause]: {twins[step]: None for step in caused} for cause, caused in self.rekeyed.items()}
        other.copartitioned, other.internal_topics = list(self.copartitioned), list(self.internal_topics)
        other.sources = list(self.sources)
        return other

    def copartition(self, *groups: frozenset[str]) -> frozenset[str]:
        """Note that the sources must have equally many partitions, since their records meet."""
        sources = frozenset[str]().union(*groups)
        self.copartitioned.append(sources)
        return sources


def rekeying_above(step: Step) -> Step | None:
    """The step that made a repartition necessary, unless values change in between: then it cannot move up there."""
    changing = step.nearest(lambda s: s.changes_key or s.changes_value)
    return changing if changing is not None and changing.changes_key else None


@dataclass(frozen=True, eq=False, slots=True)
class Place:
    """The position of a stream or table in the graph: its last step, its serdes and its sources."""

    draft: LogicalGraph
    step: Step
    name: str  # of the stream or table, as repartition topics are named after it
    key: SerdeLike | None  # serdes, as far as they are known
    value: SerdeLike | None
    sources: frozenset[str]  # the source nodes whose partitions it is spread over

    def named(self, name: str | None, prefix: str, suffix: str = "") -> str:
        return self.draft.names.given(name, prefix, suffix)

    def at(self, step: Step) -> Place:
        """Here, after a step has been added below."""
        return replace(self, step=self.draft.add(step, self.step), name=step.name)

    def then(self, node: Node, stores: tuple[StoreSpec, ...] = (), uses: tuple[str, ...] = ()) -> Place:
        """After one more node, with the serdes as they are."""
        return self.at(Step(node.name, Operate(node, stores, uses)))

    def changing(self, node: Node, *, key: bool = False, value: bool = False) -> Place:
        """After a node that gives new keys or values, of which the serdes are not known."""
        place = self.at(Step(node.name, Operate(node), changes_key=key, changes_value=value and not key))
        return replace(place, key=None if key else self.key, value=None if value else self.value)


SUFFIX = "-repartition"
_GENERATED = re.compile(r"KSTREAM.*-[0-9]{10}")


def repartition(
    draft: LogicalGraph,
    prefix: str,
    key: SerdeLike | None,
    value: SerdeLike | None,
    *,
    partitioner: Partitioner | None = None,
    partitions: int | None = None,
    mergeable: bool = True,
) -> Step:
    """A repartition step, not yet added. Its nodes are named after the topic, unless that has a generated name."""
    topic = prefix if prefix.endswith(SUFFIX) else prefix + SUFFIX
    names = draft.names
    sink, drop, source = names.take("KSTREAM-SINK-"), names.take("KSTREAM-FILTER-"), names.take("KSTREAM-SOURCE-")
    if not _GENERATED.fullmatch(prefix):
        sink, drop, source = f"{topic}-sink", f"{topic}-filter", f"{topic}-source"
    return Step(source, Repartition(topic, sink, drop, key, value, partitioner, partitions, mergeable))
