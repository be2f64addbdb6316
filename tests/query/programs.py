"""A topology with a store of every kind, and a host in one process that runs it batch by batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace import (
    Materialized,
    Processor,
    SessionWindows,
    Stores,
    StreamsBuilder,
    TimeWindows,
    Topology,
    serde,
)
from headrace.checkpoint.storage import ObjectStorage
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.model.partitioner import partition_of
from tests.checkpoint.cluster import Cluster, Ground
from tests.checkpoint.programs import Program

TEXTS: dict[str, Any] = {"key": serde.STRING, "value": serde.STRING}
KEYS = [f"k{number % 7}" for number in range(30)]
ROWS: list[tuple[str, str | None]] = [(key, f"v{number}") for number, key in enumerate(KEYS)]


class Remember(Processor):
    """Keeps the last values, by key, in a store that has room for five."""

    def init(self, context):
        self.recent, self.plain = context.store("recent"), context.store("plain")

    def process(self, record):
        self.recent.put(record.key, record.value)
        self.plain.put(record.key, {"value": record.value, "at": record.timestamp})


def every_kind() -> Topology:
    builder = StreamsBuilder()
    lines = builder.stream("lines", **TEXTS)
    grouped = lines.group_by_key(**TEXTS)
    grouped.count(store="counts")
    grouped.windowed_by(TimeWindows.of(50)).count(store="windows")
    grouped.windowed_by(SessionWindows.of(30)).count(store="sessions")
    builder.table("states", **TEXTS, store=Materialized("versions", history=100_000))
    builder.add_store(Stores.lru("recent", 5, **TEXTS))
    builder.add_store(Stores.key_value("plain", key=serde.STRING, value=serde.JSON))
    builder.add_store(Stores.key_value("fleeting", **TEXTS).without_logging())
    lines.process(Remember, "recent", "plain", "fleeting")
    lines.map_values(str.upper).to("out", **TEXTS)
    return builder.build()


ONE, THREE = (Program(every_kind, {"lines": [], "states": []}, partitions) for partitions in (1, 3))
SHOWN = ["counts", "plain", "recent", "sessions", "versions", "windows"]  # "fleeting" is not in the checkpoint


def feed(log: Any, rows: Iterable[tuple[str, str | None]], topics: Iterable[str] = ("lines", "states")) -> None:
    """Writes a record every 10 ms to the partition of its key, in every topic."""
    for number, (key, value) in enumerate(rows):
        raw = None if value is None else value.encode()
        for topic in topics:
            at = TopicPartition(topic, partition_of(key.encode(), log.topic(topic).partitions) or 0)
            log.append([(at, Records.from_rows([(key.encode(), raw, 10 * number, ())]))])


def started(program: Program = THREE, rows: Iterable[tuple[str, str | None]] = ROWS, **options: Any) -> Cluster:
    """A host that has not run yet; its checkpoint is in memory."""
    ground = Ground(log=program.log(), storage=options.pop("storage", None) or ObjectStorage.at("memory:///", {}))
    feed(ground.log, rows)
    return Cluster(ground, program, **options)


def finished(program: Program = THREE, rows: Iterable[tuple[str, str | None]] = ROWS, **options: Any) -> Cluster:
    """A host that has run a program to its end."""
    cluster = started(program, rows, **options)
    cluster.run()
    return cluster
