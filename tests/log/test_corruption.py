"""Damage: whatever is flipped, cut off, emptied or deleted, it is named, or it made no difference. Never other data."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.log import appending
from headrace.log.errors import LogCorruptedError, LogUnavailableError
from headrace.log.protocol import Records, Stamp
from headrace.model.clock import ManualClock
from headrace.model.ids import TopicPartition
from tests.log.harness import NOW, A, B, file_log, flip, records, rows

SEED = 7
FLIPS = 400
C = TopicPartition("compacted", 0)


def fill(directory: Path, monkeypatch: pytest.MonkeyPatch):
    """A log with some of everything; its chunks of more than 3000 bytes are files."""
    monkeypatch.setattr(appending, "LARGE", 3000)
    noise = Random(SEED)
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
    log.append([(A, records(b"stamped"))], stamp=Stamp(producer, 0))
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
            "again": log.append([(A, records(b"stamped"))], stamp=Stamp(1, 0)),
        }


@pytest.fixture
def filled(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A log that was closed, and what is in it."""
    fill(directory / "log", monkeypatch).close()
    expected = everything(directory / "log")
    yield directory / "log", expected


def check_noticed(directory: Path, expected: dict[str, Any], what: str) -> bool:
    """Whether the damage is noticed; if it is not, nothing is different."""
    try:
        found = everything(directory)
    except (LogCorruptedError, LogUnavailableError) as error:
        assert len(str(error)) > 40, what
        return True
    assert found == expected, f"{what}: other data, without a word"
    return False


def test_a_flipped_bit_in_the_database_is_noticed(filled: tuple[Path, dict[str, Any]], directory: Path):
    source, expected = filled
    size, chance = (source / "log.db").stat().st_size, Random(SEED)
    pages = size // 4096
    heads = [4096 * page + chance.randrange(16) for page in range(pages)]  # where SQLite keeps its own numbers
    positions = [*range(0, 100, 3), *heads, *(chance.randrange(size) for _ in range(FLIPS))]
    noticed = 0
    for position in positions:
        bit = chance.randrange(8)
        copy = directory / "copy"
        shutil.copytree(source, copy)
        flip(copy / "log.db", position, bit)
        noticed += check_noticed(copy, expected, f"log.db, byte {position}, bit {bit}, seed {SEED}")
        shutil.rmtree(copy)
    assert noticed > len(positions) // 4
