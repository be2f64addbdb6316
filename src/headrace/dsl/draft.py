"""The DSL's own graph: what the user said, step by step, before it is optimized and written down as nodes."""

from __future__ import annotations

from headrace.dsl.steps import Repartition, Root, Step
from headrace.topology.graph import InternalTopic
from headrace.topology.naming import Names


class Draft:
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

    def copartition(self, *groups: frozenset[str]) -> frozenset[str]:
        """Note that the sources must have equally many partitions, since their records meet."""
        sources = frozenset[str]().union(*groups)
        self.copartitioned.append(sources)
        return sources


def rekeying_above(step: Step) -> Step | None:
    """The step that made a repartition necessary, unless values change in between: then it cannot move up there."""
    changing = step.nearest(lambda s: s.changes_key or s.changes_value)
    return changing if changing is not None and changing.changes_key else None
