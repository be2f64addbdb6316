"""Local copies of state: who holds which, which one is taken, and which are removed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from headrace.checkpoint import local_copies
from headrace.checkpoint.local_copies import LocalCopies
from headrace.directories import check_folder
from headrace.errors import InvalidStateStoreError, UnsafePathError
from headrace.model.ids import TaskId
from headrace.state.engine import Version
from tests.other_users import PRIVATE, give_away, modes

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


def test_a_copy_that_its_holder_removes_while_another_process_looks_is_not_missed(place, tmp_path, monkeypatch):
    first, second = place(), place()
    write(first, 3)

    def check_a_moment_later(folder: Path) -> None:
        if folder == tmp_path / "0_1":
            shutil.rmtree(folder)  # it was of another checkpoint, and its holder begins anew
        check_folder(folder)

    monkeypatch.setattr(local_copies, "check_folder", check_a_moment_later)
    assert second.open(TASK).directory == tmp_path / "0_1.1"


def test_patience_ends(place, tmp_path):
    stays, coming = place(), place()
    write(stays, 3)
    assert coming.open(TASK, others=0, patience=0.1).directory == tmp_path / "0_1.1"


HOLDER = """
import sys
from headrace.checkpoint import local_copies
from headrace.checkpoint.local_copies import LocalCopies
from headrace.directories import check_folder
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


# -------------------------------------------------------------------------------------------------------- other users
def test_local_state_is_for_its_owner_alone(tmp_path):
    before = os.umask(0)
    try:
        for locks in (True, False):
            copies = LocalCopies(tmp_path / "state" / "app", "c0ffee", locks=locks)
            write(copies, 3)
            copies.list_free()
            copies.close()
            assert modes(tmp_path / "state") == PRIVATE
            shutil.rmtree(tmp_path / "state")
    finally:
        os.umask(before)


def test_state_that_an_earlier_version_made_goes_on(place, tmp_path):
    first = place()
    folder = write(first, 3)
    first.close()
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    second = place()
    assert second.open(TASK).directory == folder
    assert second.open(TASK).open().version == Version(3, "won")


@pytest.mark.parametrize("locks", [True, False])
@pytest.mark.parametrize("which", ["state", "state/app", "state/app/0_1"])
def test_state_that_another_user_put_there_is_neither_used_nor_deleted(tmp_path, monkeypatch, which, locks):
    """The state is right in every byte, so that without the check it would be used."""
    forged = LocalCopies(tmp_path / "state" / "app", "c0ffee", locks=locks)
    write(forged, 3)
    forged.close()
    (tmp_path / "state").chmod(0o1777)
    give_away(tmp_path / which, monkeypatch)
    copies = LocalCopies(tmp_path / "state" / "app", "c0ffee", locks=locks)
    with pytest.raises(UnsafePathError, match="belongs to"):
        copies.open(TASK).open()
    with pytest.raises(UnsafePathError, match="belongs to"):
        copies.remove_unused(0, time.time() + DAY)
    assert (tmp_path / "state" / "app" / "0_1" / "data.mdb").exists()


@pytest.mark.parametrize("locks", [True, False])
@pytest.mark.parametrize("which", ["app", "app/0_1", "app/0_1/data.mdb", "app/0_1/lock.mdb", "app/0_1/task"])
def test_links_in_the_state_are_refused_and_what_they_lead_to_is_left_alone(tmp_path, which, locks):
    state, moved = tmp_path / "state", tmp_path / "moved"
    first = LocalCopies(state / "app", "c0ffee", locks=locks)
    write(first, 3)
    first.close()
    (state / which).rename(moved)
    (state / which).symlink_to(moved)
    before = {path: path.stat().st_mtime_ns for path in (moved, *moved.rglob("*"))}
    copies = LocalCopies(state / "app", "c0ffee", locks=locks)
    with pytest.raises(UnsafePathError, match=f"{which} is a symbolic link where a"):
        copies.open(TASK).open()
    copies.close()
    assert {path: path.stat().st_mtime_ns for path in (moved, *moved.rglob("*"))} == before


@pytest.mark.parametrize("name", ["lock", "0_1.lock"])
def test_a_lock_file_that_is_a_link_is_refused(place, tmp_path, name):
    (tmp_path / name).symlink_to(tmp_path / "created")
    with pytest.raises(UnsafePathError, match=f"{name} is a symbolic link"):
        place().open(TASK)
    assert not (tmp_path / "created").exists()


def test_state_that_cannot_be_created_says_what_to_set():
    with pytest.raises(InvalidStateStoreError, match=r"/proc/state/app cannot be used: .*Set state.dir to a directory"):
        LocalCopies("/proc/state/app", "c0ffee").open(TASK)
