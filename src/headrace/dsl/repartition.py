"""Repartitioning: a topic of the application's own, between a step that changed keys and one that needs them."""

from __future__ import annotations

import re

from headrace.dsl.draft import Draft
from headrace.dsl.steps import Repartition, Step
from headrace.topology.nodes import Partitioner
from headrace.topology.serdes import SerdeLike

SUFFIX = "-repartition"
_GENERATED = re.compile(r"KSTREAM.*-[0-9]{10}")


def repartition(
    draft: Draft,
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
