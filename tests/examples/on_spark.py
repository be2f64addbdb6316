"""Runs examples in the driver and on Spark, and tells what they come to: in the end both must say the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from examples.events import Event, Topics
from headrace import Admin, Application, Consumer, Producer, Record, Topology, ValueAndTimestamp
from headrace.state.spec import BufferKind, SubscriptionKind, VersionedKind
from headrace.testing import TopologyTestDriver
from tests.examples.playing import generated

PATIENCE_MS = 120_000
# Several batches are made of the events; and what the clock would let out later comes out at once.
SETTINGS = {"batch.max.records": 100, "emit.interval.ms": 0}

Table = dict[Any, Any]
Tables = dict[str, Table]  # by the name of a topic or a store


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program, the events that it gets, and what must be equal where not all need be."""

    name: str
    build: str = "build"
    count: int = 300
    seed: int = 7
    ahead: int = 0  # ms: so much later every key comes once more, so that the time of each partition is the same
    topics: Topics = field(default_factory=dict)  # if not the example's own
    outputs: Topics = field(default_factory=dict)
    timestamps: bool = True  # whether those of the results must be equal too
    equal: Mapping[str, Callable[[Tables], Any]] = field(default_factory=dict)  # instead of a whole table

    def __str__(self) -> str:
        return f"{self.name}-{self.build}"

    @property
    def example(self) -> ModuleType:
        return import_module(f"examples.{self.name}")

    def topology(self) -> Topology:
        return getattr(self.example, self.build)()

    def inputs(self) -> Topics:
        return self.topics or self.example.TOPICS

    def results(self) -> Topics:
        return self.outputs or self.example.OUTPUTS

    def events(self) -> list[Event]:
        names = dict(zip(self.example.TOPICS, self.inputs(), strict=True))
        events = [event._replace(topic=names[event.topic]) for event in generated(self.example, self.count, self.seed)]
        return [*events, *closing(events, list(names.values()), self.ahead)] if self.ahead else events

    def compared(self, tables: Tables) -> dict[str, Any]:
        """Of all tables what must be equal."""
        shown = tables if self.timestamps else {name: values(table) for name, table in tables.items()}
        return shown | {name: part(tables) for name, part in self.equal.items()}


def closing(events: list[Event], topics: list[str], ahead: int) -> list[Event]:
    """The last event of every key again, later; topics one after the other, so that no order is left to chance."""
    end = max(event.timestamp for event in events) + ahead
    last = {(event.topic, event.key): event for event in events}
    later = [event._replace(timestamp=end + topics.index(event.topic)) for event in last.values()]
    return sorted(later, key=lambda event: event.timestamp)


def in_the_driver(case: Case) -> Tables:
    """What a program comes to if each record is processed before the next one comes."""
    topology, events = case.topology(), case.events()
    with TopologyTestDriver(topology, {"emit.interval.ms": 0}) as driver:
        inputs = {topic: driver.input_topic(topic, *serdes) for topic, serdes in case.inputs().items()}
        for topic, key, value, timestamp, headers in events:
            inputs[topic].pipe(key, value, timestamp=timestamp, headers=headers)
        produced = driver.produced_topics  # a form of an example need not write all of its topics
        tables = {
            topic: folded(driver.output_topic(topic, *serdes).read_records() if topic in produced else ())
            for topic, serdes in case.results().items()
        }
        return tables | stores(topology, driver.store, events)


def on_spark(case: Case, partitions: int, folder: Path) -> Tables:
    """What it comes to on Spark, with so many partitions of every topic, all records being there from the start."""
    topology, events, log = case.topology(), case.events(), f"file:{folder}/log"
    write(log, case.inputs(), case.results(), events, partitions)
    with application(case.example.APPLICATION, topology, log, folder) as app:
        app.drain(PATIENCE_MS)
        kept = stores(topology, app.store, events)
    return {topic: folded(read(log, topic, case.results())) for topic in case.results()} | kept


def application(name: str, topology: Topology, log: str, folder: Path) -> Application:
    state = str(folder / "state")
    return Application(name, topology, log, checkpoint=str(folder / name), config=SETTINGS, state_dir=state)


def write(log: str, inputs: Topics, outputs: Iterable[str], events: Iterable[Event], partitions: int) -> None:
    """Makes the topics, and writes the events to them in their order."""
    with Admin(log) as admin:
        for topic in {*inputs, *outputs}:
            admin.create_topic(topic, partitions=partitions)
    with Producer(log) as producer:
        for topic, key, value, timestamp, headers in events:
            key_serde, value_serde = inputs[topic]
            raw_key = None if key is None else key_serde.encode(key)
            producer.send(topic, raw_key, value, value_serde=value_serde, timestamp=timestamp, headers=headers)


def read(log: str, topic: str, topics: Topics) -> list[Record]:
    """All records of a topic; those of a key are in their order."""
    key, value = topics[topic]
    with Consumer(log, key=key, value=value, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(topic)
        polls = iter(consumer.poll, [])
        return [Record(*record[3:6]) for records in polls for record in records]


def folded(records: Iterable[Record]) -> Table:
    """The last value of every key, with its timestamp; keys whose last value is None are not there."""
    last = {record.key: ValueAndTimestamp(record.value, record.timestamp) for record in records}
    return {key: row for key, row in last.items() if row.value is not None}


def values(table: Table) -> Table:
    """A table without timestamps."""
    return {key: row.value if isinstance(row, ValueAndTimestamp) else row for key, row in table.items()}


def stores(topology: Topology, store: Callable[[str], Any], events: Iterable[Event]) -> Tables:
    """What can be queried; of a versioned store, the latest version of every key that there was an event of."""
    found: Tables = {}
    for name, spec in topology.graph().stores.items():
        if isinstance(spec.kind, VersionedKind):
            found[f"store {name}"] = {key: store(name).get(key) for key in dict.fromkeys(event.key for event in events)}
        elif not isinstance(spec.kind, BufferKind | SubscriptionKind):
            found[f"store {name}"] = dict(store(name).all())
    return found
