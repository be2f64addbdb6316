"""A topic with state behind it gets more partitions while records flow, and drivers and slots are killed with SIGKILL.

The producer goes on with the number of partitions that it knows: for ten seconds in the long form (`make test-faults`).
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import pytest
from confluent_kafka import Producer as KafkaProducer

from headrace import Admin, Producer
from headrace.checkpoint.ledger import manifest_numbers
from headrace.checkpoint.steps import MANIFEST, RESCALE, TAKEOVER, TASK_RUN
from headrace.checkpoint.storage import open_storage
from headrace.model.partitioner import partition_of
from headrace.testing import KafkaBroker
from tests.faults.deployment import wait_until
from tests.faults.kills import WORKERS, Kill
from tests.spark.test_topic_growth import KEYS, TEXTS

pytestmark = [pytest.mark.spark, pytest.mark.slow]
KEPT = 10.0 if "HEADRACE_FAULTS" in os.environ else 1.0  # seconds for which the producer keeps the old metadata
SENT = 400 if "HEADRACE_FAULTS" in os.environ else 40  # records at least, before and after each growth
# Of the drivers, one after the other; the first one divides the state then.
GROWTH_KILLS = (
    Kill(f"after {RESCALE}", 2), Kill(f"after {TAKEOVER}"), Kill(f"before {TAKEOVER}", 2), Kill(f"after {MANIFEST}", 3),
)  # fmt: skip


class Sender(Protocol):
    def __call__(self, key: str, value: str) -> None: ...


def embedded_sender(log: str) -> Sender:
    """Asks for the number of partitions every `KEPT` seconds."""
    producer, known = Producer(log, **TEXTS), [0, 0.0]

    def send(key: str, value: str) -> None:
        if time.monotonic() > known[1]:
            with Admin(log) as admin:
                known[:] = admin.describe("lines").topic.partitions, time.monotonic() + KEPT
        producer.send("lines", key=key, value=value, partition=partition_of(key.encode(), int(known[0])))
        producer.flush()

    return send


def kafka_sender(bootstrap: str) -> Sender:
    """A producer of Kafka with Kafka's own partitioner, and metadata of that age."""
    producer = KafkaProducer(
        {
            "bootstrap.servers": bootstrap,
            "partitioner": "murmur2_random",
            "topic.metadata.refresh.interval.ms": int(1000 * KEPT),
            "acks": "all",
        }
    )

    def send(key: str, value: str) -> None:
        producer.produce("lines", key=key.encode(), value=value.encode())
        assert producer.flush(60) == 0

    return send


class Flow:
    """Sends numbered records in a thread, each acknowledged before the next one is sent."""

    def __init__(self, send: Sender) -> None:
        self.sent, self.count = defaultdict[str, list[str]](list), 0
        self._send, self._over = send, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.wait(0.005):
            key = KEYS[self.count * 7 % len(KEYS)]
            self._send(key, f"{self.count}")
            self.sent[key].append(f"{self.count}")
            self.count += 1

    def await_more(self, place: Any, run: Any) -> None:
        """Waits for more records, for batches, and until the producer has learnt what was new before."""
        storage = open_storage(place.folder / "checkpoint")
        batches = max(manifest_numbers(storage), default=-1) + 5
        wait_until(lambda: max(manifest_numbers(storage), default=-1) >= batches, run)
        goal, end = self.count + SENT, time.monotonic() + KEPT
        wait_until(lambda: (self.count >= goal and time.monotonic() > end) or not self._thread.is_alive(), run)
        assert self._thread.is_alive(), "the producer has failed"

    @contextmanager
    def flowing(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()

    def expected(self) -> dict[str, str]:
        return {key: " ".join(values) for key, values in self.sent.items()}


def grow_under_kills(place: Any, jvm: dict[str, str], send: Sender, admin_log: str) -> None:
    """The topic grows from 4 partitions to 6, then to 7; five drivers follow one another, and one loses its slots."""

    def start(*kills: Kill) -> Any:
        return place.start(*kills, environment=jvm)

    def grow(partitions: int) -> None:
        with Admin(admin_log) as admin:
            admin.add_partitions("lines", partitions)

    flow = Flow(send)
    with flow.flowing():
        first = start(GROWTH_KILLS[0])
        flow.await_more(place, first)
        grow(6)
        first.ends_by_kill()
        start(GROWTH_KILLS[1]).ends_by_kill()
        third = start(Kill(f"before {TASK_RUN}", 9, WORKERS), GROWTH_KILLS[2])
        flow.await_more(place, third)
        wait_until(lambda: bool(third.victims(0)), third)
        grow(7)
        third.ends_by_kill()
        start(GROWTH_KILLS[3]).ends_by_kill()
        last = start()
        flow.await_more(place, last)
    (place.folder / "over").touch()
    last.ends_well()
    assert dict(place.tables()["all"]) == flow.expected()


Deploy = Callable[..., Any]


def options(place_folder: str) -> dict[str, Any]:
    return {"config": {"batch.max.records": 20}, "tables": ["all"], "until": place_folder}


def test_order_and_totals_of_every_key_are_exact(deploy: Deploy, jvm: dict[str, str], tmp_path):
    place = deploy("GROWING", **options(str(tmp_path / "deployment" / "over")))
    log = f"file:{place.folder}/log"
    grow_under_kills(place, jvm, embedded_sender(log), log)


@pytest.mark.kafka
def test_order_and_totals_of_every_key_are_exact_on_kafka(deploy: Deploy, jvm: dict[str, str], tmp_path):
    with KafkaBroker() as broker:
        place = deploy("GROWING", log=broker.address, **options(str(tmp_path / "deployment" / "over")))
        grow_under_kills(place, jvm, kafka_sender(broker.bootstrap), broker.address)
