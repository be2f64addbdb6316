"""A source topic of a sub-topology with state gets more partitions while the application runs, and records flow."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, Application, Materialized, Producer, StreamsBuilder, Topology, serde
from headrace.model.partitioner import partition_of
from headrace.spark import run
from tests.spark.places import PATIENCE_MS, Place, wait_for

pytestmark = pytest.mark.spark
KEYS = [f"key {n}" for n in range(50)]
TEXTS: dict[str, Any] = {"key": serde.STRING, "value": serde.STRING}


def append_all(topic: str, out: str, names: str | None = None) -> Topology:
    """The values of each key in the order of their records; with a table of names, joined with the name of the key."""
    builder = StreamsBuilder()
    stream = builder.stream(topic, **TEXTS)
    if names is not None:
        table = builder.table(names, **TEXTS)
        stream = stream.join(table, lambda value, name: f"{value}/{name}")
    grouped = stream.group_by_key(**TEXTS)
    store = Materialized("all", **TEXTS)
    grouped.aggregate(lambda: "", lambda key, value, all_of: f"{all_of} {value}".strip(), store=store).to_stream().to(
        out, **TEXTS
    )
    return builder.build()


class NumberedRecords:
    """Sends numbered records to the partitions of a number that it was told, which may be an old one."""

    def __init__(self, log: str, topic: str, partitions: int) -> None:
        self.topic, self.partitions = topic, partitions
        self.producer, self.sent = Producer(log, **TEXTS), defaultdict[str, list[str]](list)

    def send(self, count: int) -> None:
        """Each record is acknowledged before the next one is sent."""
        for _ in range(count):
            number = sum(map(len, self.sent.values()))
            key = KEYS[number * 7 % len(KEYS)]
            partition = partition_of(key.encode(), self.partitions)
            self.producer.send(self.topic, key=key, value=f"{number}", partition=partition)
            self.producer.flush()
            self.sent[key].append(f"{number}")

    def expected(self) -> dict[str, str]:
        return {key: " ".join(values) for key, values in self.sent.items()}


def grow_while_records_flow(app: Application, log: str, records: NumberedRecords, *numbers: int) -> None:
    records.send(100)
    app.drain(PATIENCE_MS)
    for partitions in numbers:
        records.send(30)
        with Admin(log) as admin:
            admin.add_partitions(records.topic, partitions)
        records.send(30)
        wait_for(app, lambda count=partitions: app._running().job.tasks[0] == count)
        records.send(30)  # still with the old number
        records.partitions = partitions
        records.send(60)
    app.drain(PATIENCE_MS)
    stored = dict(app.store("all").all())
    assert {key: found.value for key, found in stored.items()} == records.expected()


@pytest.mark.parametrize("trigger, numbers", [("real-time", (6, 7)), ("micro-batch", (6,))])
def test_a_topic_grows_while_records_flow(tmp_path: Path, trigger: str, numbers: tuple[int, ...]):
    place = Place(tmp_path)
    place.create("in", partitions=4)
    place.create("out")
    with place.app(append_all("in", "out"), trigger=trigger) as app:
        grow_while_records_flow(app, place.log, NumberedRecords(place.log, "in", 4), *numbers)


@pytest.mark.parametrize("trigger", ["real-time", "micro-batch"])
def test_a_producer_may_know_of_new_partitions_before_the_application(tmp_path: Path, trigger: str, monkeypatch):
    """It writes keys to old partitions that belong to other tasks by the old number."""
    monkeypatch.setattr(run, "TOPIC_CHECK_INTERVAL", 3600.0)  # the batches themselves have to notice
    place = Place(tmp_path)
    place.create("in", partitions=4)
    place.create("out")
    with place.app(append_all("in", "out"), trigger=trigger) as app:
        records = NumberedRecords(place.log, "in", 4)
        records.send(60)
        app.drain(PATIENCE_MS)
        with Admin(place.log) as admin:
            admin.add_partitions("in", 6)
        records.partitions = 6
        records.send(60)
        wait_for(app, lambda: app._running().job.tasks[0] == 6)
        records.send(60)
        app.drain(PATIENCE_MS)
        stored = dict(app.store("all").all())
        assert {key: found.value for key, found in stored.items()} == records.expected()


@pytest.mark.parametrize("trigger", ["real-time", "micro-batch"])
def test_joined_topics_may_grow_one_after_the_other(tmp_path: Path, trigger: str):
    """Producers that know of the new partitions also write keys to old partitions that belong to other tasks."""
    place = Place(tmp_path)
    place.create("in", "names", partitions=4)
    place.create("out")
    with Producer(place.log, **TEXTS) as producer:
        for key in KEYS:
            producer.send("names", key=key, value=f"name of {key}")
    with place.app(append_all("in", "out", names="names"), trigger=trigger) as app:
        records = NumberedRecords(place.log, "in", 4)
        records.send(60)
        app.drain(PATIENCE_MS)
        with Admin(place.log) as admin:
            admin.add_partitions("in", 6)
            wait_for(app, lambda: bool(app._running().job.plan.readers))
            assert app._running().job.tasks[0] == 4
            records.partitions = 6
            records.send(60)
            admin.add_partitions("names", 6)
            wait_for(app, lambda: app._running().job.tasks[0] == 6)
        records.send(60)
        app.drain(PATIENCE_MS)
        stored = dict(app.store("all").all())
        assert {key: found.value for key, found in stored.items()} == {
            key: " ".join(f"{value}/name of {key}" for value in values) for key, values in records.sent.items()
        }
