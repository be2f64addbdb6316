"""A place for an application to live in: log, checkpoint and local state in a directory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace import Admin, Application, Consumer, Producer, Topology, serde

PATIENCE = 60.0  # seconds
PATIENCE_MS = 60_000


class Place:
    """A log, a checkpoint and a state directory for one test."""

    def __init__(self, folder: Path, log: str | None = None, name: str = "life") -> None:
        self.folder, self.log, self.name = folder, log or f"file:{folder}/log", name

    def app(self, topology: Topology, **options: Any) -> Application:
        options = {"checkpoint": str(self.folder / "checkpoint"), "state_dir": str(self.folder / "state")} | options
        return Application(self.name, topology, self.log, **options)

    def create(self, *topics: str, partitions: int = 1) -> None:
        with Admin(self.log) as admin:
            for topic in topics:
                admin.create_topic(topic, partitions=partitions)

    def send(self, topic: str, *values: str, partition: int | None = None) -> None:
        with Producer(self.log, key=serde.STRING, value=serde.STRING) as producer:
            for value in values:
                producer.send(topic, value, value, partition=partition)

    def send_at(self, topic: str, key: str, *times: int) -> None:
        """In one append: an application reads all of them in one batch."""
        with Producer(self.log, key=serde.STRING, value=serde.STRING, linger=60_000) as producer:
            for time in times:
                producer.send(topic, key, key, timestamp=time)

    def read(self, topic: str) -> list[str]:
        with Consumer(self.log, value=serde.STRING, auto_offset_reset="earliest") as consumer:
            consumer.subscribe(topic)
            return [record.value for record in consumer.poll(1000)]


def wait_for(app: Application, reached: Callable[[], bool]) -> None:
    """Until something is so; the application may be planned anew in between."""
    event = threading.Event()
    for _ in range(int(PATIENCE / 0.1)):
        if reached():
            return
        event.wait(0.1)
        app._check()
    raise AssertionError("it was never so")
