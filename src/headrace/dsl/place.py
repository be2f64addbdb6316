"""Where in a draft a stream or table is: what the next operator needs to know of the ones before."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.dsl.draft import Draft
from headrace.dsl.steps import Operate, Step
from headrace.state.spec import StoreSpec
from headrace.topology.nodes import Node
from headrace.topology.serdes import SerdeLike


@dataclass(frozen=True, eq=False, slots=True)
class Place:
    draft: Draft
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
