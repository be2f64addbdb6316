"""The cleaner: deletes expired records (retention), runs compaction, and removes what crashes left behind.

Expiry only moves the earliest offset of a partition. Afterwards the chunks before it are deleted.
`FileLog` starts it in the background, at most once a minute, while records are appended. `FileLog.clean` runs it now.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress

from headrace.errors import OffsetOutOfRangeError, StreamsError, UnknownTopicError
from headrace.log.embedded import chunks
from headrace.log.embedded.append import delete_idle_producers
from headrace.log.embedded.chunks import ChunkFiles, PartitionRow
from headrace.log.embedded.compaction import Compactor
from headrace.log.embedded.database import WriterLock
from headrace.log.embedded.group_commit import GroupCommit
from headrace.log.embedded.reader import ChunkReader
from headrace.log.embedded.schema import put_meta, read_meta
from headrace.log.embedded.topics import TopicEntry
from headrace.log.topic_config import TopicConfig

_IDLE_PRODUCER_MS = 86_400_000  # after which a producer is forgotten, and its last append cannot be repeated
_MAX_CHUNKS = 200  # deleted in one transaction, so that writers do not wait long
_MAX_PAGES = 2000  # returned to the file system in one transaction
ABANDONED_AFTER = 600.0  # seconds after which a file that no row refers to counts as left behind by a crash
_log = logging.getLogger(__name__)


class LogCleaner:
    """Cleans one log. A process must have one object for each directory (`file_log` ensures it)."""

    def __init__(self, reader: ChunkReader, commits: GroupCommit) -> None:
        self._reader, self._commits = reader, commits
        self._database, self._files = reader.database, reader.files
        self._thread: threading.Thread | None = None
        self._busy, self._starting = threading.Lock(), threading.Lock()
        self._is_stopped = False

    def start(self, now: int, interval: int) -> None:
        """Cleans in a thread, unless a process did so less than `interval` ms ago. Errors go to the program's log."""
        with self._starting:  # so that `stop` joins every thread that was started
            if self._is_stopped or (self._thread is not None and self._thread.is_alive()):
                return
            thread = threading.Thread(target=self._clean_if_due, args=(now, interval), name="headrace-log-cleaner")
            with suppress(RuntimeError):  # the interpreter is shutting down
                thread.start()
                self._thread = thread

    def stop(self) -> None:
        """Ends the thread after its current step."""
        with self._starting:
            self._is_stopped = True
        if self._thread is not None:
            self._thread.join()

    def clean(self, now: int, *, fully: bool) -> None:
        """Cleans the log, unless another process is cleaning it. With `fully`, waits for that one, and compacts all."""
        with self._busy, self._database.translate_errors():
            lock = WriterLock(self._database.directory / "cleaning")
            try:
                if fully:
                    with lock.hold():
                        self._clean(now, fully=True)
                elif lock.try_acquire():
                    self._clean(now, fully=False)
            finally:
                lock.close()

    def delete_unreadable_chunks(self) -> None:
        """Deletes the chunks of deleted topics and before earliest offsets, and their files."""

        def find(connection: sqlite3.Connection) -> list[chunks.ChunkRow]:
            return chunks.find_unreadable_chunks(connection, self._database.catalog(connection), _MAX_CHUNKS)

        while not self._is_stopped:
            with self._database.reading() as connection:
                if not find(connection):
                    return
            self._files.remove(self._commits.run(lambda connection: chunks.delete_chunks(connection, find(connection))))

    def last_cleaned(self) -> int:
        """Returns when the log was cleaned last; 0 if never."""
        with self._database.reading() as connection:
            return read_meta(connection, "cleaned")[0]

    def _clean_if_due(self, now: int, interval: int) -> None:
        try:
            with self._database.translate_errors():
                is_due = not 0 <= now - self.last_cleaned() < interval
            if is_due:
                self.clean(now, fully=False)
        except StreamsError:
            _log.exception("the log in %s could not be cleaned", self._database.directory)

    def _clean(self, now: int, *, fully: bool) -> None:
        with self._database.reading() as connection:
            topics = self._database.catalog(connection).topics
        for name, entry in topics.items():
            self._try(lambda name=name: self._expire(name, now))
            compactor = Compactor(self._reader, self._commits, name, entry, now)
            for number in range(entry.partitions):
                self._try(
                    lambda compactor=compactor, number=number: compactor.clean(
                        number, fully=fully, is_stopped=lambda: self._is_stopped
                    )
                )
        self.delete_unreadable_chunks()
        remove_abandoned_files(self._commits, self._files, now / 1000)
        self._commits.run(lambda connection: delete_idle_producers(connection, now - _IDLE_PRODUCER_MS))
        while not self._is_stopped and self._commits.run(shrink_database):
            pass
        self._commits.run(lambda connection: put_meta(connection, "cleaned", now, b""))

    def _expire(self, name: str, now: int) -> None:
        def find(connection: sqlite3.Connection) -> list[tuple[chunks.PartitionRow, int]]:
            return find_expired(connection, self._database.catalog(connection).topic(name), now)

        def write(connection: sqlite3.Connection) -> None:
            for row, earliest in find(connection):
                chunks.truncate_partition(connection, row, earliest)

        with self._database.reading() as connection:
            is_due = bool(find(connection))
        if is_due:
            self._commits.run(write)

    def _try(self, step: Callable[[], object]) -> None:
        """Runs a step for a topic that may be deleted, or lose records, at the same time."""
        if not self._is_stopped:
            try:
                step()
            except (UnknownTopicError, OffsetOutOfRangeError):
                _log.debug("a topic changed while it was cleaned", exc_info=True)


