"""Headrace beside the real Kafka Streams: they read each other's topics, and go on where the other has stopped."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from headrace import SessionWindows, StreamsBuilder, TimeWindows, Topology, Windowed, serde
from headrace.app import Application
from headrace.log.admin import Admin
from headrace.log.consumer import Consumer
from headrace.log.producer import Producer
from headrace.serde import Serde
from tests.kafka.java_programs import compiled, running

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]
DAY = 86_400_000
SIZE = 10_000
KINDS: dict[str, tuple[Serde, Serde]] = {
    "windowed": (serde.windowed(serde.STRING, SIZE), serde.LONG),
    "sessions": (serde.session_windowed(serde.STRING), serde.LONG),
    "longs": (serde.LONG, serde.LONG),
    "table": (serde.STRING, serde.LONG),
}


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return compiled(tmp_path_factory.mktemp("classes"))


@pytest.fixture
def room() -> str:
    """What the names of a test begin with: the broker is shared."""
    return f"java-{uuid4().hex[:8]}"


def create(address: str, *topics: str) -> None:
    with Admin(address) as admin:
        for topic in topics:
            admin.create_topic(topic, partitions=2)


def send(address: str, topic: str, serdes: tuple[Serde, Serde], records: Iterable[tuple[Any, Any, int]]) -> None:
    with Producer(address) as producer:
        for key, value, timestamp in records:
            producer.send(
                topic, key, value, key_serde=serdes[0], value_serde=serdes[1], timestamp=timestamp,
                partition=None if key is not None else timestamp % 2,
            )  # fmt: skip


def records(
    address: str, topic: str, count: int, serdes: tuple[Serde, Serde] = (serde.BYTES, serde.BYTES)
) -> list[Any]:
    """What is committed in a topic, once that is as much as it shall be; a moment more shows that there is no more."""
    found: list[Any] = []
    end = time.monotonic() + 60
    with Consumer(address, key_serde=serdes[0], value_serde=serdes[1], auto_offset_reset="earliest") as consumer:
        consumer.subscribe(topic)
        while len(found) < count and time.monotonic() < end:
            found += consumer.poll(500)
        found += consumer.poll(300)
    assert len(found) == count, f"{topic} has {found}"
    return found


def run_available(address: str, application: str, topology: Topology, folder: Path) -> None:
    """Without caches: every update comes out, on both sides."""
    checkpoint, state = str(folder / "checkpoint"), str(folder / "state")
    Application(
        application, topology, address, checkpoint=checkpoint, state_dir=state, statestore_cache_max_bytes=0
    ).run_available()


# -------------------------------------------------------------------------------------------------- one after the other
def word_count(room: str) -> Topology:
    builder = StreamsBuilder()
    (
        builder.stream(f"{room}-lines", key=serde.STRING, value=serde.STRING)
        .flat_map_values(lambda line: line.split(" "))
        .group_by(lambda word: word, key=serde.STRING, value=serde.STRING)
        .count(store="counts")
        .to_stream()
        .to(f"{room}-counts", key=serde.STRING, value=serde.LONG)
    )
    return builder.build()


FIRST, SECOND = ["to be or not to be", "that is the question"], ["to die to sleep", "to sleep no more"]


def counts_of(lines: list[str]) -> Counter[str]:
    return Counter(word for line in lines for word in line.split(" "))


def counted(address: str, room: str, words: int) -> list[tuple[str, int]]:
    return [(record.key, record.value) for record in records(address, f"{room}-counts", words, KINDS["table"])]


def with_lines(address: str, room: str, lines: list[str]) -> None:
    send(address, f"{room}-lines", (serde.STRING, serde.STRING), [(None, line, i) for i, line in enumerate(lines, 1)])


def highest(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The last count of every word; counts only grow, and the order of two partitions says nothing."""
    last: dict[str, int] = {}
    for word, count in counts:
        last[word] = max(count, last.get(word, 0))
    return last


@pytest.mark.parametrize("java_first", [True, False], ids=["java-headrace", "headrace-java"])
def test_a_word_count_goes_on_in_the_other_language(
    broker_address: str, java: list[str], room: str, tmp_path: Path, java_first: bool
):
    """The second reads on where the first stopped, of every line the words once. State is not taken over: it counts
    from one.
    """

    def run_java(words: int) -> None:
        with running(java, "word-count", broker_address, room, tmp_path):
            counted(broker_address, room, words)

    def run_headrace(_words: int) -> None:
        run_available(broker_address, room, word_count(room), tmp_path)

    create(broker_address, f"{room}-lines", f"{room}-counts")
    first, second = counts_of(FIRST), counts_of(SECOND)
    runs = (run_java, run_headrace) if java_first else (run_headrace, run_java)
    with_lines(broker_address, room, FIRST)
    runs[0](first.total())
    before = Counter(counted(broker_address, room, first.total()))
    assert highest(before) == first
    with_lines(broker_address, room, SECOND)
    runs[1](first.total() + second.total())
    after = Counter(counted(broker_address, room, first.total() + second.total())) - before
    assert highest(after) == second


