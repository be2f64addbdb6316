"""The watch for calls that take too long looks at the frames of a task, and keeps none of them afterwards."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator

import pytest

from headrace.model.ids import TaskId
from headrace.model.record import Headers
from headrace.runtime.environment import CurrentRecord
from headrace.runtime.failures import Failures, Handlers
from headrace.spark.record_watch import CallTimeout

PATIENCE = 30.0  # seconds


class Batch:
    """The records and results of a task, which are in variables of its frames."""


@pytest.fixture
def timeout() -> Iterator[CallTimeout]:
    timeout = CallTimeout(1.0, lambda place, reason: None)
    gc.disable()  # a batch that only the garbage collector frees is memory for a long time
    yield timeout
    gc.enable()
    timeout.close()


def run_task(timeout: CallTimeout) -> weakref.ref[Batch]:
    """Runs a task whose call is seen by the watch. Returns a reference to its batch."""
    batch = Batch()
    failures = Failures(Handlers("continue", "continue"), TaskId(0, 0), CurrentRecord(), [], lambda *drop, **how: None)

    def wait_for_a_look(key: str, value: str, timestamp: int, headers: Headers) -> None:
        until = time.monotonic() + PATIENCE
        while timeout._call is None:
            assert time.monotonic() < until, "nobody looked at the call"

    failures.guard("node", wait_for_a_look)("key", "value", 0, ())
    return weakref.ref(batch)


def test_the_batch_of_a_task_that_has_ended_is_freed(timeout: CallTimeout):
    for _ in range(3):
        batch = run_task(timeout)
        timeout.forget()
        until = time.monotonic() + PATIENCE
        while batch() is not None:  # the watch may be just looking
            assert time.monotonic() < until, gc.get_referrers(batch())