# -------------------------------------------------------------------------------------------------------- retention
def find_expired(connection: sqlite3.Connection, entry: TopicEntry, now: int) -> list[tuple[PartitionRow, int]]:
    """Returns the partitions of a topic that have expired records, with their new earliest offsets."""
    config = entry.parsed_config
    if not config.deletes or (config.retention_ms < 0 and config.retention_bytes < 0):
        return []
    found = [(row, _new_earliest(connection, row, config, now)) for row in chunks.read_partitions(connection, entry)]
    return [(row, earliest) for row, earliest in found if earliest > row.earliest]


def _new_earliest(connection: sqlite3.Connection, row: PartitionRow, config: TopicConfig, now: int) -> int:
    """Expires whole chunks, as Kafka expires segments: by the newest timestamp, or if enough bytes remain."""
    size, earliest = 0, row.earliest
    if config.retention_bytes >= 0:
        size = sum(chunk.size for chunk in chunks.read_chunks(connection, *row[:2], row.earliest))
    for chunk in chunks.read_chunks(connection, *row[:2], row.earliest):
        is_old = 0 <= config.retention_ms < now - chunk.last_time
        is_surplus = 0 <= config.retention_bytes <= size - chunk.size
        if not (is_old or is_surplus):
            break
        size, earliest = size - chunk.size, chunk.end
    return earliest


def shrink_database(connection: sqlite3.Connection) -> bool:
    """Returns some free pages to the file system; True if there may be more.

    A quarter of the pages stays free, because the log will need them again soon.
    """
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    surplus = free - pages // 4
    if surplus <= 0:
        return False
    for _ in range(min(surplus, _MAX_PAGES)):  # Python's sqlite3 ends the statement after the first page
        connection.execute("PRAGMA incremental_vacuum(1)")
    return surplus > _MAX_PAGES


def remove_abandoned_files(commits: GroupCommit, files: ChunkFiles, now: float) -> None:
    """Deletes files that no row refers to: their writer crashed or failed before its commit.

    This runs in a write transaction, so that a late writer finds its file missing before it commits, and raises.
    """
    if candidates := files.written_before(now - ABANDONED_AFTER):
        commits.run(lambda connection: files.remove(candidates - chunks.chunk_file_names(connection)))