# --------------------------------------------------------------------------------------------------------- side by side
def exchange(room: str, own: str, other: str) -> Topology:
    """What Programs.java calls so: results of the inputs, and what the other one's results say, as text."""
    builder = StreamsBuilder()
    mine, others = f"{room}-{own}", f"{room}-{other}"
    events = builder.stream(f"{room}-events", key=serde.STRING, value=serde.STRING).group_by_key()
    results = {
        "windowed": events.windowed_by(TimeWindows.of(SIZE, grace=DAY)).count().to_stream(),
        "sessions": events.windowed_by(SessionWindows.of(500, grace=DAY)).count().to_stream(),
        "longs": builder.stream(f"{room}-readings", key=serde.LONG, value=serde.STRING)
        .group_by_key()
        .count()
        .to_stream(),
        "table": builder.table(f"{room}-stock", key=serde.STRING, value=serde.LONG)
        .filter(lambda count: count > 1)
        .map_values(lambda count: count * 10)
        .to_stream(),
    }
    for kind, (key, value) in KINDS.items():
        results[kind].to(f"{mine}-{kind}", key=key, value=value)
        if kind == "table":
            read = builder.table(f"{others}-{kind}", key=key, value=value, store="stock").to_stream()
        else:
            read = builder.stream(f"{others}-{kind}", key=key, value=value)
        read.map(as_text(kind)).to(f"{mine}-read", key=serde.STRING, value=serde.STRING)
    return builder.build()


def as_text(kind: str) -> Any:
    def text(key: Any, value: int | None) -> tuple[str, str]:
        name = f"{key.key}@{key.window.start}..{key.window.end}" if isinstance(key, Windowed) else str(key)
        return kind, f"{name}={'null' if value is None else value}"

    return text


# Ends of windows, a late record, two sessions that a third record merges, deletes of rows that are and that are not.
EVENTS = [
    ("ä", "x", 1), ("b", "x", 9_999), ("ä", "x", 10_000), ("b", "x", 10_000), ("b", "x", 400), ("ä", "x", 10_800),
    ("ä", "x", 10_400), ("c", "x", 1_767_225_600_000), ("", "x", 1_767_225_600_000),
]  # fmt: skip
READINGS = [(0, "x", 1), (-1, "x", 2), (2**63 - 1, "x", 3), (-1, "x", 4), (-(2**63), "x", 5)]
STOCK = [("a", 1, 1), ("b", 2, 1), ("a", 5, 2), ("b", None, 3), ("c", None, 4), ("a", 1, 5), ("b", 7, 6), ("d", 3, 7)]
# Of these, as Kafka Streams tells it: a merge deletes sessions, a row that fails the filter is a tombstone.
RESULTS = {"windowed": 9, "sessions": 12, "longs": 5, "table": 8}


def test_each_reads_what_the_other_writes(broker_address: str, java: list[str], room: str, tmp_path: Path):
    inputs = {
        f"{room}-events": ((serde.STRING, serde.STRING), EVENTS),
        f"{room}-readings": ((serde.LONG, serde.STRING), READINGS),
        f"{room}-stock": ((serde.STRING, serde.LONG), STOCK),
    }
    create(broker_address, *inputs, *(f"{room}-{who}-{k}" for who in ("java", "headrace") for k in [*KINDS, "read"]))
    for topic, (serdes, given) in inputs.items():
        send(broker_address, topic, serdes, given)
    with running(java, "exchange", broker_address, room, tmp_path):
        by_java = {kind: records(broker_address, f"{room}-java-{kind}", count) for kind, count in RESULTS.items()}
        run_available(broker_address, f"{room}-headrace", exchange(room, "headrace", "java"), tmp_path)
        read = {
            who: records(broker_address, f"{room}-{who}-read", sum(RESULTS.values())) for who in ("headrace", "java")
        }
    for kind, count in RESULTS.items():
        by_headrace = records(broker_address, f"{room}-headrace-{kind}", count)
        assert told(by_headrace) == told(by_java[kind]), kind
    assert texts(read["headrace"]) == texts(read["java"])
    assert {
        "windowed:ä@10000..20000=3",
        "sessions:ä@10000..10000=null",
        "sessions:ä@10000..10800=3",
        "table:b=null",
    } <= (texts(read["headrace"]).keys())


def told(found: list[Any]) -> list[tuple[Any, ...]]:
    """Records as bytes, in the order of their partitions."""
    return [
        (record.partition, record.key, record.value, record.timestamp)
        for record in sorted(found, key=lambda record: (record.partition, record.offset))
    ]


def texts(found: list[Any]) -> Counter[str]:
    return Counter(f"{record.key.decode()}:{record.value.decode()}" for record in found)
