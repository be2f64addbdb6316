"""Local copies of state: who holds which, which one is taken, and which are removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.checkpoint.local_copies import LocalCopies
from headrace.model.ids import TaskId
from headrace.state.engine import Version

TASK, OTHER = TaskId(0, 1), TaskId(1, 0)
DAY = 86_400.0


@pytest.fixture
def place(tmp_path):
    opened = []

    def open_copies(checkpoint: str = "c0ffee") -> LocalCopies:
        opened.append(LocalCopies(tmp_path, checkpoint))
        return opened[-1]

    yield open_copies
    for copies in opened:
        copies.close()


def write(copies: LocalCopies, number: int, task: TaskId = TASK) -> Path:
    provider = copies.open(task)
    provider.open().commit([(b"key", b"%d" % number)], Version(number, "won"))
    return provider.directory


def test_two_processes_never_hold_one_copy(place, tmp_path):
    first, second = place(), place()
    assert write(first, 3) == tmp_path / "0_1"
    assert write(second, 4) == tmp_path / "0_1.1"
    assert first.open(TASK).open().version == Version(3, "won")


def test_the_latest_free_copy_is_taken(place, tmp_path):
    first, second, third = place(), place(), place()
    for copies, number in ((first, 3), (second, 7), (third, 5)):
        write(copies, number)
    first.close()
    second.close()
    assert place().list_free() == {TASK: 7}
    assert place().open(TASK).directory == tmp_path / "0_1.1"
    assert place().open(TASK).directory == tmp_path / "0_1"
    assert place().open(TASK).directory == tmp_path / "0_1.3"


def test_a_copy_of_another_checkpoint_counts_as_empty(place, tmp_path):
    before, after = place("other"), place()
    write(before, 9)
    before.close()
    assert after.list_free() == {}
    assert after.open(TASK).open().version is None


def test_a_copy_that_is_about_to_be_released_is_waited_for(place, tmp_path):
    leaving, coming = place(), place()
    write(leaving, 3)
    begun = threading.Event()

    def leave() -> None:
        begun.wait(10)
        leaving.release(TASK)

    thread = threading.Thread(target=leave)
    thread.start()
    begun.set()
    assert coming.open(TASK, others=0, patience=10).directory == tmp_path / "0_1"
    thread.join()


def test_a_standby_of_the_same_host_is_not_waited_for(place, tmp_path):
    standby, coming = place(), place()
    write(standby, 3)
    assert coming.open(TASK, others=1, patience=60).directory == tmp_path / "0_1.1"


def test_patience_ends(place, tmp_path):
    stays, coming = place(), place()
    write(stays, 3)
    assert coming.open(TASK, others=0, patience=0.1).directory == tmp_path / "0_1.1"


HOLDER = """
import sys
from headrace.checkpoint.local_copies import LocalCopies
from headrace.model.ids import TaskId
from headrace.state.engine import Version
copies = LocalCopies(sys.argv[1], "c0ffee")
copies.open(TaskId(0, 1)).open().commit([(b"key", b"3")], Version(3, "won"))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_killed_process_leaves_its_copy_to_the_next_one(place, tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert place().list_free() == {}
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    copies = place()
    assert copies.list_free() == {TASK: 3}
    assert copies.open(TASK).open().version == Version(3, "won")


def test_copies_that_nothing_holds_are_removed_after_a_while(place, tmp_path):
    holder, before = place(), place()
    held = write(holder, 3)
    moved = write(before, 3, OTHER)
    before.close()
    (tmp_path / "queries").mkdir()
    used = (moved / "data.mdb").stat().st_mtime
    assert holder.remove_unused(DAY, used + DAY - 60) == []
    assert holder.remove_unused(DAY, used + DAY + 60) == ["1_0"]
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {held.name, "queries"}
    assert holder.open(TASK).open().version == Version(3, "won")


def test_a_copy_counts_as_used_until_it_is_released(place, tmp_path):
    copies = place()
    folder = write(copies, 3)
    for file in (folder, *folder.iterdir()):
        os.utime(file, (1, 1))
    copies.release(TASK)
    assert copies.remove_unused(DAY, folder.stat().st_mtime + 60) == []
