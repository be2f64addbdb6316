"""What is special about state on disk."""

import os
import random
import subprocess
import sys
import textwrap

import pytest

from headrace.errors import InvalidStateStoreError, StateCorruptedError
from headrace.state.engine import MemoryEngine, Version
from headrace.state.lmdb import LONGEST, LmdbEngine, boot_id
from tests.state.harness import contents

ONE, TWO = Version(1, "a"), Version(2, "b")


@pytest.fixture
def engine(tmp_path):
    engine = LmdbEngine(tmp_path)
    yield engine
    engine.close()


def test_what_was_committed_is_there_when_the_directory_is_opened_again(tmp_path):
    engine = LmdbEngine(tmp_path)
    engine.commit([(b"k", b"v")], ONE)
    engine.close()
    engine = LmdbEngine(tmp_path)
    assert (engine.get(b"k"), engine.version) == (b"v", ONE)
    engine.close()


def test_the_last_commit_can_be_undone_after_reopening_too(tmp_path):
    engine = LmdbEngine(tmp_path)
    engine.commit([(b"a", b"1"), (b"b", b"1")], ONE)
    engine.commit([(b"a", b"2"), (b"b", None), (b"c", b"2")], TWO)
    engine.close()
    engine = LmdbEngine(tmp_path)
    engine.undo()
    assert (contents(engine), engine.version) == ([(b"a", b"1"), (b"b", b"1")], ONE)
    engine.close()


def test_the_first_commit_can_be_undone(engine):
    engine.commit([(b"k", b"v")], ONE)
    engine.undo()
    assert (contents(engine), engine.version) == ([], None)


@pytest.mark.parametrize("make", [MemoryEngine, None])
def test_one_commit_can_be_undone_and_no_more(make, engine):
    engine = engine if make is None else make()
    with pytest.raises(InvalidStateStoreError, match="nothing to undo at version None"):
        engine.undo()
    engine.commit([], ONE)
    engine.commit([], TWO)
    engine.undo()
    with pytest.raises(InvalidStateStoreError, match=r"nothing to undo .*number=1"):
        engine.undo()


def test_after_another_start_of_the_machine_the_contents_are_discarded(tmp_path):
    engine = LmdbEngine(tmp_path, boot="first")
    engine.commit([(b"k", b"v")], ONE)
    engine.close()
    engine = LmdbEngine(tmp_path, boot="second")
    assert (engine.get(b"k"), engine.version) == (None, None)
    engine.commit([(b"k", b"w")], ONE)
    engine.close()
    engine = LmdbEngine(tmp_path, boot="second")
    assert engine.get(b"k") == b"w"
    engine.close()


def test_a_machine_that_does_not_count_its_starts_keeps_the_contents(tmp_path):
    for boot in ("", "", "first", ""):
        engine = LmdbEngine(tmp_path / "state", boot=boot)
        if engine.version is None:
            engine.commit([(b"k", b"v")], ONE)
        assert engine.get(b"k") == b"v"
        engine.close()
    assert boot_id(tmp_path / "no such file") == ""


def test_state_without_a_recorded_boot_is_discarded_where_boots_are_known(tmp_path):
    engine = LmdbEngine(tmp_path, boot="")
    engine.commit([(b"k", b"v")], ONE)
    engine.close()
    engine = LmdbEngine(tmp_path, boot="first")
    assert engine.version is None
    engine.close()


def test_the_map_grows_when_it_is_full(tmp_path):
    engine = LmdbEngine(tmp_path, map_size=1 << 16)
    big = [(b"%04d" % number, bytes(1000)) for number in range(2000)]
    engine.commit(big, ONE)
    assert contents(engine) == big
    engine.commit([(b"0000", bytes(10_000_000))], TWO)
    engine.undo()
    assert contents(engine) == big
    engine.close()
    engine = LmdbEngine(tmp_path, map_size=1 << 16)  # smaller than what is there
    assert contents(engine) == big
    engine.close()


