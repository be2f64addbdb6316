"""Which changelogs of Kafka Streams a new checkpoint begins with, and what is refused; without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Buffer, StreamsBuilder, Suppressed, TimeWindows, serde
from headrace.checkpoint.manifest import Changelog
from headrace.config import Config
from headrace.errors import StreamsError
from headrace.log.open import open_log
from headrace.log.protocol import Log, Records
from headrace.model.ids import TaskId, TopicPartition
from headrace.runtime.rows import Inputs
from headrace.runtime.task import Task, TaskEnvironment
from headrace.spark.changelogs import await_empty_group, fill_stores, find_changelogs
from headrace.spark.job import Job
from headrace.state.engine import MemoryEngine, Version
from headrace.topology.subtopologies import partition_counts, plan, task_counts

TEXTS: dict[str, Any] = {"key": serde.STRING, "value": serde.STRING}
CONFIG = Config.of({"application.id": "app"})


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    opened = open_log(f"file:{tmp_path}")
    opened.create_topic("in", 2)
    yield opened
    opened.close()


def job_of(log: Log, build: Callable[[StreamsBuilder], Any], changelogs: dict[str, Changelog] | None = None) -> Job:
    builder = StreamsBuilder()
    build(builder)
    graph = builder.build().graph()
    stages, known = plan(graph), {name: topic.partitions for name, topic in log.topics().items()}
    partitions = partition_counts(graph, stages, known)
    return Job(
        application="app", graph=graph, plan=stages, config=CONFIG, tasks=task_counts(stages, known, partitions),
        partitions=partitions, log="", checkpoint="", state="", changelogs=changelogs or {},
    )  # fmt: skip


def count(builder: StreamsBuilder) -> None:
    builder.stream("in", **TEXTS).group_by_key().count(store="counts")


def written(log: Log, topic: str, *rows: tuple[bytes, bytes | None], partitions: int = 2) -> None:
    """A topic with records in its first partition."""
    log.create_topic(topic, partitions, {"cleanup.policy": "compact"})
    if rows:
        records = Records.from_rows([(key, value, 10 + number, ()) for number, (key, value) in enumerate(rows)])
        log.append([(TopicPartition(topic, 0), records)])


def read(log: Log, topic: str = "in", offset: int = 3) -> dict[TopicPartition, int]:
    """What a group has committed."""
    return {TopicPartition(topic, 0): offset}


def test_who_goes_on_from_a_group_gets_its_state(log: Log):
    written(log, "app-counts-changelog", (b"a", bytes(7) + b"\x05"), (b"b", bytes(8)), (b"b", None))
    found = find_changelogs(log, job_of(log, count), read(log))
    assert found == {"counts": Changelog("app-counts-changelog", (3, 0))}
    job = job_of(log, count, found)
    around = TaskEnvironment(CONFIG, {})
    task = Task(TaskId(0, 0), job.graph, job.nodes_of(0), MemoryEngine(), around, clock=0)
    fill_stores(task, job, log)
    assert list(task.state.store("counts").all()) == [("a", (5, 10))]
    assert task.here.stream_time == 12
    result = task.run(Inputs(), clock=0, version=Version(1, "a"))
    assert result.outputs == []
    assert result.delta.changes


def test_without_committed_offsets_no_changelogs_are_found(log: Log):
    written(log, "app-counts-changelog", (b"a", bytes(8)))
    assert find_changelogs(log, job_of(log, count), {}) == {}
    assert find_changelogs(log, job_of(log, count), read(log, "another")) == {}


def test_a_table_whose_topic_is_its_changelog_is_read_as_far_as_the_group_was(log: Log):
    def table(builder: StreamsBuilder) -> None:
        builder.table("in", **TEXTS, store="rows")

    assert find_changelogs(log, job_of(log, table), read(log)) == {"rows": Changelog("in", (3, 0))}
    written(log, "app-rows-changelog")
    assert find_changelogs(log, job_of(log, table), read(log)) == {"rows": Changelog("app-rows-changelog", (0, 0))}


def test_what_only_java_understands_is_refused_unless_it_is_empty(log: Log):
    def suppressed(builder: StreamsBuilder) -> None:
        counts = builder.stream("in", **TEXTS).group_by_key().windowed_by(TimeWindows.of(10)).count(store="counts")
        counts.suppress(Suppressed.until_window_closes(Buffer.unbounded())).to_stream().to(
            "out", key=serde.windowed(serde.STRING, 10), value=serde.LONG
        )

    job = job_of(log, suppressed)
    (buffer,) = (name for name in job.graph.stores if "SUPPRESS" in name)
    written(log, f"app-{buffer}-changelog", (b"k", b"held back"))
    with pytest.raises(StreamsError, match=f"{buffer}.*cannot be taken over.*Let the Java application run until it is"):
        find_changelogs(log, job, read(log))
    log.append([(TopicPartition(f"app-{buffer}-changelog", 0), Records.from_rows([(b"k", None, 1, ())]))])
    assert find_changelogs(log, job, read(log)) == {}


def test_values_without_a_serde_are_refused(log: Log):
    def summed(builder: StreamsBuilder) -> None:
        texts = builder.stream("in", **TEXTS).group_by_key()
        texts.aggregate(lambda: 0, lambda key, value, total: total + len(value), store="sums")

    written(log, "app-sums-changelog", (b"k", bytes(8)))
    with pytest.raises(StreamsError, match=r"'sums'.*its values have no serde.*declare one"):
        find_changelogs(log, job_of(log, summed), read(log))


def test_records_that_java_has_not_processed_are_refused(log: Log):
    def regrouped(builder: StreamsBuilder) -> None:
        builder.stream("in", **TEXTS).group_by(lambda value: value, **TEXTS).count(store="counts")

    job = job_of(log, regrouped)
    (inner,) = job.graph.internal_topics
    written(log, f"app-{inner}", (b"k", b"1"), (b"k", b"2"))
    with pytest.raises(StreamsError, match="has left 1 records in app-counts-repartition"):
        find_changelogs(log, job, read(log) | read(log, f"app-{inner}", 1))
    assert find_changelogs(log, job, read(log) | read(log, f"app-{inner}", 2)) == {}


def test_a_java_application_that_is_still_there_is_waited_for(log: Log):
    log.join("app", "somebody", ["in"], frozenset(), 60_000)
    with pytest.raises(StreamsError, match=r"still running \(somebody\): stop it first"):
        await_empty_group(log, "app", patience=0)
    log.leave("app", "somebody")
    await_empty_group(log, "app", patience=0)


def test_a_changelog_of_another_number_of_partitions_is_refused(log: Log):
    written(log, "app-counts-changelog", partitions=3)
    with pytest.raises(StreamsError, match="has 3 partitions, but 2 tasks have the store 'counts'"):
        find_changelogs(log, job_of(log, count), read(log))
