"""What goes through the driver: orders and receipts, whose size does not depend on the number of records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace import Application
from headrace.query.status import Traffic
from headrace.spark.transport import TrafficCounter
from tests.spark.places import PATIENCE_MS, Place, counting, wait_for

pytestmark = pytest.mark.spark


def test_a_counter_has_frames_and_bytes_of_both_directions():
    counter = TrafficCounter()
    counter.add_sent(5)
    counter.add_sent(2)
    counter.add_received([bytearray(b"abc")])
    assert counter.total == (2, 7, 1, 3)


def await_pause(app: Application) -> None:
    """Waits until the thread of the batches has seen that the application is paused: it may be planning a batch."""
    engine: Any = app._running()._engine
    for _ in range(3):
        engine._wake()
        wait_for(app, engine._events.empty)


def traffic_of(app: Application, place: Place, lines: int) -> Traffic:
    """Of so many lines in one batch; heartbeats, which come with time, are small."""
    app.pause()
    await_pause(app)
    place.send("lines", *(f"word{n} word{n % 700} common" for n in range(lines)))
    before, batches = app.report().traffic, app.report().batches
    app.resume()
    app.drain(PATIENCE_MS)
    report = app.report()
    assert report.batches - batches <= 2  # a second one where stream time moves on
    return Traffic(*(late - early for late, early in zip(report.traffic, before, strict=True)))


def test_a_batch_of_20_times_the_records_sends_no_more_through_the_driver(tmp_path: Path):
    place = Place(tmp_path)
    place.create("lines", "counts", partitions=2)
    with place.app(counting(), receipt_max_bytes=0) as app:
        traffic_of(app, place, 500)  # starts the slots, and restores nothing
        small, large = traffic_of(app, place, 500), traffic_of(app, place, 10_000)
    assert small.frames_sent + small.frames_received > 3
    assert large.frames_sent + large.frames_received < 2 * (small.frames_sent + small.frames_received) + 20
    assert large.bytes_sent + large.bytes_received < 1.5 * (small.bytes_sent + small.bytes_received) + 2000
