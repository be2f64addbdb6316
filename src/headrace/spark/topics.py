"""The topics of an application: which it reads, creating them, and the positions at which it begins to read.

A position comes from the checkpoint if it has one, otherwise from where the user lets a new source begin
(`SourceStart`), otherwise from the consumer group, otherwise from the reset policy (`auto.offset.reset`, or that of the
source).
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from headrace.config import Config, parsing
from headrace.errors import ConfigError, StreamsError
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


# ------------------------------------------------------------------------------------------------ starts of new sources
ALL_SOURCES = ""  # instead of a topic: every new source that is not named


class SourceStart(NamedTuple):
    """Where a source begins that was never read. `number` is an offset, a time in ms, or so many ms before now."""

    kind: Literal["earliest", "latest", "offset", "time", "ago"]
    number: int = 0

    def __str__(self) -> str:
        match self.kind:
            case "offset":
                return f"offset {self.number}"
            case "time":
                return datetime.fromtimestamp(self.number / 1000, UTC).isoformat(timespec="milliseconds")
            case "ago":
                return f"{timedelta(milliseconds=self.number)} before the start"
            case _:
                return self.kind


def parse_start(given: str | int | datetime | timedelta) -> SourceStart:
    """Parses where a source begins: earliest, latest, an offset, a date and time, or a duration before now.

    A time without a zone is UTC.

    >>> parse_start("latest").kind, parse_start("PT1H")
    ('latest', SourceStart(kind='ago', number=3600000))
    >>> parse_start("1970-01-01T00:00:01")
    SourceStart(kind='time', number=1000)
    """
    text = str(given)
    if isinstance(given, timedelta):
        return SourceStart("ago", given // timedelta(milliseconds=1))
    if text in ("earliest", "latest"):
        return SourceStart(text)
    if re.fullmatch(r"\d+", text):
        return SourceStart("offset", int(text))
    duration = parsing.iso_duration(text)
    if duration is not None:
        return SourceStart("ago", duration)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"a source begins at earliest, latest, an offset, YYYY-MM-DDTHH:MM:SS.sss, or PnDTnHnMnS before now, not "
            f"at {text!r}"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return SourceStart("time", round(moment.timestamp() * 1000))


def check_starts(starts: Mapping[str, SourceStart], topics: Collection[str], of_globals: Collection[str]) -> None:
    """Raises an error for starts of topics that the application does not read, or reads as a whole (global tables)."""
    for topic in sorted(starts.keys() - {ALL_SOURCES}):
        if topic not in topics:
            listed = ", ".join(sorted(set(topics) - set(of_globals)))
            raise ConfigError(f"--from says where {topic} begins, but the application reads {listed}")
        if topic in of_globals:
            raise ConfigError(f"--from says where {topic} begins, but it fills a global table: that is read as a whole")


def find_start(starts: Mapping[str, SourceStart], topic: str) -> SourceStart | None:
    return starts.get(topic, starts.get(ALL_SOURCES))


def chosen_positions(
    log: Log, starts: Mapping[str, SourceStart], extents: Mapping[TopicPartition, Extent]
) -> dict[TopicPartition, int]:
    """Returns where to begin with partitions whose start the user has chosen, within what the log has."""
    now = SystemClock().now()
    chosen = {at: start for at in extents if (start := find_start(starts, at.topic)) is not None}
    times = {at: start.number for at, start in chosen.items() if start.kind == "time"}
    times |= {at: now - start.number for at, start in chosen.items() if start.kind == "ago"}
    since = log.offsets_for_times(times) if times else {}
    found: dict[TopicPartition, int] = {}
    for at, start in chosen.items():
        extent = extents[at]
        if start.kind == "earliest":
            wanted = extent.earliest
        elif start.kind == "offset":
            wanted = start.number
        else:
            wanted = since.get(at)
        found[at] = extent.end if wanted is None else min(max(wanted, extent.earliest), extent.end)
    return found


def find_global_topics(graph: Graph) -> set[str]:
    """Returns the topics that fill global tables."""
    sources = (graph.nodes[name] for name in graph.global_stores.values())
    return {topic for source in sources if isinstance(source, Source) for topic in source.topics}


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
