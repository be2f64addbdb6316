"""Slot processes: all workers of a host use the same process of a slot, and a process that has died is replaced."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import StreamsError
from headrace.spark.slot_process import Handler, SlotProcesses

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="slot processes are forked")


def handler() -> Handler:
    """Answers with its process id and the number of its requests; "die" kills the process, "fail" raises an error."""
    asked = 0

    def handle(orders: bytes, rows):
        nonlocal asked
        asked += 1
        if orders == b"die":
            os.kill(os.getpid(), signal.SIGKILL)
        if orders == b"fail":
            raise ValueError("not today")
        return [(asked, str(os.getpid()).encode()), *((0, row) for row in rows)]

    return handle


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "job"
    file.touch()
    yield file
    file.unlink(missing_ok=True)  # which ends the slot processes


def slot_processes(job: Path) -> SlotProcesses:
    return SlotProcesses(str(job), job.exists, handler)


def test_all_workers_use_the_same_process_of_a_slot(job: Path):
    first, second = slot_processes(job).ask(0, b"hello", []), slot_processes(job).ask(0, b"hello", [b"row"])
    assert [count for count, _ in (first[0], second[0])] == [1, 2]
    assert first[0][1] == second[0][1] != str(os.getpid()).encode()
    assert second[1:] == [(0, b"row")]


def test_every_slot_has_a_process_of_its_own(job: Path):
    assert slot_processes(job).ask(0, b"hello", [])[0][1] != slot_processes(job).ask(1, b"hello", [])[0][1]


def test_large_messages_arrive_whole(job: Path):
    row = os.urandom(5_000_000)
    assert slot_processes(job).ask(0, b"hello", [row])[1] == (0, row)


def test_an_error_in_the_process_is_raised_in_the_worker_and_the_process_stays(job: Path):
    slot_processes(job).ask(0, b"hello", [])
    with pytest.raises(StreamsError, match="not today"):
        slot_processes(job).ask(0, b"fail", [])
    assert slot_processes(job).ask(0, b"hello", [])[0][0] == 3


def test_a_process_that_was_killed_is_replaced(job: Path):
    ((_, process),) = slot_processes(job).ask(0, b"hello", [])
    os.kill(int(process), signal.SIGKILL)
    ((count, other),) = slot_processes(job).ask(0, b"hello", [])
    assert (count, other != process) == (1, True)


def test_a_task_that_kills_its_process_three_times_fails(job: Path):
    with pytest.raises(StreamsError, match="died 3 times in one batch"):
        slot_processes(job).ask(0, b"die", [])
