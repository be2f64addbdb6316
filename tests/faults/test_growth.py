"""2,000 batches of tasks: checkpoint, local state and the work that a batch makes stay what they are."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from headrace.checkpoint.coordinator import CommitOptions
from headrace.checkpoint.storage import Storage, open_storage
from headrace.model.ids import TopicPartition
from tests.checkpoint.cluster import Cluster, Ground
from tests.checkpoint.memory_log import MemoryLog
from tests.checkpoint.programs import Program, count_words
from tests.faults.programs import line

BATCHES, PART = 2000, 200
HOUR = 3_600_000


class Counted:
    """Storage that counts what is read and written, files and bytes."""

    def __init__(self, storage: Storage) -> None:
        self._storage, self.work = storage, Counter[str]()

    def create(self, name: str, data: bytes) -> bool:
        self.work += Counter({"files made": 1, "bytes written": len(data)})
        return self._storage.create(name, data)

    def read(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        data = self._storage.read(name, start, size)
        self.work += Counter({"reads": 1, "bytes read": len(data)})
        return data

    def names(self, prefix: str = "") -> list[str]:
        self.work["lists"] += 1
        return self._storage.names(prefix)

    def delete(self, name: str) -> None:
        self.work["files deleted"] += 1
        self._storage.delete(name)

    def describe(self) -> str:
        return self._storage.describe()


def size_of(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


@pytest.mark.slow
@pytest.mark.parametrize("inline", [0, 1 << 20])
def test_neither_files_nor_work_grow_with_the_number_of_batches(inline, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # the power stays on
    log = MemoryLog(lines=1, out=1)
    # A line every hour: windows are kept for a day.
    log.rows[TopicPartition("lines", 0)] = [(b"k", line(n).encode(), n * HOUR, ()) for n in range(BATCHES)]
    storage = Counted(open_storage(tmp_path / "checkpoint"))
    ground = Ground(log=log, storage=storage, state=tmp_path / "state")
    cluster = Cluster(
        ground,
        Program(count_words, {}),
        limit=1,
        inline=inline,
        options=CommitOptions(background=False, max_undelivered=0, purge_delay_ms=0),
    )
    work, sizes, live = list[Counter[str]](), list[tuple[int, int]](), list[int]()
    for _ in range(BATCHES // PART):
        storage.work.clear()
        assert cluster.run(PART) == PART
        work.append(Counter(storage.work))
        sizes.append((size_of(tmp_path / "checkpoint"), size_of(tmp_path / "state")))
        live.append(sum(len(key) + len(value) for rows in cluster.stores().values() for key, value in rows))
    cluster.close()
    assert max(live[1:]) < 1.2 * live[1]
    for what in work[1]:
        assert max(part[what] for part in work[2:]) <= 1.2 * work[1][what] + PART // 10, (what, work)
    for place in (0, 1):
        assert max(size[place] for size in sizes[2:]) <= 1.5 * sizes[1][place], sizes
