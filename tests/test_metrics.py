"""Counters and gauges."""

from headrace.metrics import Metrics


def test_the_sum_of_dropped_records_is_there_from_the_start():
    assert Metrics().snapshot() == {"dropped-records-total": 0}


def test_records_are_dropped_for_reasons():
    metrics = Metrics()
    metrics.drop("late")
    metrics.drop("null key", 2)
    metrics.drop("late", 3)
    assert metrics.dropped == {"late": 4, "null key": 2}
    assert metrics.dropped_total == metrics.snapshot()["dropped-records-total"] == 6


def test_what_tasks_counted_is_added_up():
    one, other = Metrics(), Metrics()
    one.count("process-total", 2)
    one.gauge("stream-time", 5)
    other.count("process-total")
    other.gauge("stream-time", 9)
    other.drop("late")
    one.add(other)
    assert one.snapshot() == {
        "dropped-records-total": 1,
        "dropped-records-total{reason=late}": 1,
        "process-total": 3,
        "stream-time": 9,
    }
