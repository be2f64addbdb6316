"""Work beside the batches: in order, bounded, and heard of when it fails."""

import threading
from contextlib import suppress

import pytest

from headrace.model.threads import SerialExecutor, SystemThreads


def test_without_room_work_is_done_at_once():
    executor, done = SerialExecutor("x", 0), []
    executor.submit(lambda: done.append(1))
    assert done == [1]
    with pytest.raises(ZeroDivisionError):
        executor.submit(lambda: 1 / 0)
    executor.drain()
    executor.stop()


def test_work_is_done_in_its_order():
    executor, done = SerialExecutor("x", 3), []
    for number in range(50):
        executor.submit(lambda number=number: done.append(number))
    executor.drain()
    assert done == list(range(50))
    assert executor.is_idle
    executor.stop()


def test_a_caller_that_submits_too_much_has_to_wait():
    executor, go, handed = SerialExecutor("x", 2), threading.Event(), []

    def hand_over():
        for number in range(3):
            executor.submit(go.wait)
            handed.append(number)

    thread = threading.Thread(target=hand_over)
    thread.start()
    while len(handed) < 2:
        thread.join(0.01)
    thread.join(0.1)  # the third one has to wait
    assert handed == [0, 1]
    assert not executor.is_idle
    go.set()
    thread.join()
    executor.drain()
    assert handed == [0, 1, 2]
    executor.stop()


def test_after_a_failure_nothing_more_is_done():
    executor, done = SerialExecutor("x", 5), []
    with suppress(ZeroDivisionError):  # if the executor's thread was quicker
        executor.submit(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        executor.drain()
    for call in (executor.check, executor.drain, lambda: executor.submit(lambda: done.append(1))):
        with pytest.raises(ZeroDivisionError):
            call()
    executor.stop()
    assert done == []


def test_what_waits_when_it_is_stopped_is_not_done():
    executor, begun, go, done = SerialExecutor("x", 5), threading.Event(), threading.Event(), []
    executor.submit(lambda: begun.set() or (go.wait() and done.append("under way")))
    executor.submit(lambda: done.append("waiting"))
    begun.wait()
    threading.Timer(0.05, go.set).start()
    executor.stop()
    assert done == ["under way"]


class ClockedThreads(SystemThreads):
    """Real threads, and a clock that the test moves."""

    now = 100.0

    def seconds(self):
        return self.now


class Call:
    """A call that runs until it is told to end."""

    def __init__(self):
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self):
        self.has_begun.set()
        self.may_end.wait()


def test_the_next_call_is_prepared_so_that_it_is_ready_when_the_running_one_ends():
    threads = ClockedThreads()
    executor, first, second, third = SerialExecutor("x", 2, threads), Call(), Call(), Call()
    assert executor.estimate_wait(3.0) == 0.0
    executor.submit(first)
    first.has_begun.wait()
    threads.now += 10.0
    assert executor.estimate_wait(3.0) == 0.0, "it is not known yet how long a call takes"
    first.may_end.set()
    executor.drain()
    assert executor.estimate_wait(3.0) == 0.0, "nothing runs"

    executor.submit(second)
    second.has_begun.wait()
    threads.now += 4.0
    assert executor.estimate_wait(1.0) == 5.0
    assert executor.estimate_wait(7.0) == 0.0
    executor.submit(third)
    assert executor.estimate_wait(7.0) == 16.0, "the queue has a call: the next one need not be prepared"
    threads.now += 60.0
    assert executor.estimate_wait(7.0) == 10.0, "the running call takes longer than expected"
    second.may_end.set()
    third.may_end.set()
    executor.drain()
    executor.stop()
