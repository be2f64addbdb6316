"""Topologies that the tests run, each with its input."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace import Processor, Punctuation, Record, Stores, StreamsBuilder, TimeWindows, Topology, serde
from headrace.config import Config
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from tests.checkpoint.memory_log import MemoryLog
from tests.expected import Row, driver_rows

TEXTS: dict[str, Any] = {"key": serde.STRING, "value": serde.STRING}
Text = tuple[str, str | None]


class Program(NamedTuple):
    build: Callable[[], Topology]
    inputs: dict[str, list[Text]]  # by topic, written in turn
    partitions: int = 1

    def log(self) -> MemoryLog:
        log = MemoryLog(**dict.fromkeys(self.inputs, self.partitions), out=self.partitions)
        self.feed(log)
        return log

    def feed(self, log) -> None:
        """Writes the input: a record of each topic every 10 ms."""
        for topic, rows in self.inputs.items():
            for number, (key, value) in enumerate(rows):
                at = TopicPartition(topic, number % self.partitions)
                raw = None if value is None else value.encode()
                log.append([(at, Records.from_rows([(key.encode(), raw, 10 * number, ())]))])

    def expected(self) -> list[Row]:
        """What the test driver writes to the topic `out`."""
        records = [
            (topic, key.encode(), None if value is None else value.encode(), 10 * number)
            for topic, rows in self.inputs.items()
            for number, (key, value) in enumerate(rows)
        ]
        records.sort(key=lambda record: record[3])
        return driver_rows(self.build(), records, ["out"], {"statestore.cache.max.bytes": 0})["out"]


CONFIG = Config.of({"application.id": "app", "statestore.cache.max.bytes": 0}, default_key_serde=serde.STRING)


def count_words() -> Topology:
    """Two levels, both of which write to one topic."""
    builder = StreamsBuilder()
    lines = builder.stream("lines", **TEXTS)
    lines.map_values(str.upper).to("out", **TEXTS)
    words = lines.flat_map_values(lambda line: line.split()).group_by(lambda _, word: word, **TEXTS)
    words.count(store="counts").to_stream().map_values(str).to("out", **TEXTS)
    words.windowed_by(TimeWindows.of(50)).count(store="windows")
    return builder.build()


def tag() -> Topology:
    """A function that never gives the same twice."""
    builder = StreamsBuilder()
    tagged = builder.stream("lines", **TEXTS).map_values(lambda line: f"{line} {uuid.uuid4()}")
    tagged.group_by_key(**TEXTS).reduce(lambda _, new: new, store="latest").to_stream().to("out", **TEXTS)
    return builder.build()


def join_by_reference() -> Topology:
    """A foreign-key join: its answers go back to where the questions came from."""
    builder = StreamsBuilder()
    left, right = builder.table("left", **TEXTS), builder.table("right", **TEXTS)
    left.join(right, lambda a, b: f"{a}+{b}", on=lambda value: value.split()[0]).to_stream().to("out", **TEXTS)
    return builder.build()


class Watch(Processor):
    """Counts in a store, and tells every 100 ms of the wall clock."""

    def init(self, context):
        self.context, self.store = context, context.store("watched")
        context.schedule(100, Punctuation.WALL_CLOCK, self.tell)

    def process(self, record):
        self.store.put(record.key, (self.store.get(record.key) or 0) + 1)

    def tell(self, now):
        for key, count in self.store.all():
            self.context.forward(Record(key, f"{count} at {now}", now))


def watch() -> Topology:
    topology = Topology()
    topology.add_source("source", "lines", **TEXTS)
    topology.add_processor("watch", Watch, "source")
    topology.add_store(Stores.key_value("watched", key=serde.STRING, value=serde.LONG), "watch")
    topology.add_sink("sink", "out", "watch", **TEXTS)
    return topology


LINES: list[Text] = [
    (f"line {n % 3}", line) for n, line in enumerate(["a b a", "b c", "c c c", "a", "d e f", "a b", "f"])
]
WORDS = Program(count_words, {"lines": LINES})
MANY_WORDS = Program(count_words, {"lines": LINES * 2}, partitions=3)
TAGS = Program(tag, {"lines": LINES})
WATCH = Program(watch, {"lines": LINES})
REFERENCES = Program(
    join_by_reference,
    {
        "left": [("l1", "r1 x"), ("l2", "r2 y"), ("l1", "r2 z"), ("l3", "r1 w"), ("l2", None), ("l4", "r3 v")],
        "right": [("r1", "one"), ("r2", "two"), ("r1", "uno"), ("r2", None), ("r3", "three"), ("r1", "un")],
    },
)
