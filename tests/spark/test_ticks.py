"""What the clock does while no record comes."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import (
    EmitStrategy,
    JoinWindows,
    Punctuation,
    Record,
    StreamsBuilder,
    TimeWindows,
    serde,
)
from headrace.topology.processor import ProcessorContext
from tests.spark.places import Place, wait_for

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True, params=["real-time", "micro-batch"])
def trigger(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with both triggers."""
    monkeypatch.setenv("HEADRACE_PROCESSING_TRIGGER", request.param)


class Clock:
    """Emits at every tick of the wall clock, three times."""

    def init(self, context: ProcessorContext) -> None:
        self.context, self.ticks = context, 0
        self.schedule = context.schedule(10, Punctuation.WALL_CLOCK, self.tick)

    def process(self, record: Record) -> None:
        pass

    def tick(self, timestamp: int) -> None:
        self.ticks += 1
        self.context.forward(Record("tick", str(self.ticks), timestamp))
        if self.ticks == 3:
            self.schedule.cancel()


def test_schedules_on_the_wall_clock_fire_though_there_never_was_a_record(tmp_path: Path):
    place, builder = Place(tmp_path), StreamsBuilder()
    builder.stream("in").process(Clock).to("out", key=serde.STRING, value=serde.STRING)
    with place.app(builder.build()) as app:
        wait_for(app, lambda: place.read("out") == ["1", "2", "3"])


def test_windows_that_close_within_the_interval_come_out_by_the_clock(tmp_path: Path):
    #  [0 a 100) [100 b 200) [200 c   one batch, one look: the first record looks, the others come too early for another
    place, builder = Place(tmp_path), StreamsBuilder()
    windowed = builder.stream("in", key=serde.STRING, value=serde.STRING).group_by_key()
    windowed = windowed.windowed_by(TimeWindows.of(100)).emit_strategy(EmitStrategy.ON_WINDOW_CLOSE)
    counts = windowed.count().to_stream(lambda key, count: key.key)
    counts.map_values(str).to("out", key=serde.STRING, value=serde.STRING)
    place.create("in", "out")
    place.send_at("in", "a", 0, 1, 100, 101, 102, 200)
    with place.app(builder.build()) as app:
        wait_for(app, lambda: place.read("out") == ["2", "3"])


def test_records_without_a_partner_come_out_by_the_clock(tmp_path: Path):
    place, builder = Place(tmp_path), StreamsBuilder()
    left = builder.stream("left", key=serde.STRING, value=serde.STRING)
    right = builder.stream("right", key=serde.STRING, value=serde.STRING)
    joined = left.left_join(right, lambda a, b: f"{a} {b}", windows=JoinWindows.of(10))
    joined.to("out", value=serde.STRING)
    place.create("left", "right", "out")
    place.send_at("left", "a", 0, 100, 200)
    with place.app(builder.build()) as app:
        wait_for(app, lambda: place.read("out") == ["a None", "a None"])
