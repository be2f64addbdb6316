"""The topics of an application: which it reads, and that those which it names exist."""

from __future__ import annotations

import time
from collections.abc import Mapping

from headrace.config import Config
from headrace.errors import StreamsError
from headrace.log.protocol import Extent, Log
from headrace.model.clock import SystemClock
from headrace.model.ids import TopicPartition
from headrace.topology.graph import Graph
from headrace.topology.nodes import Sink, Source

_PATIENCE, _LOOK_AGAIN = 10.0, 0.1  # seconds


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
    extents = log.extents(sorted(topics))
    known = {at: group[at] for at in extents if at in group}
    return known | starts_by_policy(log, graph, config, {at: extents[at] for at in extents if at not in known})


def starts_by_policy(
    log: Log, graph: Graph, config: Config, extents: Mapping[TopicPartition, Extent]
) -> dict[TopicPartition, int]:
    """Where to begin with partitions by the reset policies of their topics; none for those that have none."""
    resets = {at.topic: reset_of(graph, config, at.topic) for at in extents}
    ago = {at: SystemClock().now() - back for at in extents if isinstance(back := resets[at.topic], int)}
    since = log.offsets_for_times(ago) if ago else {}
    starts: dict[TopicPartition, int] = {}
    for at, extent in extents.items():
        reset = resets[at.topic]
        if reset == "earliest":
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


def await_ends(log: Log, read: Mapping[TopicPartition, tuple[int, str]], ids: Mapping[str, str]) -> None:
    """Waits until the log shows all that was read of it: a broker that has just started may need a moment for that.

    A log that has really lost something is found out by whoever compares it with the checkpoint.
    """
    wanted = {at: offset for at, (offset, topic_id) in read.items() if ids.get(at.topic) == topic_id}
    topics, end = sorted({at.topic for at in wanted}), time.monotonic() + _PATIENCE
    while topics and time.monotonic() < end:
        extents = log.extents(topics)
        if all(extents[at].end >= offset for at, offset in wanted.items() if at in extents):
            return
        time.sleep(_LOOK_AGAIN)
