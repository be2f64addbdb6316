"""Changelogs of Kafka Streams: taking over the state of a Java application, and writing state back for one.

An application that continues from the offsets of its consumer group needs the state that belongs to these offsets.
`find_changelogs` looks for it once, when the checkpoint is new, and the first manifest records what it found.
`fill_stores` fills the stores of each task in the first batch. `write_changelogs` goes the other way: it writes the
state of the checkpoint to changelogs, without running the application.

State must never be taken over in part: a changelog that cannot be read is an error, unless it is empty.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import closing

from headrace.checkpoint.changelog_export import (
    ChangelogExporter,
    Export,
    OnExport,
    changelog_name,
    export_changelogs,
    read_changelog,
    why_not_portable,
)
from headrace.checkpoint.manifest import Changelog
from headrace.checkpoint.storage import open_storage
from headrace.errors import ConfigError, StreamsError
from headrace.log.open import open_log
from headrace.log.protocol import Log, Topic
from headrace.model.ids import TopicPartition
from headrace.runtime.task import Task
from headrace.spark.job import Job, Setup
from headrace.state.changelog_records import fill
from headrace.topology.nodes import Source, TableSource

_log = logging.getLogger(__name__)
_TIMEOUT, _RETRY_INTERVAL = (
    60.0,
    0.5,
)  # seconds: a Kafka Streams client does not leave its group when it stops; the broker removes it after 45
Offsets = Mapping[TopicPartition, int]


def find_changelogs(log: Log, job: Job, group: Offsets) -> dict[str, Changelog]:
    """Returns the changelogs to fill stores from, by store.

    There are none if the group has not read any topic of the application: the application then reads all its input.
    """
    topics = log.topics()
    read = {topic for number in job.plan.stages for topic in topics if job.reads(number, topic)}
    if not any(at.topic in read for at in group):
        return {}
    _reject_unread(log, job, topics, group)
    found: dict[str, Changelog] = {}
    for number, stage in job.plan.stages.items():
        for store in sorted({*stage.stores} - job.graph.global_stores.keys()):
            if job.graph.stores[store].logging:
                topic = topics.get(changelog_name(job.application, store))
                tasks = job.tasks[number]
                changelog = (
                    _find_source_topic(job, store, tasks, group)
                    if topic is None
                    else _find_changelog(topic, log, job, store, tasks)
                )
                if changelog is not None:
                    found[store] = changelog
    _log_findings(job, topics, found)
    return found


def await_empty_group(log: Log, application: str, patience: float = _TIMEOUT) -> None:
    """Waits until the consumer group of the application has no members: then its offsets and state are final."""
    end, has_warned = time.monotonic() + patience, False
    while members := find_members(log, application):
        if time.monotonic() > end:
            raise StreamsError(
                f"the Java application {application!r} is still running ({', '.join(members)}): stop it first. "
                "Headrace continues from the state that it leaves"
            )
        if not has_warned:
            _log.warning("waiting for %s to leave the group %s", ", ".join(members), application)
        has_warned = True
        time.sleep(_RETRY_INTERVAL)


def find_members(log: Log, application: str) -> list[str]:
    """Returns the members of the application's consumer group."""
    group = log.groups().get(application)
    return sorted(group.members) if group else []


def _find_changelog(topic: Topic, log: Log, job: Job, store: str, tasks: int) -> Changelog | None:
    """Returns the changelog up to its current ends; None if it is empty and its format cannot be read."""
    if topic.partitions != tasks:
        raise StreamsError(
            f"the changelog {topic.name} has {topic.partitions} partitions, but {tasks} tasks have the store "
            f"{store!r}: the topics of the Java application had other numbers of partitions. Put these back, or begin "
            "without its state: with another application id"
        )
    extents = log.extents([topic.name])
    found = Changelog(topic.name, tuple(extents[at].end for at in sorted(extents)))
    why = why_not_portable(job.graph, job.config, store)
    if why is None:
        return found
    if any(is_live(log, topic.name, partition, end) for partition, end in enumerate(found.ends)):
        raise StreamsError(
            f"the store {store!r} of the Java application {job.application!r} cannot be taken over, because {why}, and "
            f"its changelog {topic.name} is not empty. Let the Java application run until it is, or begin without its "
            "state: with another application id, or headrace reset"
        )
    return None


