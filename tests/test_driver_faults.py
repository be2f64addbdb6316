"""`TopologyTestDriver(faults=seed)`: faults do not change the output, and state outside of stores is found."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from headrace import (
    Buffer,
    JoinWindows,
    Processor,
    ProcessorContext,
    Punctuation,
    Record,
    SessionWindows,
    Stores,
    StreamsBuilder,
    StreamsError,
    Suppressed,
    TimeWindows,
    Topology,
    ValueAndTimestamp,
    serde,
    timestamps,
)
from headrace.testing import TopologyTestDriver

pytestmark = pytest.mark.slow

SEEDS = range(int(os.environ.get("HEADRACE_FAULTS", "8")))
TEXT: dict[str, Any] = {"key": serde.STRING, "value": serde.STRING}


def count_words() -> Topology:
    builder = StreamsBuilder()
    words = builder.stream("in", **TEXT)
    counts = words.group_by(lambda key, word: word, **TEXT).count(store="counts")
    counts.to_stream().to("out", key=serde.STRING, value=serde.LONG)
    return builder.build()


def windows_and_sessions() -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream("in", **TEXT).group_by_key()
    windows = grouped.windowed_by(TimeWindows.of(10, grace=5)).count()
    final = windows.suppress(Suppressed.until_window_closes(Buffer.unbounded()))
    final.to_stream(lambda windowed, count: windowed.key).to("out", key=serde.STRING, value=serde.LONG)
    sessions = grouped.windowed_by(SessionWindows.of(7)).count(store="sessions")
    sessions.to_stream(lambda windowed, count: windowed.key).to("sessions", key=serde.STRING, value=serde.LONG)
    return builder.build()


def join_streams() -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", timestamp=timestamps.PARTITION_TIME, **TEXT)
    other = stream.map_values(str.upper)
    windows = JoinWindows.of(3)
    joined = stream.outer_join(other, lambda a, b: f"{a}{b}", windows=windows, other_value=serde.STRING, **TEXT)
    joined.to("out", **TEXT)
    return builder.build()


class LastInStore(Processor[str, str, str, str]):
    def init(self, context: ProcessorContext) -> None:
        self.context, self.last = context, context.store("last")
        context.schedule(10, Punctuation.STREAM_TIME, lambda at: context.forward(Record("tick", str(at), at)))

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record.with_value(f"{self.last.get(record.key)}→{record.value}"))
        self.last.put(record.key, record.value)


def remember_last(*, logging: bool = True) -> Topology:
    builder = StreamsBuilder()
    spec = Stores.key_value("last", **TEXT)
    builder.add_store(spec if logging else spec.without_logging())
    builder.stream("in", **TEXT).process(LastInStore, "last").to("out", **TEXT)
    return builder.build()


def run(topology: Topology, faults: int | None) -> tuple[dict[str, Any], dict[str, int], int]:
    """What comes out, what is dropped, and how many faults were injected."""
    chance = random.Random(5)  # noqa: S311
    times = [max(0, time + chance.randint(-4, 3)) for time in range(60)]
    records = [Record(chance.choice("abc"), chance.choice("xyz"), time) for time in times]
    with TopologyTestDriver(topology, faults=faults) as driver:
        given = driver.input_topic("in", **TEXT)
        given.pipe_all(records[:30])
        driver.advance_wall_clock(2_000)
        for record in records[30:]:
            given.pipe(record.key, record.value, timestamp=record.timestamp)
        outputs = {topic: driver.output_topic(topic).read_records() for topic in sorted(driver.produced_topics)}
        return outputs, driver.metrics(), driver.faults


@pytest.mark.parametrize("build", [count_words, windows_and_sessions, join_streams, remember_last])
def test_faults_do_not_change_what_comes_out(build: Callable[[], Topology]) -> None:
    expected, dropped, none = run(build(), None)
    assert none == 0
    assert len(expected["out"]) > 10
    injected = 0
    for seed in SEEDS:
        outputs, counted, faults = run(build(), seed)
        assert (outputs, counted) == (expected, dropped), f"seed {seed}"
        injected += faults
    assert injected > 10 * len(SEEDS)


def test_an_unlogged_store_is_not_lost() -> None:
    expected = run(remember_last(logging=False), None)[:2]
    assert all(run(remember_last(logging=False), seed)[:2] == expected for seed in SEEDS)


class CountInAttribute(Processor[str, str, str, str]):
    def init(self, context: ProcessorContext) -> None:
        self.context, self.seen = context, 0

    def process(self, record: Record[str, str]) -> None:
        self.seen += 1
        self.context.forward(record.with_value(str(self.seen)))


def test_a_processor_that_keeps_state_in_an_attribute_is_found() -> None:
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).process(CountInAttribute).to("out", **TEXT)
    for seed in SEEDS:
        with pytest.raises(AssertionError, match=r"faults=\d+: in at offset \d+.* ran twice.*Keep state in stores"):
            run(builder.build(), seed)


def test_a_random_function_is_found() -> None:
    builder = StreamsBuilder()
    chance = random.Random(1)  # noqa: S311
    builder.stream("in", **TEXT).map_values(lambda value: str(chance.random())).to("out", **TEXT)
    with pytest.raises(AssertionError, match="ran twice"):
        run(builder.build(), 1)


class CountIntoStore(Processor[str, str, str, str]):
    def init(self, context: ProcessorContext) -> None:
        self.store, self.seen = context.store("seen"), 0

    def process(self, record: Record[str, str]) -> None:
        self.seen += 1
        self.store.put(record.key, self.seen)


def test_a_store_that_gets_something_else_the_second_time_is_found() -> None:
    builder = StreamsBuilder()
    builder.add_store(Stores.key_value("seen", key=serde.STRING, value=serde.LONG))
    builder.stream("in", **TEXT).process(CountIntoStore, "seen").to("out")
    with pytest.raises(AssertionError, match="changed its stores in another way"):
        run(builder.build(), 2)


def test_records_before_one_that_fails_count() -> None:
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).map_values(lambda value: str(1 // int(value))).to("out", **TEXT)
    for seed in SEEDS:
        with TopologyTestDriver(builder.build(), faults=seed) as driver:
            with pytest.raises(StreamsError, match="offset 2: ZeroDivisionError"):
                driver.input_topic("in", **TEXT).pipe_all(["1", "1", "0", "1"])
            assert driver.output_topic("out", **TEXT).read_values() == ["1", "1"]


def test_what_a_test_puts_into_a_store_stays() -> None:
    for seed in SEEDS:
        with TopologyTestDriver(count_words(), faults=seed) as driver:
            store = driver.store("counts")
            for n in range(5):
                driver.input_topic("in", **TEXT).pipe("x")
                value, timestamp = store.get("x")
                assert value == 2 * n + 1
                store.put("x", ValueAndTimestamp(value + 1, timestamp))
            assert driver.store("counts").get("x").value == 10


def test_the_same_seed_injects_the_same_faults() -> None:
    assert run(count_words(), 7)[2] == run(count_words(), 7)[2] > 0
