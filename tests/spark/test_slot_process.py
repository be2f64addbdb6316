"""The home of a slot: one process, whoever asks; a new one when it is gone."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import StreamsError
from headrace.spark.slot_process import Handler, SlotProcesses

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="homes are forked")


def handler() -> Handler:
    """Answers with its process and how often it was asked; "die" kills it, anything else that is not a word fails."""
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
    file.unlink(missing_ok=True)  # which ends the homes


def homes(job: Path) -> SlotProcesses:
    return SlotProcesses(str(job), job.exists, handler)


def test_a_slot_is_at_home_in_one_process_whoever_asks(job: Path):
    first, second = homes(job).ask(0, b"hello", []), homes(job).ask(0, b"hello", [b"row"])
    assert [count for count, _ in (first[0], second[0])] == [1, 2]
    assert first[0][1] == second[0][1] != str(os.getpid()).encode()
    assert second[1:] == [(0, b"row")]


def test_every_slot_has_a_home_of_its_own(job: Path):
    assert homes(job).ask(0, b"hello", [])[0][1] != homes(job).ask(1, b"hello", [])[0][1]


def test_large_messages_arrive_whole(job: Path):
    row = os.urandom(5_000_000)
    assert homes(job).ask(0, b"hello", [row])[1] == (0, row)


def test_what_fails_there_is_raised_here_and_the_home_stays(job: Path):
    homes(job).ask(0, b"hello", [])
    with pytest.raises(StreamsError, match="not today"):
        homes(job).ask(0, b"fail", [])
    assert homes(job).ask(0, b"hello", [])[0][0] == 3


def test_a_home_that_was_killed_is_replaced(job: Path):
    ((_, process),) = homes(job).ask(0, b"hello", [])
    os.kill(int(process), signal.SIGKILL)
    ((count, other),) = homes(job).ask(0, b"hello", [])
    assert (count, other != process) == (1, True)


def test_a_task_that_kills_its_home_again_and_again_is_given_up(job: Path):
    with pytest.raises(StreamsError, match="died 3 times in one batch"):
        homes(job).ask(0, b"die", [])
