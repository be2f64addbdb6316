"""Damage: whatever is flipped, cut off, emptied or deleted, it is named, or it made no difference. Never other data."""

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import LogCorruptedError, LogUnavailableError, StreamsError
from headrace.log.embedded import chunks
from headrace.log.protocol import ProducerSequence, Records
from headrace.model.ids import TopicPartition
from tests.clocks import ManualClock
from tests.log.harness import NOW, A, B, chunk_files, file_log, flip, records, rows, seeded
from tests.profiles import examples

pytestmark = pytest.mark.slow

SEED = 7
FLIPS = 100  # 20,000 of them, with other seeds, were all noticed
C = TopicPartition("compacted", 0)


def fill(directory: Path, monkeypatch: pytest.MonkeyPatch):
    """A log with some of everything; its chunks of more than 3000 bytes are files."""
    monkeypatch.setattr(chunks, "LARGE", 3000)
    noise = seeded(SEED)
    log = file_log(directory, ManualClock(NOW))
    log.create_topic("a")
    log.create_topic("b", 3, {"retention.ms": -1})
    log.create_topic("compacted", config={"cleanup.policy": "compact"})
    for i in range(12):
        log.append([(A, records(noise.randbytes(40 * i), b"small"))])
        log.append([(B, records(noise.randbytes(4000))), (C, Records([b"k%d" % (i % 3)], [b"%d" % i], [i]))])
    for i in range(400):
        log.append([(TopicPartition("b", 1), records(b"%d" % i))])
    producer = log.new_producer()
    log.append([(A, records(b"stamped"))], sequence=ProducerSequence(producer, 0))
    log.deliver("app", 0, [(A, records(b"delivered"))])
    log.commit("group", {A: 3, B: 2})
    log.delete_records({A: 3})
    return log


def everything(directory: Path) -> dict[str, Any]:
    with file_log(directory, ManualClock(NOW)) as log:
        return {
            "topics": log.topics(),
            "extents": log.extents(list(log.topics())),
            "rows": {at: rows(log, at) for at in log.extents(list(log.topics()))},
            "groups": log.groups(),
            "delivered": log.delivered("app"),
            "again": log.append([(A, records(b"stamped"))], sequence=ProducerSequence(1, 0)),
        }


@pytest.fixture
def filled(directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, Any]]:
    """A log that was closed, and what is in it."""
    fill(directory / "log", monkeypatch).close()
    expected = everything(directory / "log")
    return directory / "log", expected


def check_noticed(directory: Path, expected: dict[str, Any], what: str) -> bool:
    """Whether the damage is noticed; if it is not, nothing is different."""
    try:
        found = everything(directory)
    except (LogCorruptedError, LogUnavailableError):
        return True
    assert found == expected, f"{what}: other data, without a word"
    return False


def test_a_flipped_bit_in_the_database_is_noticed(filled: tuple[Path, dict[str, Any]], directory: Path):
    source, expected = filled
    size, chance = (source / "log.db").stat().st_size, seeded(SEED)
    pages = size // 4096
    heads = [4096 * page + chance.randrange(16) for page in range(pages)]  # where SQLite keeps its own numbers
    positions = [*range(0, 100, 5), *heads[: examples(80)], *(chance.randrange(size) for _ in range(examples(FLIPS)))]
    noticed = 0
    for position in positions:
        bit = chance.randrange(8)
        copy = directory / "copy"
        shutil.copytree(source, copy)
        flip(copy / "log.db", position, bit)
        noticed += check_noticed(copy, expected, f"log.db, byte {position}, bit {bit}, seed {SEED}")
        shutil.rmtree(copy)
    assert noticed > len(positions) // 4


