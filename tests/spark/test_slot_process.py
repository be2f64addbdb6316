"""Slot processes: all workers of a host use the same process of a slot, and a process that has died is replaced."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from headrace.errors import StreamsError, UnsafePathError
from headrace.spark.slot_process import Handler, SlotProcesses, is_same_user, socket_folder
from tests.other_users import OTHER

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="slot processes are forked"),
]


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
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    file = tmp_path / "job"
    file.touch()
    with tempfile.TemporaryDirectory(prefix="headrace-") as short:  # paths of sockets are
        monkeypatch.setattr("tempfile.tempdir", short)
        yield file
        file.unlink(missing_ok=True)  # which ends the slot processes


def slot_processes(job: Path) -> SlotProcesses:
    return SlotProcesses(str(job), job, handler)


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


# ------------------------------------------------------------------------------------------------------------- sockets
def await_end(process: int) -> None:
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 30)[0], f"process {process} does not end"
    finally:
        os.close(descriptor)


def test_sockets_are_where_no_other_user_can_go_and_are_gone_after_the_job(job: Path):
    processes = [int(slot_processes(job).ask(slot, b"hello", [])[0][1]) for slot in (0, 1)]
    folder = socket_folder(str(job))
    assert {path.name for path in folder.iterdir()} == {"job", "slot-0", "slot-0.lock", "slot-1", "slot-1.lock"}
    for directory in (folder, folder.parent):
        assert (directory.stat().st_uid, directory.stat().st_mode & 0o777) == (os.geteuid(), 0o700)
    job.unlink()
    for process in processes:
        await_end(process)
    assert not folder.exists()


def test_sockets_of_processes_that_were_killed_are_removed_by_the_next_job(job: Path, tmp_path: Path):
    ((_, process),) = slot_processes(job).ask(0, b"hello", [])
    os.kill(int(process), signal.SIGKILL)
    await_end(int(process))
    job.unlink()
    assert socket_folder(str(job)).exists()
    other = tmp_path / "other"
    other.touch()
    slot_processes(other).ask(0, b"hello", [])
    assert not socket_folder(str(job)).exists()
    assert socket_folder(str(other)).exists()
    other.unlink()


def test_a_directory_that_another_user_could_have_made_is_not_used(job: Path, tmp_path: Path):
    (tmp_path / "theirs").mkdir()
    own = Path(tempfile.gettempdir()) / f"headrace-{os.geteuid()}"
    own.symlink_to(tmp_path / "theirs")  # the directory that it leads to is this user's own
    with pytest.raises(UnsafePathError, match="has to be a directory that only"):
        slot_processes(job).ask(0, b"hello", [])
    assert not list((tmp_path / "theirs").iterdir())
    own.unlink()
    own.mkdir()
    own.chmod(0o777)
    with pytest.raises(UnsafePathError, match="drwxrwxrwx"):
        slot_processes(job).ask(0, b"hello", [])
    assert not list(own.iterdir())


def test_a_temporary_directory_with_a_path_that_is_too_long_for_sockets_is_named(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / ("long" * 30)).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("long" * 30)))
    with pytest.raises(StreamsError, match="slot-0 is too long for a socket: set TMPDIR"):
        slot_processes(job).ask(0, b"hello", [])


def ask_as(user: int, path: Path) -> int:
    """Asks a slot process from a process of another user; returns how many bytes of an answer came."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.chdir(path.parent)  # what the parents of a directory allow does not matter to those who are in it
            os.setuid(user)
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(path.name)
                body = msgspec.msgpack.encode([b"hello"])
                connection.sendall(len(body).to_bytes(8, "big") + body)
                with suppress(ConnectionResetError):
                    os.write(write_end, connection.recv(8))
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as answer:
        found = len(answer.read())
    assert os.waitpid(child, 0)[1] == 0
    return found


def test_a_process_of_another_user_gets_no_answer(job: Path, monkeypatch: pytest.MonkeyPatch):
    slot_processes(job).ask(0, b"hello", [])
    path = socket_folder(str(job)) / "slot-0"
    assert ask_as(os.geteuid(), path) == 8
    if os.geteuid() == 0:  # only root can become another user
        path.parent.chmod(0o755)
        path.chmod(0o777)
        assert ask_as(OTHER, path) == 0
        assert slot_processes(job).ask(0, b"hello", [])[0][0] == 3  # the request of the other user was not handled
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert is_same_user(ours)
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)
        assert not is_same_user(ours)
