"""An application on Spark whose log is a Kafka cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import word_count
from headrace import serde
from headrace.app import Application
from headrace.clients.admin import Admin
from headrace.clients.consumer import Consumer
from headrace.clients.producer import Producer

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
LINES = ["all streams lead to kafka", "hello kafka streams", "join the kafka summit"]
WORDS = {"all": 1, "hello": 1, "join": 1, "kafka": 3, "lead": 1, "streams": 2, "summit": 1, "to": 1}


def application(address: str, tmp_path: Path) -> Application:
    return Application(
        word_count.APPLICATION,
        word_count.build(),
        address,
        checkpoint=str(tmp_path / "checkpoint"),
        state_dir=str(tmp_path / "state"),
    )


def produce(address: str, lines: list[str]) -> None:
    with Producer(address) as producer:
        for line in lines:
            producer.send(word_count.INPUT, None, line, value_serde=serde.STRING)


def counted(address: str) -> list[tuple[str, int]]:
    with Consumer(address, key=serde.STRING, value=serde.STRING, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(word_count.OUTPUT)
        return [(record.key, int(record.value)) for record in consumer.poll(1000)]


def test_words_are_counted_once_over_several_runs(broker_address: str, tmp_path: Path):
    with Admin(broker_address) as admin:
        admin.create_topic(word_count.INPUT, partitions=2)
        admin.create_topic(word_count.OUTPUT, partitions=1)
    produce(broker_address, LINES)
    with application(broker_address, tmp_path) as app:
        app.drain(timeout=60_000)
        assert {key: value.value for key, value in app.store(word_count.STORE).all()} == WORDS
    first = counted(broker_address)
    assert dict(first) == WORDS
    application(broker_address, tmp_path).run_available()
    assert counted(broker_address) == first
    produce(broker_address, ["kafka"])
    application(broker_address, tmp_path).run_available()
    assert counted(broker_address)[len(first) :] == [("kafka", 4)]
