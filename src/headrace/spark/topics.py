"""The topics of an application: which it reads, and that those which it names exist."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config import Config
from headrace.errors import StreamsError
from headrace.log.protocol import Log
from headrace.model.clock import SystemClock
from headrace.model.ids import TopicPartition
from headrace.topology.graph import Graph
from headrace.topology.nodes import Sink, Source


def topics_read(graph: Graph, application: str, existing: Mapping[str, object]) -> set[str]:
    """The topics of the log that an application reads, of those that its patterns match the existing ones.

    What a log keeps for itself, and its own marker on Kafka, match no pattern.
    """
    read, own = set[str](), f"{application}-delivered"
    for source in (node for node in graph.nodes.values() if isinstance(node, Source)):
        read |= {topic for topic in source.topics if topic not in graph.internal_topics}
        if source.pattern:
            visible = (topic for topic in existing if topic != own and not topic.startswith("__"))
            read |= {topic for topic in visible if source.pattern.fullmatch(topic)}
    return read


def prepare_topics(log: Log, graph: Graph, config: Config) -> set[str]:
    """Sees that all topics which are named exist, by creating them unless that is forbidden; gives those read."""
    existing = log.topics()
    read = topics_read(graph, config.application_id or "", existing)
    sinks = (node for node in graph.nodes.values() if isinstance(node, Sink))
    written = {sink.topic for sink in sinks if isinstance(sink.topic, str)}
    missing = sorted((read | written) - graph.internal_topics.keys() - existing.keys())
    if missing and not config.auto_create_topics_enable:
        raise StreamsError(
            f"the log has no topic {', '.join(map(repr, missing))}, and auto.create.topics.enable is false. "
            f"Create them first: headrace topics create --topic {missing[0]}"
        )
    for topic in missing:
        log.create_topic(topic, config.num_partitions)
    return read


def first_positions(log: Log, graph: Graph, config: Config, topics: set[str]) -> dict[TopicPartition, int]:
    """Where partitions that were never read begin: where the application's consumer group stands, if it has read them,
    perhaps in Java; else by the reset policy of their source, or of the application.
    """
    group = log.committed(config.application_id) if config.application_id else {}
    extents, resets = log.extents(sorted(topics)), {topic: reset_of(graph, config, topic) for topic in topics}
    ago = {at: SystemClock().now() - back for at in extents if isinstance(back := resets[at.topic], int)}
    since = log.offsets_for_times(ago) if ago else {}
    starts: dict[TopicPartition, int] = {}
    for at, extent in extents.items():
        reset = resets[at.topic]
        if at in group:
            starts[at] = group[at]
        elif reset == "earliest":
            starts[at] = extent.earliest
        elif reset != "none":
            found = since.get(at)
            starts[at] = extent.end if found is None else found
    return starts


def reset_of(graph: Graph, config: Config, topic: str) -> str | int:
    """earliest, latest, none, or so many milliseconds back."""
    for source in (node for node in graph.nodes.values() if isinstance(node, Source)):
        reads = topic in source.topics or (source.pattern is not None and source.pattern.fullmatch(topic))
        if reads and source.offset_reset is not None:
            return source.offset_reset
    return config.auto_offset_reset
