"""A clock that jumps in both directions while an application runs changes no result."""

from __future__ import annotations

from datetime import timedelta
from itertools import cycle
from pathlib import Path

import pytest

from headrace import Consumer, StreamsBuilder, TimeWindows, Topology, serde
from headrace.model.clock import SystemClock
from tests.expected import driver_rows, values_by_key
from tests.spark.places import PATIENCE_MS, Place

pytestmark = pytest.mark.spark
HOUR = 3_600_000  # ms
JUMPS = [0, HOUR, -HOUR, 24 * HOUR, -24 * HOUR, 500, -500]


def counting_in_windows() -> Topology:
    builder = StreamsBuilder()
    words = builder.stream("in", key=serde.STRING, value=serde.STRING).group_by_key()
    windows = TimeWindows.of(timedelta(milliseconds=100), grace=timedelta(milliseconds=50))
    counts = words.windowed_by(windows).count(store="counts")
    counts.to_stream().map(lambda key, count: (key.key, f"{key.window.start} {count}")).to(
        "out", key=serde.STRING, value=serde.STRING
    )
    return builder.build()


def test_a_clock_of_the_driver_that_jumps_changes_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The driver's clock is the one of every batch and of the lease. It jumps at every look."""
    place, jumps, now = Place(tmp_path), cycle(JUMPS), SystemClock.now
    place.create("in", "out")
    looks = list[int]()

    def jump(self: SystemClock) -> int:
        looks.append(next(jumps))
        return now(self) + looks[-1]

    monkeypatch.setattr(SystemClock, "now", jump)
    sent: list[tuple[str, bytes | None, bytes | None, int]] = []
    with place.app(counting_in_windows(), statestore_cache_max_bytes=0) as app:
        for round in range(6):
            for key, times in {"a": (40, 90, 130), "b": (10, 60, -200)}.items():
                at = [1_000 + 120 * round + time for time in times]
                place.send_at("in", key, *at)
                sent += [("in", key.encode(), key.encode(), time) for time in at]
            app.drain(timeout=PATIENCE_MS)
    assert {*JUMPS} <= {*looks}
    with Consumer(place.log, key=serde.BYTES, value=serde.BYTES, auto_offset_reset="earliest") as consumer:
        consumer.subscribe("out")
        found = [(record.key, record.value) for record in consumer.poll(1000)]
    config = {"application.id": place.name, "statestore.cache.max.bytes": 0}
    expected = driver_rows(counting_in_windows(), sent, ["out"], config)["out"]
    assert values_by_key(found) == values_by_key(expected)