# ------------------------------------------------------------------------------------------------------ chunk files
def broken_ways(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    return {
        "flipped at the start": lambda: flip(path, 0),
        "flipped in the label": lambda: flip(path, 12),
        "flipped in the middle": lambda: flip(path, len(raw) // 2, 5),
        "flipped at the end": lambda: flip(path, len(raw) - 1, 7),
        "cut off": lambda: path.write_bytes(raw[:-1]),
        "cut in half": lambda: path.write_bytes(raw[: len(raw) // 2]),
        "too long": lambda: path.write_bytes(raw + b"x"),
        "empty": lambda: path.write_bytes(b""),
        "another's": lambda: path.write_bytes(chunk_files(path.parent.parent)[0].read_bytes()),
        "deleted": path.unlink,
    }


def test_every_damaged_chunk_file_is_named_with_its_offsets(filled: tuple[Path, dict[str, Any]]):
    directory, expected = filled
    assert len(chunk_files(directory)) == 12
    for path in chunk_files(directory)[1:]:
        raw = path.read_bytes()
        for what, damage in broken_ways(path).items():
            damage()
            with file_log(directory, ManualClock(NOW)) as log:
                with pytest.raises(LogCorruptedError, match="topic 'b', partition 0, offsets") as caught:
                    rows(log, B)
                offset = caught.value.offsets
                assert offset is not None, what
                assert (caught.value.at, path.name in str(caught.value)) == (B, True), what
                assert f"delete_records({{{B!r}: {offset.stop}}})" in str(caught.value)
                assert rows(log, B, 0, offset.start) == expected["rows"][B][: offset.start]
                assert rows(log, B, offset.stop) == expected["rows"][B][offset.stop :]
            path.write_bytes(raw)
    assert everything(directory) == expected


def test_verify_names_all_that_is_damaged_and_what_can_be_given_up(filled: tuple[Path, dict[str, Any]]):
    directory, _ = filled
    with file_log(directory, ManualClock(NOW)) as log:
        assert log.verify() == []
        first, *_, last = chunk_files(directory)
        flip(first, 50)
        last.unlink()
        problems = log.verify()
        assert len(problems) == 2
        assert all(any(path.name in problem for problem in problems) for path in (first, last))
        log.clean()  # does not hide anything
        assert len(log.verify()) == 2
        log.delete_records({B: -1})
        assert log.verify() == []
        assert chunk_files(directory) == []


# ------------------------------------------------------------------------------------------------ the whole database
@pytest.mark.parametrize("length", [0, 1, 100, 4096, 10_000, -4096, -1])
def test_a_database_that_is_cut_off_is_noticed(filled: tuple[Path, dict[str, Any]], length):
    directory, expected = filled
    raw = (directory / "log.db").read_bytes()
    (directory / "log.db").write_bytes(raw[:length])
    assert check_noticed(directory, expected, f"cut to {length}") or length == -1  # nothing may be in the last byte


def test_a_database_that_is_gone_or_something_else_is_noticed(filled: tuple[Path, dict[str, Any]]):
    directory, _ = filled
    (directory / "log.db").unlink()
    with pytest.raises(LogCorruptedError, match="missing, or empty"):
        everything(directory)
    (directory / "log.db").write_bytes(b"hello" * 1000)
    with pytest.raises(LogCorruptedError, match="not a database"):
        everything(directory)
    (directory / "log.db").unlink()
    sqlite3.connect(directory / "log.db").execute("CREATE TABLE mine (x)").connection.close()
    with pytest.raises(StreamsError, match=r"is not a log of Headrace|not in the mode"):
        everything(directory)


# ------------------------------------------------------------------------------------------------------ after a crash
@pytest.fixture
def crashed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, Any]]:
    """The files of a log whose process was killed: most of it is in the write-ahead file."""
    log = fill(directory / "log", monkeypatch)
    shutil.copytree(directory / "log", directory / "crashed")
    log.close()
    return directory / "crashed", everything(directory / "log")


def test_a_crash_alone_loses_nothing(crashed: tuple[Path, dict[str, Any]]):
    directory, expected = crashed
    assert (directory / "log.db-wal").stat().st_size > 1_000_000
    assert everything(directory) == expected


def test_damage_to_the_write_ahead_file_is_noticed(crashed: tuple[Path, dict[str, Any]], directory: Path):
    source, expected = crashed
    size, chance = (source / "log.db-wal").stat().st_size, seeded(SEED)
    ways: list[tuple[str, Any]] = [(f"byte {at}", lambda path, at=at: flip(path, at)) for at in (0, 20, 33, size - 10)]
    for at in [chance.randrange(size) for _ in range(15)]:
        ways.append((f"byte {at}", lambda path, at=at: flip(path, at, 3)))
        ways.append((f"cut to {at}", lambda path, at=at: path.write_bytes(path.read_bytes()[:at])))
    ways += [("empty", lambda path: path.write_bytes(b"")), ("deleted", lambda path: path.unlink())]
    noticed = 0
    for what, damage in ways:
        copy = directory / "copy"
        shutil.copytree(source, copy)
        damage(copy / "log.db-wal")
        noticed += check_noticed(copy, expected, f"{what}, seed {SEED}")
        shutil.rmtree(copy)
    assert noticed > len(ways) // 2


def test_the_loss_can_be_accepted(crashed: tuple[Path, dict[str, Any]]):
    directory, _ = crashed
    wal = directory / "log.db-wal"
    wal.write_bytes(wal.read_bytes()[: wal.stat().st_size // 2])
    with pytest.raises(LogCorruptedError, match=r"was acknowledged.*delete .*acknowledged"):
        everything(directory)
    (directory / "acknowledged").unlink()
    with file_log(directory, ManualClock(NOW)) as log:
        assert log.verify() == []


@pytest.mark.parametrize("file", ["log.db-shm", "acknowledged", "lock"])
def test_files_that_can_be_rebuilt_are(crashed: tuple[Path, dict[str, Any]], directory: Path, file, caplog):
    source, expected = crashed
    for i, damage in enumerate((lambda path: flip(path, 5), lambda path: path.write_bytes(b""), Path.unlink)):
        copy = directory / str(i)
        shutil.copytree(source, copy)
        damage(copy / file)
        assert everything(copy) == expected
    assert ("acknowledged is damaged" in caplog.text) == (file == "acknowledged")
