"""Plays records to an example in the driver, with the serdes that the example says its topics have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from random import Random
from types import ModuleType
from typing import Any

from examples.events import Event
from headrace import Record, Topology, ValueAndTimestamp
from headrace.testing import TopologyTestDriver

AT_ONCE = {"emit.interval.ms": 0}  # what a closed window or an unmatched record gives does not wait for the clock


class Play(TopologyTestDriver):
    """The driver of an example."""

    def __init__(
        self, example: ModuleType, topology: Topology | None = None, config: Mapping[str, Any] = AT_ONCE
    ) -> None:
        super().__init__(topology or example.build(), config)
        self.inputs = {topic: self.input_topic(topic, *serdes) for topic, serdes in example.TOPICS.items()}
        self.outputs = {topic: self.output_topic(topic, *serdes) for topic, serdes in example.OUTPUTS.items()}

    def pipe(self, topic: str, *records: tuple[Any, Any, int]) -> None:
        """Pipes (key, value, timestamp)s."""
        for key, value, timestamp in records:
            self.inputs[topic].pipe(key, value, timestamp=timestamp)

    def pipe_events(self, events: Iterable[Event]) -> None:
        for event in events:
            self.inputs[event.topic].pipe(event.key, event.value, timestamp=event.timestamp, headers=event.headers)

    def records(self, topic: str) -> list[Record]:
        return self.outputs[topic].read_records()

    def pairs(self, topic: str) -> list[tuple[Any, Any]]:
        return self.outputs[topic].read_key_values()

    def table(self, topic: str) -> dict[Any, Any]:
        return self.outputs[topic].read_table()

    def stored(self, store: str) -> dict[Any, Any]:
        """The contents of a store, without timestamps."""
        rows = self.store(store).all()
        return {key: value.value if isinstance(value, ValueAndTimestamp) else value for key, value in rows}

    @property
    def dropped(self) -> int:
        return self.metrics()["dropped-records-total"]


def generated(example: ModuleType, count: int = 2_000, seed: int = 7) -> list[Event]:
    """The first events that an example's generator makes of a seed."""
    return list(islice(example.events(Random(seed)), count))  # noqa: S311 - not for secrets


def of_topic(events: Iterable[Event], topic: str) -> list[Event]:
    return [event for event in events if event.topic == topic]
