"""Applications on Spark that read what only a Kafka cluster has, or has no more."""

from __future__ import annotations

import re
import time
from itertools import count
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from headrace import Admin, StreamsBuilder, Topology, serde
from headrace.errors import LogUnavailableError, OffsetOutOfRangeError, SerializationError, StreamsError
from headrace.log.kafka import KafkaLog
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.testing import KafkaBroker
from headrace.testing.broker import free_port
from tests.kafka.acls import allow
from tests.log.harness import until
from tests.spark.places import PATIENCE_MS, Place, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
kafka: Any = confluent_kafka
_NAMES = (f"app-{i}" for i in count())
DAY = 86_400_000


@pytest.fixture
def place(guarded: KafkaBroker, tmp_path: Path) -> Place:
    """An application, by whose name its topics begin."""
    return Place(tmp_path, guarded.address, next(_NAMES))


def copying(place: Place, **options: Any) -> Topology:
    builder = StreamsBuilder()
    builder.stream(f"{place.name}-in", **options).to(f"{place.name}-out")
    return builder.build()


def source(place: Place, partition: int = 0) -> TopicPartition:
    return TopicPartition(f"{place.name}-in", partition)


def create(place: Place, **config: str) -> None:
    with Admin(place.log) as admin:
        admin.create_topic(f"{place.name}-in", config={name.replace("_", "."): value for name, value in config.items()})
        admin.create_topic(f"{place.name}-out")


def append(place: Place, *values: str, times: range | list[int] | None = None) -> None:
    with KafkaLog(place.log) as log:
        raw = [value.encode() for value in values]
        log.append([(source(place), Records(raw, raw, times or range(1, len(raw) + 1)))])


def out(place: Place) -> list[str]:
    return place.read(f"{place.name}-out")


# ------------------------------------------------------------------------------------------------------------ gaps
def test_what_was_aborted_or_compacted_is_no_gap_to_an_application(place: Place):
    create(
        place, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.001", delete_retention_ms="0"
    )
    with KafkaLog(place.log) as log:
        for round_ in range(5):  # every one in a segment of its own
            times = [1 + 1000 * round_] * 3
            log.append([(source(place), Records([b"a", b"b", b"c"], [b"%d" % round_] * 3, times))])
            aborted(place, 1 + 1000 * round_)
        until(lambda: len(rows_of(log, source(place))) < 15, True)
        log.alter_config(source(place).topic, {"cleanup.policy": "delete"})  # no more compaction
        until(lambda: consumed(place) == consumed(place), True)  # no compaction is under way
        rows = consumed(place)
        assert {row[1]: row[2] for row in rows} == {b"a": b"4", b"b": b"4", b"c": b"4"}
        assert rows_of(log, source(place)) == rows
        end = log.extents([source(place).topic])[source(place)].end
        for start in range(end):
            found = [row for chunk in log.read(source(place), start, end - 1) for row in chunk.rows()]
            assert found == [row for row in rows if start <= row[0] < end - 1]
    with place.app(copying(place), config={"batch.max.records": 2}) as app:
        app.drain(PATIENCE_MS)
    assert [value.encode() for value in out(place)] == [row[2] for row in rows]


def consumed(place: Place) -> list[Any]:
    """What Kafka's own client reads: a witness that shares no code with the log of Headrace."""
    consumer = kafka.Consumer(
        {
            "bootstrap.servers": place.log.removeprefix("kafka://"), "group.id": "witness",
            "isolation.level": "read_committed", "enable.partition.eof": True, "enable.auto.commit": False,
        }
    )  # fmt: skip
    consumer.assign([kafka.TopicPartition(source(place).topic, 0, 0)])
    rows: list[Any] = []
    while (message := consumer.poll(PATIENCE_MS / 1000)).error() is None:
        rows.append((message.offset(), message.key(), message.value(), message.timestamp()[1], ()))
    assert message.error().code() == kafka.KafkaError._PARTITION_EOF
    consumer.close()
    return rows


