"""Directories that are no logs, other versions, full disks, others at work, forks; and clear words for each."""

import os
import pickle
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import ConfigError, LogBusyError, LogCorruptedError, LogUnavailableError, UnsafePathError
from headrace.log import open_log
from headrace.log.embedded.database import Database, WriterLock
from headrace.log.embedded.file_log import FileLog
from headrace.log.protocol import Records
from tests.clocks import ManualClock
from tests.log.harness import NOW, A, file_log, records, values
from tests.other_users import PRIVATE, give_away, modes


def test_addresses(directory: Path):
    for address in (f"file:{directory}", f"file://{directory}"):
        log = open_log(address)
        assert isinstance(log, FileLog)
        assert log.directory == directory
        assert log.url == f"file:{directory}"
        log.close()
    for address in ("", "file:", "files:x", "kafka:localhost:9092", str(directory), "file://host/x"):
        with pytest.raises(ConfigError, match="file:DIRECTORY or kafka:"):
            open_log(address)


def test_a_directory_is_made(directory: Path):
    with FileLog(directory / "deep" / "down") as log:
        assert dict(log.topics()) == {}


def test_a_file_is_no_directory(directory: Path):
    (directory / "file").write_text("hello")
    with pytest.raises(LogUnavailableError, match="is a file: a log needs a directory"):
        FileLog(directory / "file")
    with pytest.raises(LogUnavailableError, match=r"cannot use .*/file/below for a log"):
        FileLog(directory / "file" / "below")


def test_a_directory_that_cannot_be_written():
    with pytest.raises(LogUnavailableError, match=r"cannot use /proc/headrace for a log: .*check its path"):
        FileLog("/proc/headrace")
    with pytest.raises(LogUnavailableError, match="cannot use /proc/self for a log"):
        FileLog("/proc/self")


def test_a_log_of_another_version_is_refused(directory: Path):
    FileLog(directory).close()
    sqlite3.connect(directory / "log.db").execute("PRAGMA user_version = 9").connection.close()
    with pytest.raises(LogUnavailableError, match="has format version 9, and this Headrace reads version 1: use the"):
        FileLog(directory)


def test_a_creation_that_was_cut_short_is_created_again(directory: Path):
    (directory / "lock").touch()
    (directory / "log.db").touch()
    with FileLog(directory) as log:
        assert log.verify() == []


def test_a_full_disk_loses_nothing_and_is_survived(embedded: FileLog):
    embedded.append([(A, records(b"1"))])
    writer = embedded._resources.database._writer
    (pages,) = writer.execute("PRAGMA page_count").fetchone()
    writer.execute(f"PRAGMA max_page_count = {pages + 1}").fetchone()
    with pytest.raises(LogUnavailableError, match=r"no room left .* nothing was lost"):
        embedded.append([(A, records(os.urandom(100_000)))])
    assert values(embedded, A) == [b"1"]
    writer.execute("PRAGMA max_page_count = 1000000").fetchone()
    assert embedded.append([(A, records(b"2"))]) == [1]
    assert embedded.verify() == []


def test_a_disk_that_is_full_for_a_chunk_file(embedded: FileLog, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LogUnavailableError, match=r"No space left on device.*free some room"):
        embedded.append([(A, Records([b"k"] * 9, [os.urandom(1 << 20) for _ in range(9)], range(9)))])


