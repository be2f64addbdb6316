"""Work beside the batches: in order, bounded, and heard of when it fails."""

import threading

import pytest

from headrace.checkpoint.serial_executor import SerialExecutor


def test_without_room_work_is_done_at_once():
    lane, done = SerialExecutor("x", 0), []
    lane.submit(lambda: done.append(1))
    assert done == [1]
    with pytest.raises(ZeroDivisionError):
        lane.submit(lambda: 1 / 0)
    lane.drain()
    lane.stop()


def test_work_is_done_in_its_order():
    lane, done = SerialExecutor("x", 3), []
    for number in range(50):
        lane.submit(lambda number=number: done.append(number))
    lane.drain()
    assert done == list(range(50))
    assert lane.idle
    lane.stop()


def test_whoever_hands_over_too_much_has_to_wait():
    lane, go, handed = SerialExecutor("x", 2), threading.Event(), []

    def hand_over():
        for number in range(3):
            lane.submit(go.wait)
            handed.append(number)

    thread = threading.Thread(target=hand_over)
    thread.start()
    thread.join(0.1)
    assert handed == [0, 1]
    assert not lane.idle
    go.set()
    thread.join()
    lane.drain()
    assert handed == [0, 1, 2]
    lane.stop()


def test_after_a_failure_nothing_more_is_done():
    lane, done = SerialExecutor("x", 5), []
    lane.submit(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        lane.drain()
    for call in (lane.check, lane.drain, lambda: lane.submit(lambda: done.append(1))):
        with pytest.raises(ZeroDivisionError):
            call()
    lane.stop()
    assert done == []


def test_what_waits_when_it_is_stopped_is_not_done():
    lane, begun, go, done = SerialExecutor("x", 5), threading.Event(), threading.Event(), []
    lane.submit(lambda: begun.set() or (go.wait() and done.append("under way")))
    lane.submit(lambda: done.append("waiting"))
    begun.wait()
    threading.Timer(0.05, go.set).start()
    lane.stop()
    assert done == ["under way"]
