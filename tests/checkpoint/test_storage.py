"""Files that are made once: in a directory, and in an object store."""

import errno
import os
import pickle
import threading
from pathlib import Path

import pytest

from headrace.checkpoint.storage import DiskStorage, ObjectStorage, open_storage
from headrace.errors import MissingFileError, StorageError, UnsafePathError
from tests.other_users import PRIVATE, give_away, modes


@pytest.fixture(params=["disk", "objects"])
def storage(request, tmp_path):
    return DiskStorage(tmp_path / "checkpoint") if request.param == "disk" else ObjectStorage.at("memory:///", {})


def test_a_file_is_made_once(storage):
    assert storage.create("a/b/1", b"first")
    assert not storage.create("a/b/1", b"second")
    assert storage.read("a/b/1") == b"first"


def test_an_empty_file_is_a_file(storage):
    assert storage.create("a/1", b"")
    assert storage.read("a/1") == b""
    assert not storage.create("a/1", b"x")


def test_a_part_of_a_file_can_be_read(storage):
    storage.create("a/1", b"0123456789")
    assert storage.read("a/1", 2, 3) == b"234"
    assert storage.read("a/1", 2) == b"23456789"
    assert storage.read("a/1", 2, 0) == b""
    assert storage.read("a/1", 8, 5) == b"89"
    assert storage.read("a/1", 20, 5) == b""


def test_a_file_that_is_not_there_is_named(storage):
    storage.create("a/1", b"x")
    for name in ("a/2", "b/1", "a"):
        with pytest.raises(MissingFileError, match=f"no file {name} in "):
            storage.read(name)
        with pytest.raises(MissingFileError):
            storage.read(name, 1, 2)


def test_names_are_listed_by_prefix_and_in_order(storage):
    for name in ("b/2", "a/10", "a/2", "ab/1", "a/c/1"):
        storage.create(name, b"x")
    assert storage.names() == ["a/10", "a/2", "a/c/1", "ab/1", "b/2"]
    assert storage.names("a/") == ["a/10", "a/2", "a/c/1"]
    assert storage.names("a/1") == ["a/10"]
    assert storage.names("z/") == []


def test_a_file_is_deleted_if_it_is_there(storage):
    storage.create("a/1", b"x")
    storage.delete("a/1")
    storage.delete("a/1")
    storage.delete("z/1")
    assert storage.names() == []
    assert storage.create("a/1", b"y")


def test_of_many_who_make_a_file_at_once_one_succeeds(storage):
    barrier, won = threading.Barrier(8), []

    def race(number):
        barrier.wait()
        if storage.create("a/1", b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [storage.read("a/1")] == [b"%d" % number for number in won]
    assert storage.names() == ["a/1"]


def test_a_place_is_a_directory_or_a_url(tmp_path):
    assert isinstance(open_storage(tmp_path), DiskStorage)
    assert isinstance(open_storage(f"file://{tmp_path}/a"), DiskStorage)
    assert isinstance(open_storage(f"file:{tmp_path}/b"), DiskStorage)
    assert open_storage("s3://bucket/some/prefix", {"region": "eu-central-1"}).describe() == "s3://bucket/some/prefix"
    with pytest.raises(StorageError, match=r"ftp://host cannot be opened: .*recogni"):
        open_storage("ftp://host")


def test_storage_can_be_sent_to_other_processes(tmp_path):
    DiskStorage(tmp_path).create("a/1", b"x")
    assert pickle.loads(pickle.dumps(DiskStorage(tmp_path))).read("a/1") == b"x"
    there = pickle.loads(pickle.dumps(open_storage("s3://bucket/prefix", {"region": "eu-central-1"})))
    assert there.describe() == "s3://bucket/prefix"


# ---------------------------------------------------------------------------------------------------------- failures
@pytest.mark.parametrize(
    "code, says",
    [
        (errno.ENOSPC, "the disk is full .*nothing was written. Make room"),
        (errno.EROFS, "permission is missing .*Make it writable"),
        (errno.EACCES, "permission is missing"),
        (errno.EIO, "Input/output error"),
    ],
)
@pytest.mark.parametrize("call", ["fsync", "link"])
def test_a_disk_that_does_not_take_a_file_says_why(call, code, says, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(code, os.strerror(code))

    disk = DiskStorage(tmp_path)
    disk.create("a/0", b"x")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(StorageError, match=f"the directory {tmp_path} cannot take a/1: {says}"):
        disk.create("a/1", b"data")
    monkeypatch.undo()
    assert disk.names() == ["a/0"]
    assert disk.create("a/1", b"data")


def test_a_directory_that_vanished_is_not_created_again(tmp_path):
    disk = DiskStorage(tmp_path / "checkpoint")
    disk.create("a/1", b"x")
    (tmp_path / "checkpoint").rename(tmp_path / "elsewhere")
    for call in (lambda: disk.create("a/2", b"y"), lambda: disk.read("a/1"), disk.names):
        with pytest.raises(StorageError, match="was deleted or replaced"):
            call()
    (tmp_path / "checkpoint").mkdir()  # an empty one is not the same
    with pytest.raises(StorageError, match="was deleted or replaced while it was in use"):
        disk.create("a/2", b"y")


def test_a_file_where_the_directory_should_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StorageError, match="cannot be opened: a file is in the way"):
            DiskStorage(place)


def test_what_a_crash_left_unfinished_is_not_the_file(tmp_path):
    disk = DiskStorage(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.tmp-x").write_bytes(b"half")
    with pytest.raises(MissingFileError):
        disk.read("a/1")
    assert disk.create("a/1", b"whole")


def test_a_file_is_on_disk_before_its_name_is(tmp_path, monkeypatch):
    calls, link = [], os.link
    named_by = lambda descriptor: str(Path(f"/proc/self/fd/{descriptor}").readlink())
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append(named_by(descriptor)))
    monkeypatch.setattr(os, "link", lambda *paths: calls.append("link") or link(*paths))
    DiskStorage(tmp_path).create("a/1", b"x")
    made, data, linked, named = calls
    assert (made, linked, named) == (str(tmp_path), "link", f"{tmp_path}/a")
    assert data.startswith(f"{tmp_path}/a/1.tmp-")


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_draft_that_the_next_owner_purges_is_written_again(is_taken, tmp_path, monkeypatch):
    disk, link = DiskStorage(tmp_path), os.link

    def link_after_purge(draft, target):
        monkeypatch.undo()
        if is_taken:
            disk.create("a/1", b"of the next owner")
        draft.unlink()
        link(draft, target)

    monkeypatch.setattr(os, "link", link_after_purge)
    assert disk.create("a/1", b"mine") is not is_taken
    assert (disk.names(), disk.read("a/1")) == (["a/1"], b"of the next owner" if is_taken else b"mine")


# ------------------------------------------------------------------------------------------------------- other users
def test_a_checkpoint_is_for_its_owner_alone(tmp_path):
    before = os.umask(0)
    try:
        DiskStorage(tmp_path / "new" / "checkpoint").create("deltas/0_1/1", b"x")
    finally:
        os.umask(before)
    assert modes(tmp_path / "new") == PRIVATE


def test_a_checkpoint_that_an_earlier_version_made_goes_on(tmp_path):
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "1").write_bytes(b"old")
    for path in (tmp_path, tmp_path / "manifests"):
        path.chmod(0o755)
    (tmp_path / "manifests" / "1").chmod(0o644)
    disk = DiskStorage(tmp_path)
    assert disk.create("manifests/2", b"new")
    assert [disk.read(name) for name in disk.names("manifests/")] == [b"old", b"new"]


