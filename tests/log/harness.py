"""What the tests of logs share. Directories are in memory where possible: they are many, and disks are slow."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

from headrace.log.embedded.file_log import FileLog
from headrace.log.protocol import Log, LogRow, Records
from headrace.model.ids import TopicPartition
from tests.clocks import ManualClock

Found = TypeVar("Found")
MEMORY = Path("/dev/shm")  # noqa: S108
A, B = TopicPartition("a", 0), TopicPartition("b", 0)
NOW = 1_000_000


def scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="headrace-", dir=MEMORY if MEMORY.is_dir() else None)


def file_log(directory: str | Path, clock: ManualClock) -> FileLog:
    """A log that cleans only when it is told to, and for which waiting is moving the clock."""

    def pause(seconds: float) -> None:
        clock.advance(int(seconds * 1000))

    return FileLog(directory, clock=clock, clean_every=None, pause=pause)


def seeded(seed: int | str) -> Random:
    return Random(seed)  # noqa: S311 - chance that repeats


def records(*values: bytes | None, key: bytes | None = b"k", at: int = 10) -> Records:
    """Records with one key, and times from `at` on."""
    return Records([key] * len(values), values, range(at, at + len(values)))


def pairs(*entries: tuple[bytes | None, bytes | None], at: int = 10) -> Records:
    """Records of keys and values, and times from `at` on."""
    return Records([key for key, _ in entries], [value for _, value in entries], range(at, at + len(entries)))


def rows(log: Log, at: TopicPartition, start: int | None = None, end: int | None = None) -> list[LogRow]:
    first = log.extents([at.topic])[at].earliest if start is None else start
    return [row for chunk in log.read(at, first, end) for row in chunk.rows()]


def values(log: Log, at: TopicPartition) -> list[bytes | None]:
    return [row[2] for row in rows(log, at)]


def until(look: Callable[[], Found], wanted: Found) -> None:
    """Looks until it sees what is wanted: at once in the embedded log, and on Kafka as soon as a group has agreed."""
    end = time.monotonic() + 120
    while (found := look()) != wanted:
        assert time.monotonic() < end, f"{found} is not {wanted}"
        time.sleep(0.005)


def chunk_files(directory: Path) -> list[Path]:
    return sorted((directory / "chunks").iterdir())


def flip(path: Path, position: int, bit: int = 0) -> None:
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1 << bit
    path.write_bytes(raw)