@pytest.mark.parametrize("size", range(1_000, 60_000, 7_000))
def test_a_commit_that_made_the_map_grow_can_be_undone(tmp_path, size):
    engine = LmdbEngine(tmp_path, map_size=1 << 16)
    before = [(b"%d" % number, bytes(size // 10)) for number in range(10)]
    for version, value in ((ONE, b""), (TWO, b"x"), (Version(3, "c"), b"yy")):
        changes = [(key, filling + value) for key, filling in before]
        engine.commit(changes, version)
        assert contents(engine) == changes
    engine.undo()
    assert contents(engine) == [(key, filling + b"x") for key, filling in before]
    engine.close()


def test_keys_of_any_length_come_in_the_order_of_their_bytes(engine):
    chance = random.Random(0)  # noqa: S311 (a test wants it repeatable)
    stems = [b"x" * length for length in (1, LONGEST - 1, LONGEST, LONGEST + 1, 1000, 4990)]
    keys = {stem + bytes(chance.choices(b"\x00\x01x\xff", k=chance.randint(0, 4))) for stem in stems for _ in range(40)}
    changes = sorted((key, b"v" * len(key)) for key in keys)
    engine.commit(changes, ONE)
    assert contents(engine) == changes
    assert list(engine.scan(b"", None, reverse=True)) == changes[::-1]
    assert all(engine.get(key) == value for key, value in changes)
    gone = changes[::2]
    engine.commit([(key, None) for key, _ in gone], TWO)
    assert contents(engine) == changes[1::2]
    engine.undo()
    assert contents(engine) == changes


def test_a_scan_may_begin_and_end_within_a_bucket_of_long_keys(engine):
    stem = b"x" * LONGEST
    keys = [stem, *(stem + bytes([end]) for end in (0, 1, 5, 255)), b"y"]
    engine.commit([(key, b"v") for key in keys], ONE)
    for low in keys:
        for high in [*keys, None]:
            expected = [key for key in keys if low <= key and (high is None or key < high)]
            assert [key for key, _ in engine.scan(low, high)] == expected
            assert [key for key, _ in engine.scan(low, high, reverse=True)] == expected[::-1]


DAMAGES = {
    "garbage": lambda file: file.write_bytes(b"garbage" * 10_000),
    "cut off": lambda file: os.truncate(file, file.stat().st_size // 2),
    "cut off by a page": lambda file: os.truncate(file, file.stat().st_size - 4096),
    "a directory": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_with_the_remedy(tmp_path, damage):
    engine = LmdbEngine(tmp_path)
    engine.commit([(b"%05d" % number, bytes(100)) for number in range(3000)], ONE)
    engine.close()
    DAMAGES[damage](tmp_path / "data.mdb")
    with pytest.raises(StateCorruptedError) as caught:
        LmdbEngine(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "delete the directory" in str(caught.value)


def test_a_damaged_page_is_noticed_when_it_is_read(tmp_path):
    engine = LmdbEngine(tmp_path)
    engine.commit([(b"%05d" % number, bytes(100)) for number in range(3000)], ONE)
    engine.close()
    with (tmp_path / "data.mdb").open("r+b") as file:
        file.seek(8 * 4096)
        file.write(bytes(40 * 4096))
    engine = LmdbEngine(tmp_path)
    with pytest.raises(StateCorruptedError, match="cannot be read"):
        list(engine.scan(b"", None))
    engine.close()


def test_an_iterator_cannot_outlive_its_batch(engine):
    engine.commit([(b"a", b"1"), (b"b", b"1")], ONE)
    scan = engine.scan(b"", None)
    next(scan)
    engine.commit([(b"b", b"2")], TWO)
    with pytest.raises(InvalidStateStoreError, match="batch is over"):
        next(scan)


def commit_elsewhere(directory, size):
    """Another process commits version 2: `k`, and a value of so many bytes."""
    program = f"""
        from headrace.state.engine import Version
        from headrace.state.lmdb import LmdbEngine
        LmdbEngine({str(directory)!r}).commit([(b"big", bytes({size})), (b"k", b"theirs")], Version(2, "theirs"))
    """
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, env=paths)


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 100_000_000], ids=["within the map", "and grow the map"])
def test_two_processes_cannot_write_over_each_other(tmp_path, size):
    engine = LmdbEngine(tmp_path)
    engine.commit([(b"k", b"mine")], ONE)
    commit_elsewhere(tmp_path, size)
    assert (engine.get(b"k"), engine.version) == (b"mine", ONE)
    for attempt in (lambda: engine.commit([(b"k", b"mine again")], TWO), engine.undo):
        with pytest.raises(InvalidStateStoreError, match="another process has written"):
            attempt()
    engine.renew()
    assert (engine.get(b"k"), engine.version) == (b"theirs", Version(2, "theirs"))
    engine.undo()
    assert contents(engine) == [(b"k", b"mine")]
    engine.close()


@pytest.mark.slow
def test_an_undo_of_a_commit_restores_what_another_process_wrote_before(tmp_path):
    engine = LmdbEngine(tmp_path)
    engine.commit([(b"k", b"mine")], ONE)
    commit_elsewhere(tmp_path, size=1)
    engine.renew()
    engine.commit([(b"k", b"mine again")], Version(3, "c"))
    engine.undo()
    assert (engine.get(b"k"), engine.version) == (b"theirs", Version(2, "theirs"))
    engine.close()


def test_an_undo_after_a_renewal_restores_the_last_commit(engine):
    engine.commit([(b"k", b"first")], ONE)
    engine.renew()
    engine.commit([(b"k", b"second")], TWO)
    engine.undo()
    assert (contents(engine), engine.version) == ([(b"k", b"first")], ONE)


def test_a_commit_that_fails_changes_nothing(engine):
    engine.commit([(b"k", b"v")], ONE)
    with pytest.raises(TypeError):
        engine.commit([(b"a", b"v"), (b"k", "not bytes")], TWO)
    assert (contents(engine), engine.version) == ([(b"k", b"v")], ONE)


def test_a_disk_that_fails_after_a_commit_is_named_with_the_remedy(engine, monkeypatch):
    def fail(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.stat", fail)
        with pytest.raises(StateCorruptedError, match=r"Input/output error.*delete the directory, and it is restored"):
            engine.commit([(b"k", b"v")], ONE)
