"""Compaction: the last record of every key stays; and small chunks become large ones. Offsets do not change.

A partition is rewritten run by run: some chunks next to each other become one that covers the same offsets. It is read
without holding anybody up, and replaced in one transaction if the chunks are still the ones that were read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.log.embedded import chunks
from headrace.log.embedded.append import PackedChunk
from headrace.log.embedded.chunks import ChunkRow, PartitionRow
from headrace.log.embedded.group_commit import GroupCommit
from headrace.log.embedded.reader import Reader, opened
from headrace.log.embedded.topics import Entry
from headrace.log.protocol import Chunk, LogRow, Records
from headrace.log.records import pack
from headrace.model.ids import TopicPartition

_RUN_BYTES, _RUN_ROWS = 1 << 20, 256  # of one run
_SMALL = 64 << 10  # bytes of a chunk that is better merged with its neighbours
_MOST_KEYS = 1_000_000  # remembered at once; more of them are compacted in several rounds
_DIRTY_SHARE = 0.5  # of a partition's bytes: as Kafka's min.cleanable.dirty.ratio


@dataclass(frozen=True, slots=True)
class Cleaner:
    """What cleaning one topic needs."""

    reader: Reader
    commits: GroupCommit
    name: str
    entry: Entry
    now: int

    def clean(self, number: int, *, fully: bool, go_on: Callable[[], bool]) -> None:
        """Compacts or merges the chunks of a partition; unless `fully`, only if it pays."""
        at = TopicPartition(self.name, number)
        while go_on():
            with self.reader.database.reading() as connection:
                if not self._lives(connection):
                    return
                row = chunks.partition(connection, self.entry.number, number)
                start = row.earliest if self.entry.rules.compacts else row.cleaned
                rows = list(chunks.chunks(connection, row.topic, number, start))
            if not self.entry.rules.compacts:
                self._merge(at, row, rows)
                return
            if not self._pays(row, rows, fully=fully) or not row.cleaned < self._compact(at, row, rows) < row.upto:
                return

    def _lives(self, connection: sqlite3.Connection) -> bool:
        """Whether it still is the topic that was to be cleaned."""
        entry = self.reader.seen_by(connection).topics.get(self.name)
        return entry is not None and entry.number == self.entry.number

    def _set_cleaned(self, row: PartitionRow, upto: int) -> None:
        def write(connection: sqlite3.Connection) -> None:
            if self._lives(connection):
                now = chunks.partition(connection, row.topic, row.partition)
                chunks.put_partition(connection, now._replace(cleaned=max(now.cleaned, upto)))

        self.commits(write)

    # ---------------------------------------------------------------------------------------------------- compact
    def _pays(self, row: PartitionRow, rows: list[ChunkRow], *, fully: bool) -> bool:
        dirty = sum(chunk.size for chunk in rows if chunk.upto > row.cleaned)
        is_dirty = dirty > 0 and (fully or dirty >= _DIRTY_SHARE * sum(chunk.size for chunk in rows))
        return is_dirty or any(chunk.horizon is not None and chunk.horizon <= self.now for chunk in rows)

    def _compact(self, at: TopicPartition, row: PartitionRow, rows: list[ChunkRow]) -> int:
        """Takes out all records whose key comes again, up to where the keys of the dirty part can be remembered."""
        newest: dict[bytes | None, int] = {}
        upto = row.upto
        for chunk in self.reader.chunks(at, row.cleaned, row.upto):
            newest.update(zip(chunk.records.keys, chunk.offsets, strict=True))
            if len(newest) >= _MOST_KEYS:
                upto = chunk.offsets[-1] + 1
                break
        for run in _runs([chunk for chunk in rows if chunk.base < upto]):
            horizon = run[0].horizon
            is_over = horizon is not None and horizon <= self.now

            def stays(record: LogRow, *, is_over: bool = is_over) -> bool:
                return record[0] >= newest.get(record[1], -1) and not (is_over and record[2] is None)

            if not self._rewrite(at, run, stays, self._horizon() if horizon is None else horizon):
                return row.cleaned
        self._set_cleaned(row, upto)
        return upto

    def _horizon(self) -> int:
        """Until when tombstones stay that are met for the first time: so long that everybody sees them.

        Rounded up, since only chunks with the same horizon are put together.
        """
        wait = self.entry.rules.tombstones_ms
        step = max(wait // 8, 1)
        return -(-(self.now + wait) // step) * step

    # ------------------------------------------------------------------------------------------------------ merge
    def _merge(self, at: TopicPartition, row: PartitionRow, rows: list[ChunkRow]) -> None:
        """Makes large chunks of small ones, once for every record; the last few are left to become more."""
        upto = row.cleaned
        runs = list(_runs([chunk for chunk in rows if chunk.base >= row.cleaned], keep=_SMALL))
        for i, run in enumerate(runs, 1):
            is_growing = i == len(runs) and run[0].size < _SMALL and len(run) < _RUN_ROWS // 4
            if is_growing or (len(run) > 1 and not self._rewrite(at, run, lambda _: True, None)):
                break
            upto = run[-1].upto
        if upto > row.cleaned:
            self._set_cleaned(row, upto)

    # ---------------------------------------------------------------------------------------------------- rewrite
    def _rewrite(
        self, at: TopicPartition, run: list[ChunkRow], stays: Callable[[LogRow], bool], horizon: int | None
    ) -> bool:
        """Puts the records that stay in place of a run; False if the run has changed meanwhile."""
        try:
            before = [record for chunk in self._read(at, run) for record in chunk.rows()]
        except FileNotFoundError:
            return False
        after = [record for record in before if stays(record)]
        if all(record[2] is not None for record in after):
            horizon = None
        if len(run) == 1 and len(after) == len(before) and horizon == run[0].horizon:
            return True
        base, upto = run[0].base, run[-1].upto
        offsets = None if len(after) == upto - base else [record[0] for record in after]
        packed = pack(Records.of([record[1:] for record in after]), offsets)
        parcel = PackedChunk.of(packed, self.reader.files)
        chunk = ChunkRow(
            self.entry.number, at.partition, base, upto, parcel.label.last_time, None, horizon, parcel.size,
            parcel.digest, None, parcel.file,
        )  # fmt: skip
        removed = self.commits(lambda connection: _replace(connection, run, chunk, parcel.packed))
        if removed is None:
            return False
        self.reader.files.remove(removed)
        return True

    def _read(self, at: TopicPartition, run: list[ChunkRow]) -> Iterator[Chunk]:
        """All of a run, also what is before the earliest offset by now."""
        with self.reader.database.reading() as connection:
            found = list(chunks.packed_chunks(connection, run[0].topic, run[0].partition, run[0].base, run[-1].upto))
        return (opened(row, self.reader.packed(row, packed), at) for row, packed in found)


def _runs(rows: list[ChunkRow], keep: int = _RUN_BYTES) -> Iterator[list[ChunkRow]]:
    """Chunks next to each other, of the same horizon, as many as make a good one; those of `keep` bytes stay alone."""
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
    connection: sqlite3.Connection, run: list[ChunkRow], chunk: ChunkRow, packed: bytes | None
) -> list[str] | None:
    first = run[0]
    now = [row for row in chunks.chunks(connection, first.topic, first.partition, first.base) if row.base < chunk.upto]
    if now != run:
        return None
    names = chunks.delete_chunks(connection, run)
    chunks.put_chunk(connection, chunk, packed)
    return names
