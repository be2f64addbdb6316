"""Task ids, and clocks."""

import time

import pytest

from headrace.model.clock import SystemClock
from headrace.model.ids import TaskId, TopicPartition
from tests.clocks import ManualClock


def test_a_task_id_is_written_as_kafka_streams_writes_it():
    assert str(TaskId(3, 12)) == "3_12"
    assert TaskId.parse("3_12") == TaskId(3, 12)
    assert sorted([TaskId(1, 0), TaskId(0, 10), TaskId(0, 2)]) == [(0, 2), (0, 10), (1, 0)]
    assert str(TopicPartition("a-b", 0)) == "a-b-0"


@pytest.mark.parametrize("text", ["", "0", "0_", "_1", "a_b", "0_1_2", "-1_0"])
def test_what_is_no_task_id_is_refused(text):
    with pytest.raises(ValueError, match="a task id looks like 0_1"):
        TaskId.parse(text)


def test_a_manual_clock_moves_when_it_is_moved():
    clock = ManualClock(5)
    assert clock.now() == clock.now() == 5
    clock.advance(10)
    assert clock.now() == 15
    clock.set(3)
    assert clock.now() == 3
    with pytest.raises(ValueError, match="at least 0 ms"):
        clock.advance(-1)


def test_the_system_clock_is_the_machines():
    before = time.time_ns() // 1_000_000
    assert before <= SystemClock().now() <= time.time_ns() // 1_000_000
