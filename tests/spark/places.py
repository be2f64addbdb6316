"""A place for an application to run in, and a word count with words to send to it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace import Admin, Application, Consumer, Producer, StreamsBuilder, Topology, serde
from headrace.query.status import SlotReport

PATIENCE = 240.0  # seconds
PATIENCE_MS = 240_000


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
            for timestamp in times:
                producer.send(topic, key, key, timestamp=timestamp)

    def read(self, topic: str) -> list[str]:
        with Consumer(self.log, value=serde.STRING, auto_offset_reset="earliest") as consumer:
            consumer.subscribe(topic)
            return [record.value for record in consumer.poll(1000)]


def wait_for(app: Application, reached: Callable[[], bool]) -> None:
    """Waits until a condition holds; the application may be planned again meanwhile."""
    event = threading.Event()
    for _ in range(int(PATIENCE / 0.1)):
        if reached():
            return
        event.wait(0.1)
        app._check()
    raise AssertionError("it was never so")


# ------------------------------------------------------------------------------------------------------- a word count
def counting() -> Topology:
    builder = StreamsBuilder()
    lines = builder.stream("lines", key=serde.STRING, value=serde.STRING)
    words = lines.flat_map_values(lambda line: line.split())
    counts = words.group_by(lambda key, word: word, key=serde.STRING, value=serde.STRING).count(store="counts")
    counts.to_stream().map_values(str).to("counts", key=serde.STRING, value=serde.STRING)
    return builder.build()


class Words:
    """Sends lines to the word count, and knows how often every word was sent."""

    def __init__(self, place: Place) -> None:
        self.place, self.sent, self.number = place, Counter[str](), 0

    def send(self, app: Application, *lines: str) -> float:
        """Sends lines, or new ones, and checks the counts. Returns the seconds until the results are there."""
        lines = lines or self._new_lines(40)
        self.sent.update(word for line in lines for word in line.split())
        began = time.monotonic()
        self.place.send("lines", *lines)
        app.drain(PATIENCE_MS)
        took = time.monotonic() - began
        assert {word: found.value for word, found in app.store("counts").all()} == self.sent
        return took

    def _new_lines(self, count: int) -> tuple[str, ...]:
        self.number += count
        return tuple(f"a b{self.number + n} c{n % 3}" for n in range(count))


def slots(app: Application) -> dict[int, SlotReport]:
    return {slot.slot: slot for slot in app.report().slots}
