"""The topics in which Kafka Streams keeps copies of its stores: their names, their settings, and what is in them."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.config import Config
from headrace.log.protocol import Log
from headrace.model.ids import TopicPartition
from headrace.runtime.defaults import resolved, serdes_of
from headrace.serde.undeclared import UNDECLARED
from headrace.state.changelogs import Row
from headrace.state.spec import BufferKind, Kind, SessionKind, SubscriptionKind, VersionedKind, WindowKind
from headrace.topology.graph import Graph

DAY = 86_400_000  # ms that Kafka Streams keeps records longer than the store does, by default
LONGEST = 2**63 - 1


def changelog_name(application: str, store: str) -> str:
    """
    >>> changelog_name("shop", "totals")
    'shop-totals-changelog'
    """
    return f"{application}-{store}-changelog"


def changelog_settings(kind: Kind) -> dict[str, str]:
    """What Kafka Streams would create the topic with.

    >>> changelog_settings(SessionKind(1000))
    {'cleanup.policy': 'compact,delete', 'retention.ms': '86401000'}
    """
    match kind:
        case WindowKind(retention=retention) | SessionKind(retention=retention):
            return {"cleanup.policy": "compact,delete", "retention.ms": str(min(retention + DAY, LONGEST))}
        case VersionedKind(history=history):
            return {"cleanup.policy": "compact", "min.compaction.lag.ms": str(min(history + DAY, LONGEST))}
        case _:
            return {"cleanup.policy": "compact"}


def not_shared(graph: Graph, config: Config, store: str) -> str | None:
    """Why the state of a store cannot pass from one implementation to the other; None if it can."""
    if isinstance(graph.stores[store].kind, BufferKind):
        return "it holds back records in a form of its own (suppress, an outer join, or a join with grace)"
    if isinstance(graph.stores[store].kind, SubscriptionKind):
        return "it remembers the subscriptions of a foreign-key join in a form of its own"
    if any(getattr(node, "on_close", False) and getattr(node, "store", "") == store for node in graph.nodes.values()):
        return "nothing in it says which of its windows were emitted when they closed"
    if resolved(graph.stores[store], serdes_of(config)).value is UNDECLARED:
        return "its values have no serde, so that Headrace keeps them in a form of its own (declare one: value=...)"
    return None


def logged_rows(log: Log, topic: str, partition: int, end: int) -> Iterator[Row]:
    """The records of a partition up to an offset; 0: there need be no such partition."""
    at = TopicPartition(topic, partition)
    start = 0 if end == 0 else log.extents([topic])[at].earliest
    for chunk in log.read(at, start, end) if start < end else ():
        for _, key, value, timestamp, _ in chunk.rows():
            if key is not None:
                yield key, value, timestamp