def test_a_disk_that_fails_when_a_log_is_closed(directory: Path, monkeypatch: pytest.MonkeyPatch):
    close = os.close

    def fail(descriptor: int) -> None:
        close(descriptor)
        raise OSError(5, "Input/output error")

    log = FileLog(directory)
    monkeypatch.setattr(os, "close", fail)
    with pytest.raises(LogUnavailableError, match="Input/output error"):
        log.close()
    monkeypatch.undo()
    FileLog(directory).close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_log_that_others_keep_is_reported_with_their_number(directory: Path):
    FileLog(directory).close()
    waits: list[float] = []
    pid = os.fork()
    if pid == 0:  # a child that takes the lock, tells, and waits to be killed
        lock = WriterLock(directory / "lock")
        with lock.hold():
            (directory / "held").touch()
            threading.Event().wait(30)
        os._exit(0)
    while not (directory / "held").exists():
        os.sched_yield()
    lock = WriterLock(directory / "lock", timeout=0.5, pause=waits.append)
    with pytest.raises(LogBusyError, match=f"waited 0.5 s .* process {pid} is writing to it, or hangs"), lock.hold():
        pass
    assert sum(waits) == pytest.approx(0.5, abs=0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    with lock.hold():
        pass
    lock.close()


@pytest.mark.parametrize(
    "name, kind, words",
    [
        ("SQLITE_BUSY", LogBusyError, "Try again"),
        ("SQLITE_READONLY", LogUnavailableError, "check its permissions"),
        ("SQLITE_IOERR_FSYNC", LogUnavailableError, "the disk refuses"),
        ("SQLITE_CORRUPT", LogCorruptedError, "Restore the directory from a copy"),
        ("SQLITE_ERROR", LogCorruptedError, "is damaged"),
    ],
)
def test_errors_of_sqlite_in_other_words(embedded: FileLog, name, kind, words):
    error = sqlite3.OperationalError("the original words")
    error.sqlite_errorname = name
    matching = pytest.raises(kind, match=f"the original words.*{words}|{words}.*the original words")
    with matching as caught, embedded._resources.database.translate_errors():
        raise error
    assert caught.value.__cause__ is error


# --------------------------------------------------------------------------------------------------------- lifetimes
def test_logs_of_one_directory_share_their_database_until_the_last_is_closed(directory: Path):
    one, two = FileLog(directory), FileLog(directory / "." / ".." / directory.name)
    assert one._resources is two._resources
    one.create_topic("a")
    one.close()
    one.close()
    two.append([(A, records(b"1"))])
    with pytest.raises(ValueError, match="was closed: open it again"):
        one.topics()
    two.close()
    assert not (directory / "log.db-wal").exists()
    with FileLog(directory) as three:
        assert values(three, A) == [b"1"]


def test_a_log_can_be_sent_to_another_process(embedded: FileLog):
    embedded.append([(A, records(b"1"))])
    with pickle.loads(pickle.dumps(embedded)) as other:
        assert values(other, A) == [b"1"]


def in_child(run: Callable[[], object]) -> int:
    """Forks, and gives what the child ended with."""
    pid = os.fork()
    if pid == 0:
        try:
            run()
        except BaseException:  # noqa: BLE001
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_gets_connections_of_its_own(embedded: FileLog):
    embedded.append([(A, records(b"1"))])
    parent = embedded._resources.database

    def run() -> None:
        assert values(embedded, A) == [b"1"]
        assert embedded._resources.database is not parent
        embedded.append([(A, records(b"2"))])
        embedded.close()

    assert in_child(run) == 0
    assert embedded._resources.database is parent
    embedded.append([(A, records(b"3"))])
    assert values(embedded, A) == [b"1", b"2", b"3"]


def test_a_new_directory_at_an_old_path_is_a_new_log(directory: Path):
    clock = ManualClock(NOW)
    old = file_log(directory / "log", clock)
    old.create_topic("a")
    (directory / "log").rename(directory / "moved")
    with file_log(directory / "log", clock) as new:
        assert dict(new.topics()) == {}
    assert isinstance(old._resources.database, Database)
    old.close()
    assert not (directory / "log" / "log.db-wal").exists()


# -------------------------------------------------------------------------------------------------------- other users
LARGE_CHUNK = A, Records([b"k"], [os.urandom(5 << 20)], [10])  # with a file of its own


def test_a_log_is_for_its_owner_alone(directory: Path):
    before = os.umask(0)
    try:
        with FileLog(directory / "deep" / "log") as log:
            log.create_topic("a", config={"max.message.bytes": 10 << 20})
            log.append([LARGE_CHUNK])
            log.append([(A, records(b"x"))])
            log.clean()
            found = {path.name for path in log.directory.iterdir()}
            assert found == {"log.db", "log.db-wal", "log.db-shm", "acknowledged", "lock", "cleaning", "chunks"}
            assert len(list((log.directory / "chunks").iterdir())) == 1
            assert modes(directory / "deep") == PRIVATE
    finally:
        os.umask(before)


def test_a_log_that_an_earlier_version_made_goes_on(directory: Path):
    with FileLog(directory) as log:
        log.create_topic("a")
        log.append([(A, records(b"old"))])
    for path in (directory, *directory.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with FileLog(directory) as log:
        log.append([(A, records(b"new"))])
        assert values(log, A) == [b"old", b"new"]


def test_a_log_of_another_user_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch):
    give_away(directory, monkeypatch)
    with pytest.raises(UnsafePathError, match=f"{directory} belongs to .*: run as that user, choose another directory"):
        FileLog(directory)


def test_a_log_that_every_user_may_write_to_is_refused(directory: Path):
    directory.chmod(0o777)
    with pytest.raises(UnsafePathError, match="can be written by every user"):
        FileLog(directory)


@pytest.mark.parametrize("name", ["log.db", "log.db-wal", "log.db-shm", "acknowledged", "lock"])
def test_a_file_of_a_log_that_is_a_link_or_of_another_user_is_refused(
    directory: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    directory.chmod(0o1777)  # everybody may put something there, as into /tmp
    precious = directory / "precious"
    precious.write_bytes(b"")
    (directory / name).symlink_to(precious)
    with pytest.raises(UnsafePathError, match=f"{name} is a symbolic link where a file has to be"):
        FileLog(directory)
    assert precious.read_bytes() == b""
    (directory / name).unlink()
    precious.rename(directory / name)
    give_away(directory / name, monkeypatch)
    if os.geteuid() == 0:  # else the directory belongs to another user, too
        with pytest.raises(UnsafePathError, match=f"{name} belongs to"):
            FileLog(directory)
    else:
        with pytest.raises(UnsafePathError, match="belongs to"):
            FileLog(directory)


def test_a_folder_of_chunks_that_is_a_link_is_refused(directory: Path):
    (directory / "elsewhere").mkdir()
    (directory / "chunks").symlink_to(directory / "elsewhere")
    with pytest.raises(UnsafePathError, match="chunks is a symbolic link where a directory has to be"):
        FileLog(directory)


def test_a_chunk_that_is_a_link_is_refused(directory: Path):
    with FileLog(directory) as log:
        log.create_topic("a", config={"max.message.bytes": 10 << 20})
        log.append([LARGE_CHUNK])
        (chunk,) = (directory / "chunks").iterdir()
        chunk.rename(directory / "moved")
        chunk.symlink_to(directory / "moved")
        with pytest.raises(UnsafePathError, match="is a symbolic link where a file has to be"):
            values(log, A)
