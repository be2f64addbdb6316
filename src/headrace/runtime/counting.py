"""Where records may be counted before the operators see them.

A count whose table is cached says once a batch how many records a key has by then. Whether it is told of them one by
one makes no difference, so they are told by key: those of a stretch of the log, and on their way to another task those
of a whole batch, which are then one row instead of many.
"""

from __future__ import annotations

import struct

from headrace.config import Config
from headrace.state.spec import KeyValueKind
from headrace.topology.graph import Graph
from headrace.topology.nodes import Process, Sink, Source, StreamAggregate
from headrace.topology.table_nodes import TableTransformValues

COUNTED = "#counted"  # behind the name of a topic, where no name can have it: rows that stand for many records
NUMBER = struct.Struct(">q")


def counter_of(graph: Graph, source: Source, config: Config) -> StreamAggregate | None:
    """The cached count that is the only one to read a source, if it is so."""
    children = graph.children[source.name]
    node = graph.nodes[children[0]] if len(children) == 1 else None
    if not isinstance(node, StreamAggregate) or not node.counts or config.statestore_cache_max_bytes <= 0:
        return None
    spec = graph.stores[node.store]
    return node if spec.caching and isinstance(spec.kind, KeyValueKind) else None


def counted_topics(graph: Graph, config: Config) -> set[str]:
    """The internal topics whose records may be sent as counts.

    Those who read them must read nothing else, and run nothing by stream time, which the records would have moved step
    by step.
    """
    found: set[str] = set()
    for group in graph.groups:
        nodes = [graph.nodes[name] for name in group]
        sources = [node for node in nodes if isinstance(node, Source)]
        if len(sources) != 1 or any(isinstance(node, Process | TableTransformValues) for node in nodes):
            continue
        topics = [topic for topic in sources[0].topics if topic in graph.internal_topics]
        if len(topics) == 1 and counter_of(graph, sources[0], config):
            found.update(topics)
    chosen = {node.topic for node in graph.nodes.values() if isinstance(node, Sink) and node.partitioner}
    return found - {topic for topic in chosen if isinstance(topic, str)}
