"""The recorder: what the dashboard's charts show."""

import threading
from dataclasses import replace

from headrace.query import Follower
from headrace.query.history import BatchLatency
from headrace.web import ApplicationView
from headrace.web.recorder import KEPT, OLD, Recorder
from tests.clocks import ManualClock
from tests.query.programs import every_kind, feed, finished
from tests.web.servers import FakeApplication, ends

SOURCE, SINK = "KSTREAM-SOURCE-0000000000", "KSTREAM-SINK-0000000008"
PHASES = {"plan": 2.0, "run": 20.0, "commit": 4.0, "deliver": 10.0}


def recorder_of(application=None):
    cluster, clock = finished(limit=3), ManualClock(10_000)
    follower = Follower(cluster.storage, every_kind(), cluster.config, clock=clock)
    follower.refresh()
    view = ApplicationView(follower=follower, application=application, topology=every_kind().describe(), clock=clock)
    return Recorder(view, 1.0, threading.Event()), cluster, clock


def test_headline_nodes_edges_and_points_have_the_same_rates():
    application = FakeApplication()
    recorder, _, clock = recorder_of(application)
    for count in (0, 100, 300):
        application.reported = replace(
            application.reported,
            read={"lines": count},
            sent={"out": 2 * count},
            nodes={SOURCE: count, SINK: 2 * count},
            edges={(SOURCE, "next"): count},
        )
        recorder.record()
        clock.advance(1000)
    rates = recorder.rates.to_json()
    assert rates == {
        "read": 150.0, "written": 300.0, "nodes": {SOURCE: 150.0, SINK: 300.0}, "edges": [[SOURCE, "next", 150.0]],
    }  # fmt: skip
    assert [(point["read"], point["written"]) for point in recorder.points_after(0)] == [
        (None, None), (100.0, 200.0), (150.0, 300.0),
    ]  # fmt: skip
    assert len(recorder.points_after(11_000)) == 1


def test_rates_begin_anew_when_counts_do():
    application = FakeApplication(read={"lines": 1000})
    recorder, _, clock = recorder_of(application)
    for count in (1000, 5, 15):
        application.reported = replace(application.reported, read={"lines": count})
        recorder.record()
        clock.advance(1000)
    assert recorder.rates.read == 10.0


def test_an_application_in_another_process_has_the_rates_of_its_positions():
    recorder, cluster, clock = recorder_of()
    recorder.record()
    feed(cluster.log, [("new", "x")] * 6)
    cluster.run()
    recorder._view.follower.refresh()
    clock.advance(2000)
    recorder.record()
    assert recorder.rates.read == 6.0  # of both topics
    assert recorder.rates.nodes[SOURCE] == 3.0
    assert recorder.rates.written is None


def test_latency_and_lag_of_the_batches_since_the_last_point():
    application = FakeApplication()
    recorder, cluster, clock = recorder_of(application)
    behind = {at: end + 2 for at, end in ends(cluster).items()}
    for numbers in (range(3), range(5), range(5)):
        application.reported = replace(
            application.reported,
            ends=behind,
            phases=dict.fromkeys(numbers, PHASES),
            latencies={number: BatchLatency(5, 31, 50 + number) for number in numbers},
        )
        recorder.record()
        clock.advance(1000)
    points = recorder.points_after(0)
    assert [(point["p50"], point["p99"], point["lag"]) for point in points] == [
        (41, 62, 12),
        (41, 64, 12),
        (None, None, 12),
    ]
    assert points[0]["parts"] == {"wait": 5, "plan": 2, "run": 20, "commit": 4, "deliver": 10}
    assert points[2]["parts"] == {}


def test_old_timestamps_do_not_count_as_a_wait():
    application = FakeApplication(phases={1: PHASES}, latencies={1: BatchLatency(OLD * 900, OLD * 900 + 26, OLD * 950)})
    recorder, *_ = recorder_of(application)
    recorder.record()
    [point] = recorder.points_after(0)
    assert (point["has_wait"], point["p50"], point["p99"]) == (False, 36, 36)
    assert "wait" not in point["parts"]


def test_the_oldest_points_are_forgotten():
    application = FakeApplication()
    recorder, _, clock = recorder_of(application)
    for _ in range(KEPT + 10):
        recorder.record()
        clock.advance(1000)
    assert len(recorder.points_after(0)) == KEPT
