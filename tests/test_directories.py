"""Directories and files on disk: where they are, with which modes, and which are not trusted."""

from __future__ import annotations

import os
import pickle
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import directories
from headrace.directories import (
    check_directory,
    check_file,
    check_folder,
    create_directory,
    default_state_directory,
    open_file,
    read_file,
    state_directory,
    temporary_directory,
    write_file,
)
from headrace.errors import UnsafePathError
from tests.other_users import OTHER, give_away, modes


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """A umask that would leave everything open to everybody."""
    before = os.umask(0)
    yield
    os.umask(before)


# ------------------------------------------------------------------------------------------------------------- places
def test_the_default_is_in_the_users_own_state_directory(tmp_path: Path):
    assert default_state_directory({"XDG_STATE_HOME": "/var/s", "HOME": str(tmp_path)}) == Path("/var/s/headrace")
    here = {"HOME": str(tmp_path)}
    assert default_state_directory(here) == tmp_path / ".local/state/headrace"
    assert default_state_directory({"XDG_STATE_HOME": "relative", **here}) == tmp_path / ".local/state/headrace"


def test_the_default_is_resolved_when_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for home in ("one", "two"):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / home))
        assert state_directory() == state_directory("") == tmp_path / home / "headrace"
    monkeypatch.setenv("HOME", "/home/ada")
    assert state_directory("~/state") == Path("/home/ada/state")


def test_a_user_without_a_home_has_a_private_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = tmp_path / f"headrace-{os.geteuid()}" / "state"
    assert default_state_directory({"HOME": str(tmp_path / "missing")}) == mine
    assert default_state_directory({"HOME": "/proc/1/root/nowhere"}) == mine
    home = tmp_path / "home"
    home.mkdir()
    give_away(home, monkeypatch)
    mine = tmp_path / f"headrace-{os.geteuid()}" / "state"
    if os.geteuid() == 0:  # else the temporary directory of the other user belongs to this one, which is refused
        assert default_state_directory({"HOME": str(home)}) == mine
    else:
        with pytest.raises(UnsafePathError):
            default_state_directory({"HOME": str(home)})


def test_the_temporary_directory_is_for_one_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    directory = temporary_directory()
    assert directory == temporary_directory() == tmp_path / f"headrace-{os.geteuid()}"
    assert modes(directory)["directories"] == "0700"
    directory.chmod(0o750)
    with pytest.raises(UnsafePathError, match=r"has to be a directory that only .* not drwxr-x--- of .*set TMPDIR"):
        temporary_directory()
    directory.rmdir()
    (tmp_path / "victim").mkdir(0o700)
    directory.symlink_to(tmp_path / "victim")
    with pytest.raises(UnsafePathError, match="not lrwxrwxrwx"):
        temporary_directory()
    directory.unlink()
    directory.mkdir(0o700)
    give_away(directory, monkeypatch)
    if os.geteuid() == OTHER:
        directory.rename(directory.with_name(f"headrace-{OTHER}"))
    with pytest.raises(UnsafePathError, match=r"only .* can use, not drwx------ of"):
        temporary_directory()


# ----------------------------------------------------------------------------------------------------------- creating
def test_what_is_created_is_private_whatever_the_umask(tmp_path: Path):
    create_directory(tmp_path / "a" / "b" / "c")
    write_file(tmp_path / "a" / "b" / "c" / "file", b"x")
    assert modes(tmp_path / "a") == {"directories": "0700", "files": "0600"}
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "a" / "b" / "c" / "file", b"y")
    assert read_file(tmp_path / "a" / "b" / "c" / "file") == b"x"


def test_a_directory_that_exists_stays_as_it_is(tmp_path: Path):
    (tmp_path / "shared").mkdir(0o770)
    create_directory(tmp_path / "shared")
    check_directory(tmp_path / "shared")
    assert modes(tmp_path / "shared")["directories"] == "0770"
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        create_directory(tmp_path / "file")


# ----------------------------------------------------------------------------------------------------------- checking
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o770, 0o2775, 0o1777])
def test_group_permissions_and_sticky_directories_are_the_users_choice(tmp_path: Path, mode: int):
    tmp_path.chmod(mode)
    check_directory(tmp_path)
    check_folder(tmp_path)


def test_a_directory_that_every_user_may_write_to_is_refused(tmp_path: Path):
    tmp_path.chmod(0o777)
    for check in (check_directory, check_folder):
        with pytest.raises(
            UnsafePathError, match=f"{tmp_path} can be written by every user: .*chmod -R o-w {tmp_path}"
        ):
            check(tmp_path)
    (tmp_path / "file").touch(0o666)
    for check in (check_file, read_file):
        with pytest.raises(UnsafePathError, match="file can be written by every user"):
            check(tmp_path / "file")


def test_what_belongs_to_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "folder").mkdir(0o755)
    (tmp_path / "file").touch(0o644)
    give_away(tmp_path / "folder", monkeypatch)
    give_away(tmp_path / "file", monkeypatch)
    for check in (check_directory, check_folder):
        with pytest.raises(
            UnsafePathError, match=r"folder belongs to .*, and this process runs as .*: run as that user"
        ):
            check(tmp_path / "folder")
    for check in (check_file, read_file):
        with pytest.raises(UnsafePathError, match="file belongs to"):
            check(tmp_path / "file")


def test_root_is_trusted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    check_directory(Path("/"))
    check_folder(Path("/etc"))
    check_file(Path("/etc/passwd"))


def test_a_link_inside_is_refused_whosoever_it_is(tmp_path: Path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "file").write_bytes(b"secret")
    (tmp_path / "folder").symlink_to(tmp_path / "target")
    (tmp_path / "file").symlink_to(tmp_path / "target" / "file")
    with pytest.raises(UnsafePathError, match="folder is a symbolic link where a directory has to be: put a directory"):
        check_folder(tmp_path / "folder")
    for check in (check_file, read_file, lambda path: open_file(path, os.O_RDWR | os.O_CREAT)):
        with pytest.raises(UnsafePathError, match="file is a symbolic link where a file has to be"):
            check(tmp_path / "file")
    (tmp_path / "dangling").symlink_to(tmp_path / "created")
    with pytest.raises(UnsafePathError, match="dangling is a symbolic link"):
        open_file(tmp_path / "dangling", os.O_RDWR | os.O_CREAT)
    assert not (tmp_path / "created").exists()


def test_a_directory_that_the_user_names_may_be_his_own_link_but_not_one_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "target").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    check_directory(tmp_path / "link")
    give_away(tmp_path / "link", monkeypatch)
    with pytest.raises(UnsafePathError, match=r"link is a symbolic link of .*: remove it"):
        check_directory(tmp_path / "link")


def test_pipes_and_sockets_are_no_files_and_nobody_waits_for_them(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(UnsafePathError, match="pipe is not a regular file"):
        read_file(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
    with pytest.raises(UnsafePathError, match="is not a regular file"):
        check_file(tmp_path / "s")
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)
    with pytest.raises(NotADirectoryError):
        check_folder(Path("/etc/passwd"))
    check_file(tmp_path / "missing")


def test_the_error_says_all_and_travels_between_processes():
    error = UnsafePathError(Path("/a"), "is odd", "look at it")
    there = pickle.loads(pickle.dumps(error))
    assert (str(there), there.path, there.problem, there.advice) == ("/a is odd: look at it", *error.__reduce__()[1])
    assert directories.DIRECTORY_MODE == 0o700
