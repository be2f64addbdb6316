"""The graph of steps that the operators of the DSL build, before it is optimized and lowered to topology nodes.

A `Place` is the position of a stream or table in the graph. `repartition` makes the step that sends records through an
internal topic, between a step that changes keys and one that needs them.
"""

from __future__ import annotations

import re
from copy import copy
from dataclasses import dataclass, replace

from headrace.dsl.logical.steps import JoinTables, Operate, Repartition, Root, Step
from headrace.state.spec import StoreSpec
from headrace.topology.graph import InternalTopic
from headrace.topology.naming import Names
from headrace.topology.nodes import Node, Partitioner, SerdeLike


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
