"""Optimizations of the DSL's graph, one function each, and the rewrites that every build makes.

`optimize` changes the graph in place, before `lowering`. The names of the optimizations are those of Kafka Streams.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from headrace.dsl.logical.graph import JoinStreams, LogicalGraph, ReadStream, Repartition, Step, repartition
from headrace.errors import TopologyError
from headrace.topology.nodes import SerdeLike, Source

REUSE_SOURCE_TOPICS = "reuse.ktable.source.topics"
MERGE_REPARTITIONS = "merge.repartition.topics"
SELF_JOIN = "single.store.self.join"
ALL = frozenset({REUSE_SOURCE_TOPICS, MERGE_REPARTITIONS, SELF_JOIN})


def optimizations(asked: bool | str | Iterable[str] | None) -> frozenset[str]:
    """The optimizations that `build(optimize=)` asks for: True or "all", False or "none", or names of them.

    >>> optimizations("merge.repartition.topics")
    frozenset({'merge.repartition.topics'})
    """
    if asked is None or isinstance(asked, bool):
        return ALL if asked else frozenset()
    if not isinstance(asked, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"optimize is True, False, 'all', 'none' or names of optimizations, not {asked!r}")
    given = {part.strip() for part in asked.split(",")} if isinstance(asked, str) else set(asked)
    if given in ({"none"}, {"all"}):
        return ALL if "all" in given else frozenset()
    if not given <= ALL:
        unknown = ", ".join(sorted(given - ALL))
        raise ValueError(f"optimize is 'none', 'all' or some of {', '.join(sorted(ALL))}, not {unknown}")
    return frozenset(given)


def optimize(draft: LogicalGraph, asked: frozenset[str]) -> None:
    """Rewrites the graph.

    Reusing source topics as changelogs changes nothing: the state of a table is in the checkpoint.
    """
    merge_sources(draft)
    if MERGE_REPARTITIONS in asked:
        merge_repartitions(draft)
    if SELF_JOIN in asked:
        rewrite_self_joins(draft)
    drop_null_keys(draft)


# --------------------------------------------------------------------------------------------------------- always
def merge_sources(draft: LogicalGraph) -> None:
    """Merges the sources of streams that read the same topics or the same pattern."""
    by_topic: dict[str, tuple[Step, Source]] = {}
    by_pattern: dict[re.Pattern[str], tuple[Step, Source]] = {}
    for step in list(draft.root.children):
        if not isinstance(step.what, ReadStream):
            continue
        source = step.what.source
        if source.pattern is not None:
            first, read = by_pattern.setdefault(source.pattern, (step, source))
            merge_into(first, read, step, source, draft)
        for topic in source.topics:
            first, read = by_topic.setdefault(topic, (step, source))
            if set(read.topics) != set(source.topics):
                raise TopologyError(
                    f"the topic {topic!r} is read by {read.name!r} and by {source.name!r} together with other topics: "
                    "two streams read the same list of topics or have none in common"
                )
            merge_into(first, read, step, source, draft)


def merge_into(first: Step, read: Source, step: Step, source: Source, draft: LogicalGraph) -> None:
    if first is step:
        return
    if read.offset_reset != source.offset_reset:
        raise TopologyError(f"{read.name!r} and {source.name!r} read the same topics: give both the same offset_reset")
    for child in list(step.children):
        step.remove_child(child)
        first.add_child(child)
    draft.root.remove_child(step)
    replace_source(draft, step.name, first.name)


def replace_source(draft: LogicalGraph, old: str, new: str) -> None:
    """Replaces a source in the groups of sources that must be co-partitioned."""
    draft.copartitioned = [group - {old} | {new} if old in group else group for group in draft.copartitioned]


def drop_null_keys(draft: LogicalGraph) -> None:
    """Makes repartitions drop records without a key, unless a left or outer join below needs them."""
    steps = draft.root.downward()
    above_joins = {above for step in steps if step.needs_null_keys for above in step.upward() if above is not step}
    for step in steps:
        if isinstance(step.what, Repartition):
            step.what.drops_null_keys = step not in above_joins


# ------------------------------------------------------------------------------------------------- repartitions
def merge_repartitions(draft: LogicalGraph) -> None:
    """Repartitions once, right after the step that changes keys, instead of once for every operator that needs it."""
    move_causes_down_to_merges(draft)
    for cause, replaced in list(draft.rekeyed.items()):
        if not replaced:
            continue
        topics = [step.what for step in replaced if isinstance(step.what, Repartition)]
        key, value = first_known(topic.key for topic in topics), first_known(topic.value for topic in topics)
        single = repartition(draft, topics[0].topic, key, value)
        single.order = cause.order
        for step in replaced:
            reroute(step, cause, single)
            replace_source(draft, step.name, single.name)
        cause.add_child(single)
        del draft.rekeyed[cause]


def reroute(step: Step, cause: Step, single: Step) -> None:
    """Removes a repartition, and moves the branch that led to it below the single one."""
    branch = step.nearest(lambda s: cause in s.parents)
    if branch is None:
        raise TopologyError(
            f"the repartitions below {cause.name!r} share a branch and cannot be made one, as in Kafka Streams: "
            f"call repartition() right after {cause.name!r}, or build without {MERGE_REPARTITIONS!r}"
        )
    single.add_child(branch)
    cause.remove_child(branch)
    for child in list(step.children):
        for parent in list(step.parents):
            parent.add_child(child)
    for parent in list(step.parents):
        parent.remove_child(step)
    for child in list(step.children):
        step.remove_child(child)


def move_causes_down_to_merges(draft: LogicalGraph) -> None:
    """Repartitions after a merge instead of before it, if all merged streams with changed keys need one."""
    found: dict[Step, list[Step]] = {}
    for merge in draft.merges:
        found[merge] = [
            cause
            for cause, steps in draft.rekeyed.items()
            if all(comes_from(step, merge) for step in steps) and comes_from(merge, cause)
        ]
    for merge, causes in found.items():
        draft.rekeyed[merge] = {step: None for cause in causes for step in draft.rekeyed[cause]}
    for cause in {cause for causes in found.values() for cause in causes}:
        draft.rekeyed.pop(cause, None)


def comes_from(step: Step, ancestor: Step) -> bool:
    return step.nearest(lambda s: ancestor in s.parents) is not None


def first_known(serdes: Iterable[SerdeLike | None]) -> SerdeLike | None:
    return next((serde for serde in serdes if serde is not None), None)


# ---------------------------------------------------------------------------------------------------- self-joins
def rewrite_self_joins(draft: LogicalGraph) -> None:
    """Rewrites a join of a stream with itself to use one store."""
    for step in draft.root.downward():
        if isinstance(step.what, JoinStreams) and len(step.parents) == 1 and not step.what.is_self_join:
            (parent,) = step.parents
            right = next(child for child in parent.children if child.name == step.what.right_window)
            parent.remove_child(right)
            step.what.is_self_join = True
