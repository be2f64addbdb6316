"""Metrics: records by node and edge of a topology, and an application's counts under Kafka Streams' names.

Tasks count records by topic, where they enter and leave. `NodeIndex` finds the source or the sink of such a count, and
infers the counts of the edges between: a one-to-one node forwards each record exactly once, so counts propagate through
such nodes forward from the sources and backward from the sinks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property

from headrace.checkpoint.ledger import Ledger
from headrace.query.status import ApplicationReport
from headrace.topology import nodes as n
from headrace.topology.graph import Graph
from headrace.topology.subtopologies import plan

# These nodes forward each record exactly once to every child.
ONE_TO_ONE = (
    n.PassThrough,
    n.Map,
    n.MapValues,
    n.MapValuesBatch,
    n.MapValuesAsync,
    n.SelectKey,
    n.Peek,
    n.TablePassThrough,
    n.TableToStream,
)


class NodeIndex:
    """The nodes of a topology by sub-topology and topic, and the edges between them."""

    def __init__(self, graph: Graph, application: str) -> None:
        self._graph, self._prefix = graph, f"{application}-"
        self._known: dict[tuple[str, int, str], str | None] = {}

    @cached_property
    def _stages(self) -> dict[int, tuple[str, ...]]:
        planned = plan(self._graph)
        stages = {number: stage.nodes for number, stage in planned.stages.items()}
        return stages | {len(stages): planned.global_nodes}  # the nodes that fill the global stores come last

    def source_of(self, stage: int, topic: str) -> str | None:
        """Return the source through which records of a topic enter a stage."""
        key = "in", stage, topic
        if key not in self._known:
            found = [
                node.name for node in self._nodes(stage) if isinstance(node, n.Source) and self._reads(node, topic)
            ]
            self._known[key] = found[0] if found else None
        return self._known[key]

    def sink_of(self, stage: int, topic: str) -> str | None:
        """Return the sink through which records for a topic leave a stage; None if several sinks may write it."""
        key = "out", stage, topic
        if key not in self._known:
            sinks = [node for node in self._nodes(stage) if isinstance(node, n.Sink)]
            found = [node.name for node in sinks if callable(node.topic) or node.topic == self._local_name(topic)]
            self._known[key] = found[0] if len(found) == 1 else None
        return self._known[key]

    def is_internal(self, topic: str) -> bool:
        return self._local_name(topic) in self._graph.internal_topics

    def count_edges(self, counts: Mapping[str, int]) -> dict[tuple[str, str], int]:
        """Infer the records along edges from the counts of sources and sinks, as far as that is possible."""
        found: dict[tuple[str, str], int] = {}
        entered = {name: count for name, count in counts.items() if isinstance(self._graph.nodes.get(name), n.Source)}
        order = [name for stage in self._stages.values() for name in stage]
        for name in order:  # parents come first
            node, parents = self._graph.nodes[name], self._graph.parents[name]
            if isinstance(node, ONE_TO_ONE) and parents and all((parent, name) in found for parent in parents):
                entered[name] = sum(found[parent, name] for parent in parents)
            if name in entered:
                found |= {(name, child): entered[name] for child in self._graph.children[name]}
        for name in reversed(order):
            self._count_backward(name, counts, found)
        return found

    def _count_backward(self, name: str, counts: Mapping[str, int], found: dict[tuple[str, str], int]) -> None:
        """Count the edge into a node with one parent by what comes out of the node."""
        node, parents = self._graph.nodes[name], self._graph.parents[name]
        if len(parents) != 1 or (parents[0], name) in found:
            return
        out = [found[name, child] for child in self._graph.children[name] if (name, child) in found]
        if isinstance(node, n.Sink) and name in counts and node.partitioner is None:
            found[parents[0], name] = counts[name]
        elif isinstance(node, ONE_TO_ONE) and out:
            found[parents[0], name] = out[0]

    def _nodes(self, stage: int) -> list[n.Node]:
        return [self._graph.nodes[name] for name in self._stages.get(stage, ())]

    def _local_name(self, topic: str) -> str:
        """Return the name that the topology has for a topic of the log."""
        name = topic.removeprefix(self._prefix)
        return name if name in self._graph.internal_topics else topic

    def _reads(self, source: n.Source, topic: str) -> bool:
        if source.pattern is not None:
            return re.fullmatch(source.pattern, topic) is not None
        return self._local_name(topic) in source.topics


def streams_metrics(report: ApplicationReport, ledger: Ledger) -> dict[str, float]:
    """Return the metrics of an application. Times are in milliseconds.

    A part of a metric has its topic, partition, task or reason after a slash: `records-lag/orders-0`.
    """
    lag = {str(at): max(0, end - ledger.positions.get(at, 0)) for at, end in report.ends.items()}
    late = {task: max(0, ledger.clock - time) for task, time in report.stream_times.items()}
    latency, dead = report.latency, report.dead_letters
    return {
        "commit-total": report.batches,
        **_average_and_max("commit-latency", [phases.get("commit", 0.0) for phases in report.phases.values()]),
        **_average_and_max("process-latency", [phases.get("run", 0.0) for phases in report.phases.values()]),
        "process-total": sum(report.read.values()),
        **_sum_and_parts("records-consumed-total", report.read),
        **_sum_and_parts("records-produced-total", report.sent),
        **_sum_and_parts("dropped-records-total", ledger.dropped),
        **({} if dead is None else {"dead-letter-records-total": dead}),
        **_sum_and_parts("records-lag", lag),
        "records-lag-max": max(lag.values(), default=0),
        **{f"stream-time-lag/{task}": ms for task, ms in sorted(late.items())},
        "restore-total": report.restored_entries,
        "restore-latency-total": 1000 * report.restored_seconds,
        "record-e2e-latency-avg": latency.sum / latency.count if latency.count else 0,
        "record-e2e-latency-min": latency.least,
        "record-e2e-latency-max": latency.most,
    }


def _sum_and_parts(name: str, parts: Mapping[str, int]) -> dict[str, int]:
    return {name: sum(parts.values()), **{f"{name}/{part}": count for part, count in sorted(parts.items())}}


def _average_and_max(name: str, ms: list[float]) -> dict[str, float]:
    return {f"{name}-avg": sum(ms) / len(ms) if ms else 0, f"{name}-max": max(ms, default=0)}
