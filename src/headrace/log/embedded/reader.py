"""Reading chunks: nothing is handed out that does not match its checksum, or that leaves a hole.

Waiting for records: look, pause, look again.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from headrace.errors import LogCorruptedError, OffsetOutOfRangeError, StateCorruptedError, UnknownTopicError
from headrace.log.embedded import chunks
from headrace.log.embedded.chunks import ChunkFiles, ChunkRow
from headrace.log.embedded.database import Database
from headrace.log.embedded.topics import Catalog
from headrace.log.protocol import Chunk, Extent, Log, Records, Topic
from headrace.log.records import digest_of, unpack
from headrace.model.clock import Clock
from headrace.model.ids import TopicPartition

_MOST_ROWS, _MOST_BYTES = 256, 4 << 20  # of one look into the database
Packed = tuple[ChunkRow, bytes | None]


@dataclass(frozen=True, slots=True)
class Reader:
    """What reading needs of a log."""

    database: Database
    files: ChunkFiles
    seen_by: Callable[[sqlite3.Connection], Catalog]  # the topics, as a transaction sees them

    def extent(self, at: TopicPartition, topic_id: str | None = None) -> Extent:
        with self.database.reading() as connection:
            row = _partition(connection, self.seen_by(connection), at, topic_id)
        return Extent(row.earliest, row.upto)

    def chunks(self, at: TopicPartition, start: int, end: int, topic_id: str | None = None) -> Iterator[Chunk]:
        """The records between two offsets that exist, chunk by chunk."""
        position = start
        missing: str | None = None
        while position < end:
            for row, packed in self._fetch(at, position, end, topic_id):
                try:
                    chunk = opened(row, self.packed(row, packed), at)
                except FileNotFoundError:
                    # Cleaned up since the row was read, if the next look shows other rows.
                    if row.file == missing:
                        raise self._lost(row, at) from None
                    missing = row.file
                    break
                part = between(chunk, position, end)
                position = row.upto
                if len(part):
                    yield part

    def _fetch(self, at: TopicPartition, position: int, end: int, topic_id: str | None) -> list[Packed]:
        """The chunks from a position on, as many as one look gives."""
        found: list[Packed] = []
        size, upto = 0, position
        with self.database.reading() as connection:
            place = _partition(connection, self.seen_by(connection), at, topic_id)
            check_range(at, Extent(place.earliest, place.upto), position, end)
            for row, packed in chunks.packed_chunks(connection, place.topic, place.partition, position, end):
                if (found and row.base != upto) or not row.base <= upto < row.upto:
                    break
                found.append((row, packed))
                size, upto = size + row.size, row.upto
                if size > _MOST_BYTES or len(found) == _MOST_ROWS:
                    break
        if not found or (upto < end and size <= _MOST_BYTES and len(found) < _MOST_ROWS):
            raise self._hole(at, upto, end)
        return found

    def packed(self, row: ChunkRow, packed: bytes | None) -> bytes | None:
        return self.files.read(row.file) if row.file is not None else packed

    def _lost(self, row: ChunkRow, at: TopicPartition) -> LogCorruptedError:
        path = self.files.directory / str(row.file)
        return damage(at, row.base, row.upto, f"the file {path} is missing", str(path))

    def _hole(self, at: TopicPartition, start: int, end: int) -> LogCorruptedError:
        path = str(self.database.path)
        return damage(at, start, end, f"{path} has no chunk that begins there", path)


def opened(row: ChunkRow, packed: bytes | None, at: TopicPartition) -> Chunk:
    """The records of a chunk, checked."""
    where = f"the file chunks/{row.file}" if row.file else "log.db"
    try:
        records, offsets = unpack(_expected(row, packed))
    except StateCorruptedError as error:
        raise damage(at, row.base, row.upto, f"{where} is damaged ({error})", row.file or "log.db") from None
    if row.stamped is not None:
        records = Records(records.keys, records.values, [row.stamped] * len(records), records.headers)
    return Chunk(range(row.base, row.upto) if offsets is None else offsets, records)


def _expected(row: ChunkRow, packed: object) -> bytes:
    """The bytes, if they are those that the row was written for; in a damaged database they may be anything."""
    if not isinstance(packed, bytes) or len(packed) != row.size or digest_of(packed) != row.digest:
        found = f"{len(packed)} other bytes" if isinstance(packed, bytes) else "no bytes"
        raise StateCorruptedError(f"{found} instead of the {row.size} that were written")
    return packed


def between(chunk: Chunk, start: int, end: int) -> Chunk:
    """The part of a chunk between two offsets.

    >>> between(Chunk([3, 7, 9], Records([b"a", b"b", b"c"], [b""] * 3, [0, 0, 0])), 4, 9).offsets
    [7]
    """
    low, high = bisect_left(chunk.offsets, start), bisect_left(chunk.offsets, end)
    if low == 0 and high == len(chunk.offsets):
        return chunk
    return Chunk(chunk.offsets[low:high], chunk.records.part(low, high))


def check_range(at: TopicPartition, extent: Extent, start: int, end: int) -> None:
    if not extent.earliest <= start <= end <= extent.end:
        raise OffsetOutOfRangeError(
            f"{at} has offsets {extent.earliest} to {extent.end}, not {start} to {end}: they were removed by retention "
            "or by hand, the topic was made anew, or they are not written yet",
            at=at, earliest=extent.earliest, end=extent.end,
        )  # fmt: skip


def check_ids(ids: Mapping[str, str], topic: Callable[[str], Topic]) -> None:
    """Raises if a topic is not the one that it was."""
    for name, wanted in ids.items():
        if (found := topic(name).id) != wanted:
            raise UnknownTopicError(f"the topic {name!r} was deleted and made anew: its id is {found}, not {wanted}")


def damage(at: TopicPartition, start: int, end: int, how: str, file: str) -> LogCorruptedError:
    return LogCorruptedError(
        f"topic {at.topic!r}, partition {at.partition}, offsets {start} to {end - 1}: {how}. Restore the log's "
        f"directory from a copy, or give up all records of the partition up to it: delete_records({{{at!r}: {end}}})",
        at=at, offsets=range(start, end), file=file,
    )  # fmt: skip


def _partition(
    connection: sqlite3.Connection, catalog: Catalog, at: TopicPartition, topic_id: str | None
) -> chunks.PartitionRow:
    entry = catalog.place(at)
    if topic_id is not None and entry.id != topic_id:
        raise UnknownTopicError(
            f"the topic {at.topic!r} was deleted and made anew: its id is {entry.id}, not {topic_id}"
        )
    return chunks.partition(connection, entry.number, at.partition)


# ------------------------------------------------------------------------------------------------------------ times
def offset_for_time(reader: Reader, at: TopicPartition, time: int) -> int | None:
    """The first offset whose record is at or after a time."""
    with reader.database.reading() as connection:
        place = _partition(connection, reader.seen_by(connection), at, None)
        rows = chunks.chunks(connection, place.topic, place.partition, place.earliest)
        first = next((row for row in rows if row.last_time >= time), None)
    if first is not None:
        for chunk in reader.chunks(at, max(first.base, place.earliest), place.upto):
            for offset, timestamp in zip(chunk.offsets, chunk.records.timestamps, strict=True):
                if timestamp >= time:
                    return offset
    return None


_FIRST_PAUSE, _LONGEST_PAUSE = 1, 20  # ms; a look takes 0.1


def wait(
    log: Log, positions: Mapping[TopicPartition, int], timeout: int, clock: Clock, pause: Callable[[float], None]
) -> bool:
    """Until there is a record at one of the positions; False if there is none in time."""
    deadline = clock.now() + timeout
    topics = sorted({at.topic for at in positions})
    length = _FIRST_PAUSE
    while True:
        extents = log.extents(topics)
        if any(extents[at].end > position for at, position in positions.items() if at in extents):
            return True
        left = deadline - clock.now()
        if left <= 0:
            return False
        pause(min(length, left) / 1000)
        length = min(2 * length, _LONGEST_PAUSE)