def test_a_directory_of_a_group_is_its_users_choice(tmp_path):
    tmp_path.chmod(0o2770)
    assert DiskStorage(tmp_path).create("a/1", b"x")


def test_a_checkpoint_of_another_user_is_refused(tmp_path, monkeypatch):
    give_away(tmp_path, monkeypatch)
    with pytest.raises(UnsafePathError, match=f"{tmp_path} belongs to .*: run as that user, choose another directory"):
        DiskStorage(tmp_path)


def test_a_checkpoint_that_every_user_may_write_to_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(UnsafePathError, match="can be written by every user"):
        DiskStorage(tmp_path)


def test_what_another_user_put_into_a_shared_directory_is_refused(tmp_path, monkeypatch):
    tmp_path.chmod(0o1777)  # everybody may put something there, as into /tmp
    disk = DiskStorage(tmp_path)
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "1").write_bytes(b"forged")
    (tmp_path / "checkpoint").write_bytes(b"forged")
    give_away(tmp_path / "checkpoint", monkeypatch)
    give_away(tmp_path / "manifests", monkeypatch)
    for call in (
        lambda: disk.read("checkpoint"),
        lambda: disk.read("manifests/1"),
        lambda: disk.create("manifests/2", b"x"),
        lambda: disk.names("manifests/"),
        disk.names,
        lambda: disk.delete("manifests/1"),
    ):
        with pytest.raises(UnsafePathError, match="belongs to"):
            call()
    assert (tmp_path / "manifests" / "1").exists()


def test_links_inside_a_checkpoint_are_refused_and_what_they_lead_to_is_left_alone(tmp_path):
    elsewhere, disk = tmp_path / "elsewhere", DiskStorage(tmp_path / "checkpoint")
    elsewhere.mkdir()
    (elsewhere / "1").write_bytes(b"precious")
    (disk.directory / "deltas").symlink_to(elsewhere)
    disk.create("manifests/0", b"x")
    (disk.directory / "manifests" / "1").symlink_to(elsewhere / "1")
    for call in (
        lambda: disk.create("deltas/2", b"x"),
        lambda: disk.create("deltas/0_1/2", b"x"),
        lambda: disk.read("deltas/1"),
        lambda: disk.delete("deltas/1"),
        lambda: disk.names("deltas/"),
        lambda: disk.read("manifests/1"),
    ):
        with pytest.raises(UnsafePathError, match="is a symbolic link where a"):
            call()
    disk.delete("manifests/1")
    assert [path.name for path in elsewhere.iterdir()] == ["1"]
    assert (elsewhere / "1").read_bytes() == b"precious"


def test_a_directory_that_cannot_be_listed_is_not_taken_for_empty(tmp_path, monkeypatch):
    storage = DiskStorage(tmp_path)
    storage.create("a/1", b"x")
    assert storage.names("b/") == []

    def fail(path):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(StorageError, match="cannot be listed: Input/output error"):
        storage.names("a/")
