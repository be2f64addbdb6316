"""Compaction keeps the last record of every key. In topics that are not compacted, it merges small chunks.

A partition is rewritten run by run: adjacent chunks become one chunk that covers the same offsets. A run is read
without holding the writer lock, and replaced in one transaction if its chunks are still the same.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.log.chunk_format import pack
from headrace.log.embedded import chunks
from headrace.log.embedded.chunks import ChunkRow, PackedChunk, PartitionRow
from headrace.log.embedded.group_commit import GroupCommit
from headrace.log.embedded.reader import ChunkReader
from headrace.log.embedded.topics import TopicEntry
from headrace.log.protocol import Chunk, LogRow, Records
from headrace.model.ids import TopicPartition

_RUN_BYTES, _RUN_ROWS = 1 << 20, 256  # of one run
_SMALL = 64 << 10  # bytes: smaller chunks are merged with their neighbours
_MAX_KEYS = 1_000_000  # in memory; a partition with more is compacted in several passes
_MIN_DIRTY_RATIO = 0.5  # of a partition's bytes, as Kafka's min.cleanable.dirty.ratio


@dataclass(frozen=True, slots=True)
class Compactor:
    """Compacts or merges the partitions of one topic."""

    reader: ChunkReader
    commits: GroupCommit
    name: str
    entry: TopicEntry
    now: int

    def clean(self, number: int, *, fully: bool, is_stopped: Callable[[], bool]) -> None:
        """Compacts or merges a partition. Unless `fully`, it compacts only if enough of it is dirty."""
        at = TopicPartition(self.name, number)
        compacts = self.entry.parsed_config.compacts
        while not is_stopped():
            with self.reader.database.reading() as connection:
                if not self._exists(connection):
                    return
                row = chunks.read_partition(connection, self.entry.number, number)
                start = row.earliest if compacts else row.cleaned
                rows = list(chunks.read_chunks(connection, row.topic, number, start))
            if not compacts:
                self._merge(at, row, rows)
                return
            if not self._is_due(row, rows, fully=fully) or not row.cleaned < self._compact(at, row, rows) < row.end:
                return

    def _exists(self, connection: sqlite3.Connection) -> bool:
        """Returns False if the topic was deleted, even if there is a new topic of the same name."""
        entry = self.reader.database.catalog(connection).topics.get(self.name)
        return entry is not None and entry.number == self.entry.number

    def _set_cleaned(self, row: PartitionRow, end: int) -> None:
        def write(connection: sqlite3.Connection) -> None:
            if self._exists(connection):
                current = chunks.read_partition(connection, row.topic, row.partition)
                chunks.put_partition(connection, current._replace(cleaned=max(current.cleaned, end)))

        self.commits.run(write)

    # ---------------------------------------------------------------------------------------------------- compact
    def _is_due(self, row: PartitionRow, rows: list[ChunkRow], *, fully: bool) -> bool:
        dirty = sum(chunk.size for chunk in rows if chunk.end > row.cleaned)
        is_dirty = dirty > 0 and (fully or dirty >= _MIN_DIRTY_RATIO * sum(chunk.size for chunk in rows))
        return is_dirty or any(chunk.horizon is not None and chunk.horizon <= self.now for chunk in rows)

    def _compact(self, at: TopicPartition, row: PartitionRow, rows: list[ChunkRow]) -> int:
        """Removes all records that have a newer one of the same key. Returns the offset up to which this is done."""
        newest: dict[bytes | None, int] = {}
        end = row.end
        for chunk in self.reader.read(at, row.cleaned, row.end):
            newest.update(zip(chunk.records.keys, chunk.offsets, strict=True))
            if len(newest) >= _MAX_KEYS:
                end = chunk.offsets[-1] + 1
                break
        for run in _split_runs([chunk for chunk in rows if chunk.base < end]):
            horizon = run[0].horizon
            is_over = horizon is not None and horizon <= self.now

            def is_kept(record: LogRow, *, is_over: bool = is_over) -> bool:
                return record[0] >= newest.get(record[1], -1) and not (is_over and record[2] is None)

            if not self._rewrite(at, run, is_kept, self._new_horizon() if horizon is None else horizon):
                return row.cleaned
        self._set_cleaned(row, end)
        return end

    def _new_horizon(self) -> int:
        """Returns the time until which tombstones are kept that are compacted for the first time.

        The time is rounded up, because only chunks of the same horizon can be merged.
        """
        wait = self.entry.parsed_config.delete_retention_ms
        step = max(wait // 8, 1)
        return -(-(self.now + wait) // step) * step

    # ------------------------------------------------------------------------------------------------------ merge
    def _merge(self, at: TopicPartition, row: PartitionRow, rows: list[ChunkRow]) -> None:
        """Merges small chunks; each record is rewritten once. The last few chunks wait until there are more of them."""
        end = row.cleaned
        runs = list(_split_runs([chunk for chunk in rows if chunk.base >= row.cleaned], keep=_SMALL))
        for i, run in enumerate(runs, 1):
            is_growing = i == len(runs) and run[0].size < _SMALL and len(run) < _RUN_ROWS // 4
            if is_growing or (len(run) > 1 and not self._rewrite(at, run, lambda _: True, None)):
                break
            end = run[-1].end
        if end > row.cleaned:
            self._set_cleaned(row, end)

    # ---------------------------------------------------------------------------------------------------- rewrite
    def _rewrite(
        self, at: TopicPartition, run: list[ChunkRow], is_kept: Callable[[LogRow], bool], horizon: int | None
    ) -> bool:
        """Replaces a run by one chunk of the records that are kept. Returns False if the run has changed meanwhile."""
        try:
            before = [record for chunk in self._read(at, run) for record in chunk.rows()]
        except FileNotFoundError:
            return False
        after = [record for record in before if is_kept(record)]
        if all(record[2] is not None for record in after):
            horizon = None
        if len(run) == 1 and len(after) == len(before) and horizon == run[0].horizon:
            return True
        offsets = None if len(after) == run[-1].end - run[0].base else [record[0] for record in after]
        packed = pack(Records.from_rows([record[1:] for record in after]), offsets)
        chunk = PackedChunk.create(packed, self.reader.files)
        removed = self.commits.run(lambda connection: _replace(connection, run, chunk, horizon))
        if removed is None:
            return False
        self.reader.files.remove(removed)
        return True

    def _read(self, at: TopicPartition, run: list[ChunkRow]) -> Iterator[Chunk]:
        """Reads all of a run, including records before the earliest offset."""
        first, last = run[0], run[-1]
        with self.reader.database.reading() as connection:
            found = list(chunks.read_packed_chunks(connection, *first[:3], last.end))
        return (self.reader.unpack(row, packed, at) for row, packed in found)


def _split_runs(rows: list[ChunkRow], keep: int = _RUN_BYTES) -> Iterator[list[ChunkRow]]:
    """Splits chunks into runs of the same horizon and a limited size. A chunk of `keep` bytes or more stays alone."""
    run: list[ChunkRow] = []
    size = 0
    for row in rows:
        is_full = size + row.size > _RUN_BYTES or len(run) >= _RUN_ROWS
        if run and (is_full or row.horizon != run[0].horizon or max(row.size, run[-1].size) >= keep):
            yield run
            run, size = [], 0
        run.append(row)
        size += row.size
    if run:
        yield run


def _replace(
    connection: sqlite3.Connection, run: list[ChunkRow], chunk: PackedChunk, horizon: int | None
) -> list[str] | None:
    """Returns the names of the files to remove; None if the run is no longer what was read."""
    first, end = run[0], run[-1].end
    if run != [row for row in chunks.read_chunks(connection, *first[:3]) if row.base < end]:
        return None
    names = chunks.delete_chunks(connection, run)
    chunks.put_chunk(connection, chunk, *first[:3], end, horizon=horizon)
    return names