def aborted(place: Place, timestamp: int) -> None:
    producer = kafka.Producer({"bootstrap.servers": place.log.removeprefix("kafka://"), "transactional.id": "aborting"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(source(place).topic, b"never", b"x", 0, timestamp=timestamp)
    producer.flush()
    producer.abort_transaction()


def test_partitions_that_a_topic_gets_are_read(place: Place):
    create(place)
    with place.app(copying(place)) as app:
        append(place, "a")
        app.drain(PATIENCE_MS)
        with Admin(place.log) as admin:
            admin.add_partitions(source(place).topic, 3)
        place.send(source(place).topic, "b", partition=2)
        wait_for(app, lambda: out(place) == ["a", "b"])


def test_a_topic_that_is_deleted_and_made_again_stops_an_application_that_runs(place: Place):
    create(place)
    append(place, "a")
    with place.app(copying(place)) as app:
        app.drain(PATIENCE_MS)
        with Admin(place.log) as admin:
            admin.delete_topic(source(place).topic)
            admin.create_topic(source(place).topic)
        with pytest.raises(StreamsError, match=f"the topic {source(place).topic} was deleted and created again"):
            wait_for(app, lambda: False)


# ------------------------------------------------------------------------------------------------------- retention
@pytest.mark.parametrize("reset, seen", [("earliest", "efgh"), ("latest", ""), ("by_duration:P1D", "gh")])
def test_where_retention_was_quicker_it_goes_on_by_policy_and_counts_what_it_never_saw(
    place: Place, reset: str, seen: str
):
    overtaken(place)
    with place.app(copying(place), config={"auto.offset.reset": reset}) as app:
        app.drain(PATIENCE_MS)
        append(place, "new")
        app.drain(PATIENCE_MS)
        assert app.metrics()["dropped-records-total/retention"] == 7 - len(seen)
    assert out(place) == ["a", *seen, "new"]


def test_where_retention_was_quicker_and_there_is_no_policy_it_stops(place: Place):
    overtaken(place)
    with (
        place.app(copying(place), config={"auto.offset.reset": "none"}) as app,
        pytest.raises(OffsetOutOfRangeError, match="removed by retention") as raised,
    ):
        wait_for(app, lambda: False)
    assert any("headrace reset" in note for note in raised.value.__notes__)
    assert out(place) == ["a"]


def overtaken(place: Place) -> None:
    """An application has read `a`, and while it is away more comes and goes."""
    create(place)
    append(place, "a")
    place.app(copying(place)).run_available()
    now = time.time_ns() // 1_000_000
    append(place, *"bcdefgh", times=[now - 2 * DAY] * 5 + [now] * 2)
    with KafkaLog(place.log) as log:
        log.delete_records({source(place): 4})


# ---------------------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize("policy", ["fail", "continue", "dead_letter"])
def test_a_record_that_cannot_be_decoded_stops_it_is_left_out_or_goes_to_the_dead_letters(place: Place, policy: str):
    create(place)
    append(place, "1", "no number", "2")
    dead = f"{place.name}-dead"
    config = {"deserialization.exception.handler": policy, "errors.dead.letter.queue.topic.name": dead}
    builder = StreamsBuilder()
    builder.stream(source(place).topic, value=serde.JSON).to(f"{place.name}-out", value=serde.JSON)
    app = place.app(builder.build(), config=config)
    if policy == "fail":
        with pytest.raises(
            SerializationError, match=rf"cannot decode the value of {source(place).topic}/0 at offset 1"
        ):
            app.run_available()
        assert out(place) == []
        return
    app.run_available()
    assert out(place) == ["1", "2"]
    with KafkaLog(place.log) as log:
        assert (dead in log.topics()) == (policy == "dead_letter")
        letters = rows_of(log, TopicPartition(dead, 0)) if policy == "dead_letter" else []
    for _, key, value, _, headers in letters:
        assert key == value == b"no number"
        named = dict(headers)
        origin = [named[f"__streams.errors.{part}"] for part in ("topic", "partition", "offset")]
        assert origin == [source(place).topic.encode(), b"0", b"1"]
        assert named["__streams.errors.message"]
    assert len(letters) == (policy == "dead_letter")


def rows_of(log: KafkaLog, at: TopicPartition) -> list[Any]:
    return [row for chunk in log.read(at, 0) for row in chunk.rows()]


def test_a_broker_that_is_away_at_the_start_is_waited_for_and_then_named(tmp_path: Path, caplog):
    nowhere = Place(tmp_path, f"kafka://127.0.0.1:{free_port()}", "nowhere")
    with pytest.raises(LogUnavailableError, match=r"got no answer: .* Are the brokers running"):
        nowhere.app(copying(nowhere), config={"default.api.timeout.ms": 4000}).start()
    told = [record.getMessage() for record in caplog.records if record.name == "headrace.log.kafka"]
    assert len(told) == 1  # one line, and none more in the first ten seconds
    assert re.match(r"Kafka at 127\.0\.0\.1:\d+ does not answer: Connect to .* refused. Trying again", told[0])


def test_a_user_with_the_acls_that_are_documented_can_run_an_application(guarded: KafkaBroker, place: Place):
    create(place)
    append(place, "a")
    for topic, operations in {
        "in": ["READ"],
        "out": ["WRITE", "DESCRIBE_CONFIGS"],
        "delivered": ["CREATE", "READ", "WRITE", "DESCRIBE_CONFIGS"],
    }.items():
        allow(guarded, "ada", "TOPIC", f"{place.name}-{topic}", *operations)
    for producer in ("delivery", "delivery-next"):
        allow(guarded, "ada", "TRANSACTIONAL_ID", f"{place.name}-{producer}", "WRITE")
    allow(guarded, "ada", "GROUP", place.name, "READ")
    ours = Place(place.folder, guarded.secured, place.name)
    ours.app(copying(place), config=guarded.settings_of("ada")).run_available()
    assert out(place) == ["a"]
    with KafkaLog(place.log) as log:
        assert log.committed(place.name) == {source(place): 1}
