"""Brokers that are slow by a quota, have no room, or are away for longer than a call waits: nothing is lost.

`make test-faults` runs all of them, `make test` one that takes seconds.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from headrace.errors import LogBusyError, LogUnavailableError
from headrace.log.kafka import KafkaLog
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.testing import KafkaBroker

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

IS_LONG = "HEADRACE_FAULTS" in os.environ  # of `make test-faults`
QUICK = {"default.api.timeout.ms": 10_000, "socket.timeout.ms": 1000, "socket.connection.setup.timeout.ms": 1000}
SIZE = 20_000  # bytes of a record
kafka: Any = confluent_kafka


def items(number: int) -> list[tuple[TopicPartition, Records]]:
    values = [os.urandom(SIZE) + b"/%d/%d" % (number, at) for at in range(5)]
    return [(TopicPartition("out", 0), Records([b"k"] * 5, values, [1 + number] * 5))]


def check(log: KafkaLog, batches: int) -> None:
    rows = [row for chunk in log.read(TopicPartition("out", 0), 0) for row in chunk.rows()]
    found = [(row[2] or b"")[SIZE:] for row in rows]
    assert found == [b"/%d/%d" % (number, at) for number in range(batches) for at in range(5)]
    assert log.delivered("app") == batches - 1


def deliver_stubbornly(log: KafkaLog, number: int) -> None:
    """As an application that is started again when its log was away for too long."""
    batch = items(number)
    for _ in range(30):
        try:
            log.deliver("app", number, batch)
        except (LogUnavailableError, LogBusyError):
            continue
        return
    pytest.fail(f"batch {number} could not be delivered")


def deliver_until_full(log: KafkaLog, number: int) -> int:
    """Returns the first batch that the broker does not take: what is left on its disk is room for some."""
    for following in range(number, number + 1000):
        try:
            log.deliver("app", following, items(following))
        except LogUnavailableError:
            return following
    pytest.fail("the disk is not full")


def test_a_broker_that_is_away_for_longer_than_a_call_waits():
    """With the default settings a call waits for 60 seconds, and the broker is away for 70."""
    away = 70.0 if IS_LONG else 0.0
    with KafkaBroker() as broker, KafkaLog(broker.address, {} if IS_LONG else QUICK) as log:
        log.create_topic("out", 1)
        log.deliver("app", 0, items(0))
        broker.pause()
        paused = time.monotonic()
        with pytest.raises(LogUnavailableError, match=r"no answer|could not be delivered"):
            log.deliver("app", 1, items(1))
        threading.Event().wait(max(0.0, paused + away - time.monotonic()))
        broker.resume()
        for number in (1, 2):
            deliver_stubbornly(log, number)
        rows = [row for chunk in log.read(TopicPartition("out", 0), 0) for row in chunk.rows()]
        assert [(row[2] or b"")[SIZE:] for row in rows] == [b"/%d/%d" % (n, at) for n in range(3) for at in range(5)]


@pytest.mark.long
def test_a_quota_makes_deliveries_slow_and_changes_nothing_else():
    with KafkaBroker() as broker, KafkaLog(broker.address) as log:
        log.create_topic("out", 1)
        quota = [
            "--alter",
            "--add-config",
            "producer_byte_rate=50000",
            "--entity-type",
            "clients",
            "--entity-default",
        ]
        log.create_topic("other", 1)
        broker._run("kafka.admin.ConfigCommand", "--bootstrap-server", broker.bootstrap, *quota)
        throttled = list[Any]()
        producer = kafka.Producer({"bootstrap.servers": broker.bootstrap, "throttle_cb": throttled.append})
        for _ in range(40):
            producer.produce("other", os.urandom(SIZE))
            producer.flush(60)
            if throttled:
                break
        assert throttled, "the quota is not in force"
        for number in range(5):
            deliver_stubbornly(log, number)
        check(log, 5)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 MB in memory."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["/bin/umount", "--lazy", str(disk)], check=True)


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_a_broker_whose_disk_is_full_loses_nothing_and_goes_on_when_there_is_room(small_disk: Path):
    segments = {"log.segment.bytes": "1048576", "log.index.size.max.bytes": "65536"}
    with KafkaBroker(small_disk / "broker", segments) as broker, KafkaLog(broker.address, QUICK) as log:
        log.create_topic("out", 1)
        for number in range(3):
            deliver_stubbornly(log, number)
        filler, piece = small_disk / "filler", bytes(1 << 16)
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(piece) == len(piece):
                    pass
            except OSError:
                pass
        number = deliver_until_full(log, 3)
        filler.unlink()
        broker.restart()
        # The log has some of the batches; which one is next, an application learns from the marker.
        for following in range(log.delivered("app") + 1, number + 3):
            deliver_stubbornly(log, following)
        check(log, number + 3)
