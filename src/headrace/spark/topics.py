"""The topics of an application: which it reads, creating them, and the positions at which it begins to read.

A position comes from the checkpoint if it has one, otherwise from the consumer group, otherwise from the reset policy
(`auto.offset.reset`, or that of the source).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from headrace.config import Config
from headrace.errors import StreamsError
from headrace.log.protocol import Extent, Log
from headrace.model.clock import SystemClock
from headrace.model.ids import TopicPartition
from headrace.topology.graph import Graph
from headrace.topology.nodes import Sink, Source

_TIMEOUT, _RETRY_INTERVAL = 10.0, 0.1  # seconds


def topics_read(graph: Graph, application: str, existing: Mapping[str, object]) -> set[str]:
    """Returns the topics of the log that an application reads: the named ones, and existing ones that match a pattern.

    Internal topics of Kafka, and the topics of the application's own markers and positions, match no pattern.
    """
    read = set[str]()
    is_own = re.compile(rf"{re.escape(application)}(-.*-source)?-delivered|{re.escape(application)}-.*-source-position")
    for source in (node for node in graph.nodes.values() if isinstance(node, Source)):
        read |= {topic for topic in source.topics if topic not in graph.internal_topics}
        if source.pattern:
            visible = (topic for topic in existing if not is_own.fullmatch(topic) and not topic.startswith("__"))
            read |= {topic for topic in visible if source.pattern.fullmatch(topic)}
    return read


def prepare_topics(log: Log, graph: Graph, config: Config) -> set[str]:
    """Creates the missing topics that the topology names, or raises an error; returns the topics that it reads."""
    existing = log.topics()
    read = topics_read(graph, config.application_id or "", existing)
    sinks = (node for node in graph.nodes.values() if isinstance(node, Sink))
    written = {sink.topic for sink in sinks if isinstance(sink.topic, str) and sink.target is None}
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
    """Returns where to begin with partitions that were never read.

    That is the offset of the application's consumer group, which a Java application may have committed; without one,
    the reset policy of the source or of the application decides.
    """
    group = log.committed(config.application_id) if config.application_id else {}
    extents = log.extents(sorted(topics))
    known = {at: group[at] for at in extents if at in group}
    return known | starts_by_policy(log, graph, config, {at: extents[at] for at in extents if at not in known})


def starts_by_policy(
    log: Log, graph: Graph, config: Config, extents: Mapping[TopicPartition, Extent]
) -> dict[TopicPartition, int]:
    """Returns where to begin with partitions by their reset policies; leaves out those with the policy "none"."""
    resets = {at.topic: find_reset(graph, config, at.topic) for at in extents}
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


def find_reset(graph: Graph, config: Config, topic: str) -> str | int:
    """Returns the reset policy of a topic: earliest, latest, none, or a number of milliseconds before now."""
    for source in (node for node in graph.nodes.values() if isinstance(node, Source)):
        reads = topic in source.topics or (source.pattern is not None and source.pattern.fullmatch(topic))
        if reads and source.offset_reset is not None:
            return source.offset_reset
    return config.auto_offset_reset


def await_ends(log: Log, read: Mapping[TopicPartition, tuple[int, str]], ids: Mapping[str, str]) -> None:
    """Waits until the log has every offset that the checkpoint has read: a broker that has just started may lag.

    After the timeout it returns as well; the coordinator finds lost records when it compares log and checkpoint.
    """
    wanted = {at: offset for at, (offset, topic_id) in read.items() if ids.get(at.topic) == topic_id}
    topics, end = sorted({at.topic for at in wanted}), time.monotonic() + _TIMEOUT
    while topics and time.monotonic() < end:
        extents = log.extents(topics)
        if all(extents[at].end >= offset for at, offset in wanted.items() if at in extents):
            return
        time.sleep(_RETRY_INTERVAL)
