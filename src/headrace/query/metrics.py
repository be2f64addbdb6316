"""Which node a record came into or left by, and how many went along each edge of a topology.

Records are counted where they enter and leave a task, by topic. What lies between is known as far as nodes hand on
each record that they get, once: counts go forward through these from the sources, and back from the sinks.

What an application has counted, in Kafka Streams' words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property

from headrace.checkpoint.ledger import Ledger
from headrace.plan.subtopologies import plan
from headrace.query.status import Observation
from headrace.topology import nodes as n
from headrace.topology.graph import Graph

# One record in, one record out to every child.
STEADY = (n.PassThrough, n.Map, n.MapValues, n.SelectKey, n.Peek, n.TablePassThrough, n.TableToStream)


class Flows:
    """The ends and edges of an application's topology."""

    def __init__(self, graph: Graph, application: str) -> None:
        self._graph, self._prefix = graph, f"{application}-"
        self._known: dict[tuple[str, int, str], str | None] = {}

    @cached_property
    def _stages(self) -> dict[int, tuple[str, ...]]:
        planned = plan(self._graph)
        stages = {number: stage.nodes for number, stage in planned.stages.items()}
        return stages | {len(stages): planned.global_nodes}  # what fills the global stores comes behind

    def source_of(self, stage: int, topic: str) -> str | None:
        """The source by which records of a topic come into a stage."""
        key = "in", stage, topic
        if key not in self._known:
            found = [
                node.name for node in self._nodes(stage) if isinstance(node, n.Source) and self._reads(node, topic)
            ]
            self._known[key] = found[0] if found else None
        return self._known[key]

    def sink_of(self, stage: int, topic: str) -> str | None:
        """The sink by which records for a topic leave a stage; None if that may be one or another."""
        key = "out", stage, topic
        if key not in self._known:
            sinks = [node for node in self._nodes(stage) if isinstance(node, n.Sink)]
            found = [node.name for node in sinks if callable(node.topic) or node.topic == self._inner(topic)]
            self._known[key] = found[0] if len(found) == 1 else None
        return self._known[key]

    def is_internal(self, topic: str) -> bool:
        return self._inner(topic) in self._graph.internal_topics

    def edges(self, counts: Mapping[str, int]) -> dict[tuple[str, str], int]:
        """Records along edges, as far as they follow from what sources took in and sinks sent out."""
        found: dict[tuple[str, str], int] = {}
        inside = {name: count for name, count in counts.items() if isinstance(self._graph.nodes.get(name), n.Source)}
        order = [name for stage in self._stages.values() for name in stage]
        for name in order:  # parents come first
            node, parents = self._graph.nodes[name], self._graph.parents[name]
            if isinstance(node, STEADY) and parents and all((parent, name) in found for parent in parents):
                inside[name] = sum(found[parent, name] for parent in parents)
            if name in inside:
                found |= {(name, child): inside[name] for child in self._graph.children[name]}
        for name in reversed(order):
            self._go_back(name, counts, found)
        return found

    def _go_back(self, name: str, counts: Mapping[str, int], found: dict[tuple[str, str], int]) -> None:
        """What goes into a node is what comes out of it, if all of it comes from one other."""
        node, parents = self._graph.nodes[name], self._graph.parents[name]
        if len(parents) != 1 or (parents[0], name) in found:
            return
        out = [found[name, child] for child in self._graph.children[name] if (name, child) in found]
        if isinstance(node, n.Sink) and name in counts and node.partitioner is None:
            found[parents[0], name] = counts[name]
        elif isinstance(node, STEADY) and out:
            found[parents[0], name] = out[0]

    def _nodes(self, stage: int) -> list[n.Node]:
        return [self._graph.nodes[name] for name in self._stages.get(stage, ())]

    def _inner(self, topic: str) -> str:
        """A topic as the topology names it."""
        name = topic.removeprefix(self._prefix)
        return name if name in self._graph.internal_topics else topic

    def _reads(self, source: n.Source, topic: str) -> bool:
        if source.pattern is not None:
            return re.fullmatch(source.pattern, topic) is not None
        return self._inner(topic) in source.topics


def streams_metrics(seen: Observation, ledger: Ledger) -> dict[str, float]:
    """Times are in milliseconds. Parts of a count stand behind a slash: a topic, a partition, a task or a reason."""
    lag = {str(at): max(0, end - ledger.positions.get(at, 0)) for at, end in seen.ends.items()}
    late = {task: max(0, ledger.clock - time) for task, time in seen.stream_times.items()}
    latency, dead = seen.latency, seen.dead_letters
    return {
        "commit-total": seen.batches,
        **_average_and_most("commit-latency", [phases.get("commit", 0.0) for phases in seen.phases.values()]),
        **_average_and_most("process-latency", [phases.get("run", 0.0) for phases in seen.phases.values()]),
        "process-total": sum(seen.read.values()),
        **_summed("records-consumed-total", seen.read),
        **_summed("records-produced-total", seen.sent),
        **_summed("dropped-records-total", ledger.dropped),
        **({} if dead is None else {"dead-letter-records-total": dead}),
        **_summed("records-lag", lag),
        "records-lag-max": max(lag.values(), default=0),
        **{f"stream-time-lag/{task}": ms for task, ms in sorted(late.items())},
        "restore-total": seen.restored_entries,
        "restore-latency-total": 1000 * seen.restored_seconds,
        "record-e2e-latency-avg": latency.sum / latency.count if latency.count else 0,
        "record-e2e-latency-min": latency.least,
        "record-e2e-latency-max": latency.most,
    }


def _summed(name: str, parts: Mapping[str, int]) -> dict[str, int]:
    return {name: sum(parts.values()), **{f"{name}/{part}": count for part, count in sorted(parts.items())}}


def _average_and_most(name: str, ms: list[float]) -> dict[str, float]:
    return {f"{name}-avg": sum(ms) / len(ms) if ms else 0, f"{name}-max": max(ms, default=0)}
