"""The planner: which ranges of the log a batch reads."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from headrace import JoinWindows, StreamsBuilder, Topology, serde
from headrace.config import Config
from headrace.log.open import open_log
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.spark.batch_planner import Control, Ends, Planner
from headrace.spark.job import Job
from headrace.topology.subtopologies import plan


def rekeyed_join() -> Topology:
    builder = StreamsBuilder()
    table = builder.table("table", key=serde.STRING, value=serde.STRING)
    events = builder.stream("events", key=serde.STRING, value=serde.STRING).select_key(lambda key, value: value)
    events.join(table, lambda event, row: row, key=serde.STRING, value=serde.STRING).to("out")
    builder.stream("elsewhere").to("copy")
    return builder.build()


def planned(folder: Path, at_most: int, *, sizes: dict[str, int] | None = None, **times: Any) -> list[Ends]:
    """What is read of topics with records at these times, in one partition or several, from their beginning."""
    address, graph = f"file:{folder}/log", rekeyed_join().graph()
    log, positions = open_log(address), []
    for topic, given in times.items():
        parts = [given] if not given or isinstance(given[0], int) else given
        log.create_topic(topic, len(parts))
        for partition, some in enumerate(parts):
            positions.append((topic, partition, 0))
            if some:
                records = Records([b"k"] * len(some), [b"v"] * len(some), some)
                log.append([(TopicPartition(topic, partition), records)])
    config = Config.of({"batch.max.records": at_most, "batch.max.bytes": 1000})
    job = Job("app", graph, plan(graph), config, {}, {}, address, "", "")
    control = Control(
        number=0,
        positions=positions,
        versions=[],
        carried=[],
        due=[],
        stream_time=-1,
        damaged=[],
        sizes=sizes or {},
    )
    try:
        return Planner(job, log).plan_ends(control)
    finally:
        log.close()


def test_everything_is_read_where_it_is_not_too_much(tmp_path: Path):
    ends = planned(tmp_path, 10, events=[1, 2, 3], table=[7], elsewhere=[])
    assert ends == [("events", 0, 0, 3, False), ("table", 0, 0, 1, False)]


def test_less_is_read_of_records_that_are_large(tmp_path: Path):
    sizes = {"elsewhere": 400, "events": 10, "table": 5000}
    ends = planned(tmp_path, 4, sizes=sizes, elsewhere=[1, 2, 3, 4, 5], events=[1, 2], table=[1])
    assert ends == [("elsewhere", 0, 0, 2, True), ("events", 0, 0, 2, False), ("table", 0, 0, 1, False)]


def test_topics_that_meet_in_a_deeper_task_are_read_up_to_the_first_record_that_is_left(tmp_path: Path):
    #  events  10 20 30 | 40 50      two records are left, the first at 40
    #  table   15 35 | 45            so the one at 45 is left too
    ends = planned(tmp_path, 3, events=[10, 20, 30, 40, 50], table=[15, 35, 45])
    assert ends == [("events", 0, 0, 3, True), ("table", 0, 0, 2, True)]


def test_a_topic_without_anything_old_enough_waits(tmp_path: Path):
    ends = planned(tmp_path, 1, events=[10, 20], table=[30])
    assert ends == [("events", 0, 0, 1, True)]


def test_the_backlog_of_one_topic_does_not_hold_up_another_that_it_never_meets(tmp_path: Path):
    ends = planned(tmp_path, 2, events=[1, 2, 3], table=[], elsewhere=[100, 200])
    assert ends == [("events", 0, 0, 2, True), ("elsewhere", 0, 0, 2, False)]


def test_partitions_whose_rows_meet_in_a_deeper_task_are_read_together(tmp_path: Path):
    ends = planned(tmp_path, 2, events=[[10, 20, 30], [11, 31]], table=[])
    assert ends == [("events", 0, 0, 2, True), ("events", 1, 0, 1, True)]


def test_a_task_waits_for_partitions_without_records_as_long_as_it_may(tmp_path: Path):
    builder = StreamsBuilder()
    views, searches = builder.stream("views"), builder.stream("searches")
    views.join(searches, lambda view, search: view, windows=JoinWindows.of(10)).to("out")
    builder.stream("alone").to("copy")
    address, graph, now = f"file:{tmp_path}/log", builder.build().graph(), 0.0
    job = Job("app", graph, plan(graph), Config.of({"max.task.idle.ms": 500}), {}, {}, address, "", "")
    with closing(open_log(address)) as log:
        for topic in ("views", "searches", "alone"):
            log.create_topic(topic, 1)
        planner = Planner(job, log, lambda: now)
        positions = [(topic, 0, 0) for topic in ("alone", "searches", "views")]
        control = Control(number=0, positions=positions, versions=[], carried=[], due=[], stream_time=-1, damaged=[])

        def topics_read() -> list[str]:
            return [topic for topic, *_ in planner.plan_ends(control)]

        for topic in ("views", "alone"):
            log.append([(TopicPartition(topic, 0), Records([b"k"], [b"v"], [1]))])
        assert topics_read() == ["alone"]
        now = 0.4
        assert topics_read() == ["alone"]
        now = 0.5
        assert topics_read() == ["alone", "views"]
        log.append([(TopicPartition("searches", 0), Records([b"k"], [b"v"], [2]))])
        assert topics_read() == ["alone", "searches", "views"]
