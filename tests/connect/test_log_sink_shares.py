"""A large batch for another Kafka cluster is delivered by slots, in shares: every partition has it once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from headrace import Admin, Application, Producer, Record, StreamsBuilder, serde
from headrace.connect import LogSink, SinkBatch, SinkContext, SinkPart, SinkShare, SinkWriter
from headrace.errors import ProducerFencedError, SinkUnavailableError
from headrace.log.open import open_log
from headrace.model.ids import TopicPartition
from headrace.testing.broker import free_port

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
PARTS = ["0_0", "0_1", "0_2"]


@pytest.fixture
def topic() -> str:
    return f"copy-{uuid4().hex[:8]}"


@pytest.fixture
def open_writer(broker_address: str, topic: str) -> Iterator[Callable[[], SinkWriter]]:
    """Each writer is that of a process of its own."""
    context = SinkContext(application=topic, sink="copy", checkpoint="c0ffee42")
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(LogSink(broker_address, topic).open(context)))


def batch(number: int, *parts: str, share: SinkShare | None = None) -> SinkBatch:
    found = [
        SinkPart(name, int(name[-1]), [Record(b"k", f"{number}/{name}".encode(), 1 + number)], [(number,)])
        for name in parts or PARTS
    ]
    return SinkBatch(number, tuple(found), share)


def values(address: str, topic: str) -> dict[int, list[bytes | None]]:
    with closing(open_log(address)) as log:
        return {
            at.partition: [row[2] for chunk in log.read(at, 0) for row in chunk.rows()] for at in log.extents([topic])
        }


def whole(batches: int) -> dict[int, list[bytes | None]]:
    return {part: [f"{number}/0_{part}".encode() for number in range(batches)] for part in range(3)}


def test_producers_stay_from_batch_to_batch_and_every_partition_has_each_batch_once(
    broker_address: str, topic: str, open_writer: Callable[[], SinkWriter]
):
    driver, slots = open_writer(), [open_writer(), open_writer()]
    assert driver.share_out(0, PARTS, 2) is None  # the first batch is for one process
    driver.write(batch(0))
    names: set[str] = set()
    for number in (1, 2, 3):
        given = driver.share_out(number, PARTS, 2)
        results = [
            slots[ordinal].write(batch(number, *PARTS[ordinal::2], share=SinkShare(ordinal, given)))
            for ordinal in (0, 1, 1)  # the answer of one was lost
        ]
        driver.commit(number, results)
        names |= {name for _, name in results}
    assert len(names) == 2
    assert driver.share_out(3, PARTS, 2) is None  # it has the batch
    driver.write(batch(3))
    assert values(broker_address, topic) == whole(4)


def test_a_driver_that_follows_another_one_completes_its_batch_and_refuses_its_slots(
    broker_address: str, topic: str, open_writer: Callable[[], SinkWriter]
):
    first, slot = open_writer(), open_writer()
    first.write(batch(0))
    given = first.share_out(1, PARTS, 2)
    slot.write(batch(1, "0_0", "0_2", share=SinkShare(0, given)))
    second = open_writer()
    second.write(batch(1))
    with pytest.raises(ProducerFencedError, match="another instance"):
        open_writer().write(batch(1, "0_1", share=SinkShare(1, given)))
    assert values(broker_address, topic) == whole(2)


def test_shares_are_divided_otherwise_at_the_next_attempt(
    broker_address: str, topic: str, open_writer: Callable[[], SinkWriter]
):
    driver, slot, other = open_writer(), open_writer(), open_writer()
    driver.write(batch(0))
    slot.write(batch(1, "0_1", share=SinkShare(1, driver.share_out(1, PARTS, 2))))  # the other share is lost
    result = other.write(batch(1, *PARTS, share=SinkShare(0, driver.share_out(1, PARTS, 1))))
    driver.commit(1, [result])
    assert values(broker_address, topic) == whole(2)


def test_a_log_that_is_away_when_the_sink_is_opened_is_asked_again(topic: str):
    sink = LogSink(f"kafka://127.0.0.1:{free_port()}", topic, settings={"default.api.timeout.ms": 300})
    with pytest.raises(SinkUnavailableError, match="does not answer"):
        sink.open(SinkContext(application=topic, sink="copy", checkpoint="c0ffee42"))


@pytest.mark.spark
def test_slots_deliver_a_mirror_in_shares_and_a_restart_goes_on(broker_address: str, topic: str, tmp_path: Path):
    log = f"file:{tmp_path}/log"
    Admin(log).create_topic("numbers", partitions=3)
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=serde.STRING, value=serde.LONG)
    numbers.sink(LogSink(broker_address, topic, mirrors="numbers"))
    for first, last in ((0, 200), (200, 300)):
        with Producer(log) as producer:
            for n in range(first, last):
                producer.send("numbers", f"k{n % 10}", n, key_serde=serde.STRING, value_serde=serde.LONG)
        settings: dict[str, Any] = {"delivery_job_min_bytes": 1, "num_stream_threads": 2, "batch_max_records": 20}
        with Application(
            topic,
            builder.build(),
            log,
            checkpoint=str(tmp_path / "checkpoint"),
            state_dir=str(tmp_path / "state"),
            **settings,
        ) as app:
            app.drain()
    found = values(broker_address, topic)
    with closing(open_log(log)) as original:
        for partition in range(3):
            rows = [row for chunk in original.read(TopicPartition("numbers", partition), 0) for row in chunk.rows()]
            assert found[partition] == [row[2] for row in rows]
    marked = Counter(row[1] for row in read_markers(broker_address, topic))
    assert all(marked[f"delivered {topic}-{partition}".encode()] for partition in range(3))


def read_markers(address: str, topic: str) -> list[Any]:
    with closing(open_log(address)) as log:
        (name,) = [name for name in log.topics() if name.startswith(f"{topic}-") and name.endswith("-delivered")]
        return [row for chunk in log.read(TopicPartition(name, 0), 0) for row in chunk.rows()]