def _find_source_topic(job: Job, store: str, tasks: int, group: Offsets) -> Changelog | None:
    """Returns the source topic of a table up to the group's offsets; None if the store has no such topic.

    With optimization, Kafka Streams uses the source topic of a table as its changelog.
    """
    if why_not_portable(job.graph, job.config, store) is not None:
        return None
    nodes, parents = job.graph.nodes, job.graph.parents
    for name, node in nodes.items():
        if isinstance(node, TableSource) and node.store == store:
            sources = [source for parent in parents[name] if isinstance(source := nodes[parent], Source)]
            for topic in (topic for source in sources for topic in source.topics):
                ends = {at.partition: offset for at, offset in group.items() if at.topic == topic}
                if ends:
                    return Changelog(topic, tuple(ends.get(partition, 0) for partition in range(tasks)))
    return None


def _reject_unread(log: Log, job: Job, topics: Mapping[str, Topic], group: Offsets) -> None:
    """Raises an error if repartition topics have unread records: their sources are read, but they are in no state."""
    names = [name for inner in job.graph.internal_topics if (name := f"{job.application}-{inner}") in topics]
    for at, extent in log.extents(sorted(names)).items() if names else ():
        start = max(group.get(at, 0), extent.earliest)
        left = sum(len(chunk) for chunk in log.read(at, start, extent.end)) if start < extent.end else 0
        if left:
            raise StreamsError(
                f"the Java application {job.application!r} has left {left} records in {at.topic} that it has not "
                "processed, and Headrace reads no such topics. Let it run until it has caught up, and stop it then"
            )


def _log_findings(job: Job, topics: Mapping[str, Topic], found: Mapping[str, Changelog]) -> None:
    """Logs which stores continue from a changelog, which begin empty, and which changelogs are not used."""
    for store, changelog in found.items():
        _log.info("the store %s continues from %s", store, changelog.topic)
    logged = (store for stage in job.plan.stages.values() for store in stage.stores if job.graph.stores[store].logging)
    for store in sorted({*logged} - found.keys() - job.graph.global_stores.keys()):
        if changelog_name(job.application, store) not in topics:
            _log.warning(
                "the store %s begins empty: the log has no topic %s that this user may see",
                store,
                changelog_name(job.application, store),
            )
    known = {changelog_name(job.application, store) for store in job.graph.stores}
    for topic in sorted(topics):
        if topic.startswith(f"{job.application}-") and topic.endswith("-changelog") and topic not in known:
            _log.warning("%s belongs to no store of this topology: its state is not taken over", topic)


def is_live(log: Log, topic: str, partition: int, end: int) -> bool:
    """True if a partition of a changelog has a key whose last value is not None."""
    live: set[bytes] = set()
    for key, value, _ in read_changelog(log, topic, partition, end):
        (live.discard if value is None else live.add)(key)
    return bool(live)


def fill_stores(task: Task, job: Job, log: Log) -> None:
    """Fills the stores of a task that has no state yet, as a part of the batch that is about to run."""
    for store in task.state.stores:
        changelog = job.changelogs.get(store)
        if changelog is not None:
            end = changelog.ends[task.task_id.partition]
            rows = read_changelog(log, changelog.topic, task.task_id.partition, end)
            # Stream time had reached at least the timestamp of every entry.
            task.here.stream_time = max(task.here.stream_time, fill(task.state, store, rows))


def write_changelogs(setup: Setup, *, dry_run: bool, on_export: OnExport) -> list[Export]:
    """Writes the state of an application to the changelogs of Kafka Streams, on its log."""
    if not setup.log.startswith("kafka:"):
        raise ConfigError(f"{setup.log} is no Kafka log: no Java application could read changelogs there")
    with closing(open_log(setup.log, setup.config.client_settings)) as log:
        storage = open_storage(setup.checkpoint)
        exporter = ChangelogExporter(storage, log, setup.application_id, setup.graph, setup.config)
        return export_changelogs(exporter, dry_run=dry_run, on_export=on_export)
