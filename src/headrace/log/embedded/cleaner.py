"""The cleaner: runs retention and compaction, and removes what crashes left behind.

`FileLog` starts it in the background, at most once a minute, while records are appended. `FileLog.clean` runs it now.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress

from headrace.errors import OffsetOutOfRangeError, StreamsError, UnknownTopicError
from headrace.log.embedded import chunks, retention
from headrace.log.embedded.append import delete_idle_producers
from headrace.log.embedded.compaction import Compactor
from headrace.log.embedded.group_commit import GroupCommit
from headrace.log.embedded.reader import ChunkReader
from headrace.log.embedded.schema import put_meta, read_meta
from headrace.log.embedded.writer_lock import WriterLock

_IDLE_PRODUCER_MS = 86_400_000  # after which a producer is forgotten, and its last append cannot be repeated
_MAX_CHUNKS = 200  # that one transaction deletes, so that writers do not wait long
_log = logging.getLogger(__name__)


class LogCleaner:
    """Cleans one log. A process must have one object for each directory (`file_log` ensures it)."""

    def __init__(self, reader: ChunkReader, commits: GroupCommit) -> None:
        self._reader, self._commits = reader, commits
        self._database, self._files = reader.database, reader.files
        self._thread: threading.Thread | None = None
        self._busy = threading.Lock()
        self._is_stopped = False

    def start(self, now: int, interval: int) -> None:
        """Cleans in a thread, unless a process did so less than `interval` ms ago. Errors go to the program's log."""
        if (self._thread is None or not self._thread.is_alive()) and not self._is_stopped:
            thread = threading.Thread(target=self._clean_if_due, args=(now, interval), name="headrace-log-cleaner")
            with suppress(RuntimeError):  # the interpreter is shutting down
                thread.start()
                self._thread = thread

    def stop(self) -> None:
        """Ends the thread after its current step."""
        self._is_stopped = True
        if self._thread is not None:
            self._thread.join()

    def clean(self, now: int, *, fully: bool) -> None:
        """Cleans the log, unless another process does so; with `fully`, waits for it, and compacts all there is."""
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
            if not 0 <= now - self.last_cleaned() < interval:
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
        retention.remove_abandoned_files(self._commits, self._files, now / 1000)
        self._commits.run(lambda connection: delete_idle_producers(connection, now - _IDLE_PRODUCER_MS))
        while not self._is_stopped and self._commits.run(retention.shrink_database):
            pass
        self._commits.run(lambda connection: put_meta(connection, "cleaned", now, b""))

    def _expire(self, name: str, now: int) -> None:
        def find(connection: sqlite3.Connection) -> list[tuple[chunks.PartitionRow, int]]:
            return retention.find_expired(connection, self._database.catalog(connection).topic(name), now)

        def write(connection: sqlite3.Connection) -> None:
            for row, earliest in find(connection):
                retention.truncate(connection, row, earliest)

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
