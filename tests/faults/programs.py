"""Topologies that are killed on Spark, each with its input."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from headrace import Processor, Punctuation, Record, Stores, StreamsBuilder, TimeWindows, Topology, serde
from headrace.log.protocol import Log, Records
from headrace.model.ids import TopicPartition
from tests.expected import Row, driver_rows
from tests.spark.test_topic_growth import append_all

TEXTS: dict[str, Any] = {"key": serde.STRING, "value": serde.STRING}
CACHE_OFF = {"statestore.cache.max.bytes": 0}


class Program(NamedTuple):
    """A topology, and as many lines as it begins with; a key is always in the same partition."""

    build: Callable[[], Topology]
    lines: int
    partitions: int = 1
    config: dict[str, Any] = CACHE_OFF
    outputs: tuple[str, ...] = ("out",)

    def begin(self, log: Log) -> None:
        for topic in ("lines", *self.outputs):
            log.create_topic(topic, self.partitions)
        self.feed(log, range(self.lines))

    def feed(self, log: Log, numbers: range) -> None:
        """Writes lines, one for every 10 ms."""
        for part in range(self.partitions):
            own = [n for n in numbers if n % 5 % self.partitions == part]
            records = Records([b"%d" % (n % 5) for n in own], [line(n).encode() for n in own], [10 * n for n in own])
            log.append([(TopicPartition("lines", part), records)])

    def expected(self, lines: int) -> dict[str, list[Row]]:
        """What the test driver writes to each topic for so many lines."""
        records = [("lines", b"%d" % (n % 5), line(n).encode(), 10 * n) for n in range(lines)]
        return driver_rows(self.build(), records, self.outputs, self.config)


def count_words(window: int = 50, value: Any = serde.STRING) -> Topology:
    """Two levels, both of which write to one topic, and a window store."""
    builder = StreamsBuilder()
    lines = builder.stream("lines", key=serde.STRING, value=value)
    lines.map_values(str.upper).to("out", **TEXTS)
    words = lines.flat_map_values(str.split).group_by(lambda _, word: word, **TEXTS)
    words.count(store="counts").to_stream().map_values(str).to("out", **TEXTS)
    words.windowed_by(TimeWindows.of(window)).count(store="windows")
    return builder.build()


def word_count() -> Topology:
    """Two levels; every word of every line gives one result, which is one more than the word's result before."""
    builder = StreamsBuilder()
    words = builder.stream("lines", **TEXTS).flat_map_values(str.split)
    counts = words.group_by(lambda _, word: word, **TEXTS).count(store="counts")
    counts.to_stream().map_values(str).to("out", **TEXTS)
    return builder.build()


class Watch(Processor):
    """Keeps the last value of a key, forwards it, and tells of all of them by the wall clock."""

    def init(self, context: Any) -> None:
        self.context, self.store = context, context.store("watched")
        context.schedule(200, Punctuation.WALL_CLOCK, self.tell)

    def process(self, record: Record) -> None:
        self.store.put(record.key, (self.store.get(record.key) or 0) + 1)

    def tell(self, now: int) -> None:
        for key, count in self.store.all():
            self.context.forward(Record(key, f"{count}", now))


def watch_words() -> Topology:
    """A table of tagged lines that are never the same twice, counts of words, and ticks."""
    builder = StreamsBuilder()
    lines = builder.stream("lines", **TEXTS)
    tagged = lines.map_values(lambda line: f"{line} {uuid.uuid4()}").select_key(lambda _, line: line.split()[0])
    tagged.repartition(**TEXTS).group_by_key(**TEXTS).reduce(lambda _, new: new, store="latest").to_stream().to(
        "latest", **TEXTS
    )
    words = lines.flat_map_values(str.split).group_by(lambda _, word: word, **TEXTS)
    words.count(store="counts").to_stream().map_values(str).to("out", **TEXTS)
    builder.add_store(Stores.key_value("watched", key=serde.STRING, value=serde.LONG))
    lines.process(Watch, "watched").to("told", **TEXTS)
    return builder.build()


def write_frame(frame: Any, batch: int) -> None:
    """Writes a batch where the environment says, and the number of the batch to a list of calls."""
    place = Path(os.environ["FRAMES"])
    frame.write.mode("overwrite").parquet(str(place / f"batch={batch}"))
    with (place / "calls").open("a") as calls:
        calls.write(f"{batch} {frame.rdd.getNumPartitions()}\n")


def frames() -> Topology:
    """A function of the user writes every batch with Spark."""
    builder = StreamsBuilder()
    lines = builder.stream("lines", **TEXTS).map_values(lambda line: {"line": line, "words": len(line.split())})
    lines.to_spark(write_frame, key="key", timestamp="at", schema={"line": str, "words": int}, name="frames")
    return builder.build()


def line(number: int) -> str:
    """Two to four words; the first is one of seven.

    >>> line(1)
    'first1 b c'
    """
    return " ".join([f"first{number % 7}", *("abcdefgh"[(number + i) % 8] for i in range(1 + number % 3))])


def picky(raw: bytes) -> str:
    if raw.startswith(b"first6"):
        raise ValueError(f"{raw.decode()} is not what we are used to")
    return raw.decode()


DEAD_LETTERS = {"deserialization.exception.handler": "dead_letter", "errors.dead.letter.queue.topic.name": "dead"}
WORDS = Program(count_words, 60)
FRAMES = Program(frames, 60, partitions=4, outputs=())
OTHER = Program(lambda: count_words(70), 60)
LETTERS = Program(
    lambda: count_words(value=serde.serde_of(str.encode, picky)), 60, 2, {**CACHE_OFF, **DEAD_LETTERS}, ("out", "dead")
)
MANY = Program(watch_words, 30, partitions=3)
WORD_COUNT = Program(word_count, 0, partitions=8)
GROWING = Program(lambda: append_all("lines", "out"), 0, partitions=4)
