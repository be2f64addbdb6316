"""What most tests of the runtime begin with: a stream of texts, a few records, and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace import KStream, KTable, Record, StreamsBuilder, Topology, serde
from headrace.testing import TopologyTestDriver

TEXTS: dict[str, Any] = {"key": serde.STRING, "value": serde.STRING}
AT_ONCE = {"statestore.cache.max.bytes": 0, "emit.interval.ms": 0}  # every update comes out, closed windows too


@dataclass(frozen=True)
class Outcome:
    """What went to the end of a program, and how many records were dropped for which reason."""

    records: list[Record]
    dropped: Mapping[str, int]

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        return [(record.key, record.value) for record in self.records]

    @property
    def values(self) -> list[Any]:
        return [record.value for record in self.records]


class Collected:
    """A processor that keeps what it gets in a list."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records

    def process(self, record: Record) -> None:
        self.records.append(record)


def collect(stream: KStream | KTable) -> list[Record]:
    """A list that will hold whatever comes out of a stream or table."""
    records: list[Record] = []
    stream = stream.to_stream() if isinstance(stream, KTable) else stream
    stream.process(lambda: Collected(records))
    return records


def outcome(
    program: Callable[[KStream], KStream | KTable], *records: tuple[Any, ...], config: Mapping[str, Any] = AT_ONCE
) -> Outcome:
    """Runs records, (key, value) or (key, value, timestamp), through a program."""
    builder = StreamsBuilder()
    found = collect(program(builder.stream("in", **TEXTS)))
    with TopologyTestDriver(builder.build(), config=config) as driver:
        pipe(driver, "in", records)
        return Outcome(found, dropped(driver))


def pipe(driver: TopologyTestDriver, topic: str, records: Iterable[tuple[Any, ...]]) -> None:
    """Pipes texts; a record without a timestamp has 0."""
    target = driver.input_topic(topic, **TEXTS)
    for key, value, *timestamp in records:
        target.pipe(key, value, timestamp=timestamp[0] if timestamp else 0)


def dropped(driver: TopologyTestDriver) -> dict[str, int]:
    """Dropped records by reason."""
    prefix = "dropped-records-total/"
    return {name.removeprefix(prefix): n for name, n in driver.metrics().items() if name.startswith(prefix)}


def drive(topology: Topology | StreamsBuilder, **settings: Any) -> TopologyTestDriver:
    """A driver that lets every update out; settings have underscores for dots."""
    built = topology.build() if isinstance(topology, StreamsBuilder) else topology
    return TopologyTestDriver(built, config=AT_ONCE | {name.replace("_", "."): v for name, v in settings.items()})
