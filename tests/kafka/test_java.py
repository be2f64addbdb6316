"""Headrace beside the real Kafka Streams: they read each other's topics."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace import SessionWindows, StreamsBuilder, TimeWindows, Topology, Windowed, serde
from headrace.serde import Serde
from tests.kafka.java_programs import application, create, records, running, send

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]
DAY = 86_400_000
SIZE = 10_000
KINDS: dict[str, tuple[Serde, Serde]] = {
    "windowed": (serde.windowed(serde.STRING, SIZE), serde.LONG),
    "sessions": (serde.session_windowed(serde.STRING), serde.LONG),
    "longs": (serde.LONG, serde.LONG),
    "table": (serde.STRING, serde.LONG),
}


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
        topology = exchange(room, "headrace", "java")
        application(broker_address, f"{room}-headrace", topology, tmp_path).run_available()
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
