"""How many partitions each internal topic has, and whether topics that are joined agree."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import TopologyError
from headrace.plan.subtopologies import Plan
from headrace.topology.graph import Graph
from headrace.topology.nodes import Source


def partition_counts(
    graph: Graph, plan: Plan, known: Mapping[str, int], before: Mapping[str, int] | None = None
) -> dict[str, int]:
    """The partition counts of all internal topics; `known` has those of the topics in the log.

    Counts from `before`, an earlier run, stay: an internal topic does not grow with the topics that feed it.
    """
    counts = {name: count for name, count in (before or {}).items() if name in graph.internal_topics}
    counts |= {name: topic.partitions for name, topic in graph.internal_topics.items() if topic.partitions is not None}
    for name in graph.internal_topics:
        inherited(name, plan, known, counts, frozenset())
    for group in copartitioned_topics(graph):
        agree(group, graph, known, counts)
    return counts


def inherited(
    topic: str, plan: Plan, known: Mapping[str, int], counts: dict[str, int], on_the_way: frozenset[str]
) -> int:
    """As many partitions as the largest topic that feeds the stages which write it."""
    if topic in counts:
        return counts[topic]
    if topic in on_the_way:
        return 0  # a cycle adds nothing
    writers = [stage for stage in plan.stages.values() if topic in stage.outputs]
    found = [count_of(name, known) for stage in writers for name in stage.topics]
    found += [inherited(name, plan, known, counts, on_the_way | {topic}) for stage in writers for name in stage.inputs]
    largest = max(found, default=0)
    if not on_the_way:
        if not largest:
            raise TopologyError(f"nothing tells how many partitions {topic} needs; give repartition(partitions=...)")
        counts[topic] = largest
    return largest


def count_of(topic: str, known: Mapping[str, int]) -> int:
    if topic not in known:
        raise TopologyError(f"the source topic {topic!r} does not exist; create it before the application starts")
    return known[topic]


def copartitioned_topics(graph: Graph) -> list[set[str]]:
    groups: list[set[str]] = []
    for names in graph.copartitioned:
        nodes = (graph.nodes[name] for name in names)
        groups.append({topic for node in nodes if isinstance(node, Source) for topic in node.topics})
    return groups


def agree(group: set[str], graph: Graph, known: Mapping[str, int], counts: dict[str, int]) -> None:
    """Topics that are joined have equal counts; internal ones without a wish of their own follow."""
    fixed = {topic: count_of(topic, known) for topic in sorted(group) if topic not in graph.internal_topics}
    wished = {t: counts[t] for t in sorted(group) if t in graph.internal_topics and graph.internal_topics[t].partitions}
    given = fixed | wished
    if len(set(given.values())) > 1:
        listed = ", ".join(f"{topic} has {count}" for topic, count in given.items())
        raise TopologyError(
            f"topics that are joined need the same number of partitions, but {listed}. "
            "Put repartition() before the join, or make the topics alike."
        )
    free = [topic for topic in group if topic not in given]
    for topic in free:
        counts[topic] = next(iter(given.values())) if given else max(counts[name] for name in free)


def task_counts(plan: Plan, known: Mapping[str, int], internal: Mapping[str, int]) -> dict[int, int]:
    """How many tasks each stage runs as: one for every partition of its largest topic."""
    counts = {**known, **internal}
    return {
        number: max((counts[topic] for topic in (*stage.topics, *stage.inputs)), default=1)
        for number, stage in plan.stages.items()
    }
