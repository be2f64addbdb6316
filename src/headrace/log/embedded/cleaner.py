"""Cleaning a log from time to time: retention, compaction, and what crashes left behind."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress

from headrace.errors import OffsetOutOfRangeError, StreamsError, UnknownTopicError
from headrace.log.embedded import chunks, database, deduplication, retention
from headrace.log.embedded.compaction import Cleaner
from headrace.log.embedded.group_commit import GroupCommit
from headrace.log.embedded.reader import Reader
from headrace.log.embedded.writer_lock import WriterLock

_PRODUCERS_MS = 86_400_000  # after which an idle producer's last append can no longer be repeated
_log = logging.getLogger(__name__)


class LogCleaner:
    """All cleaning of one log; one object per directory and process: `sharing` sees to it."""

    def __init__(self, reader: Reader, commits: GroupCommit) -> None:
        self._reader, self._commits = reader, commits
        self._database, self._files, self._seen_by = reader.database, reader.files, reader.seen_by
        self._thread: threading.Thread | None = None
        self._busy = threading.Lock()
        self._stopped = False

    def in_background(self, now: int, every: int) -> None:
        """Does it in a thread that ends by itself, unless somebody did so less than `every` ms ago.

        What it finds damaged is in the program's log.
        """
        if (self._thread is None or not self._thread.is_alive()) and not self._stopped:
            thread = threading.Thread(target=self._quietly, args=(now, every), name="headrace-log-upkeep")
            with suppress(RuntimeError):  # the program is about to end
                thread.start()
                self._thread = thread

    def stop(self) -> None:
        """Ends the thread as soon as the step is done that it is at."""
        self._stopped = True
        if self._thread is not None:
            self._thread.join()

    def clean(self, now: int, *, fully: bool) -> None:
        """Everything that is due; `fully` also what would not pay yet. One process at a time does it."""
        with self._busy, self._database.translated():
            turns = WriterLock(self._database.directory / "cleaning")
            try:
                if fully:
                    with turns.turn():
                        self._clean(now, fully=True)
                elif turns.attempt():
                    self._clean(now, fully=False)
            finally:
                turns.close()

    def sweep(self) -> None:
        """Deletes all chunks that nobody can read, and their files."""
        while self._go_on():
            with self._database.reading() as connection:
                if not retention.dead_chunks(connection, self._seen_by(connection)):
                    return
            self._files.remove(self._commits(self._sweep_some))

    def _sweep_some(self, connection: sqlite3.Connection) -> list[str]:
        return chunks.delete_chunks(connection, retention.dead_chunks(connection, self._seen_by(connection)))

    def cleaned_at(self) -> int:
        """When it was done last; 0 if never."""
        with self._database.reading() as connection:
            return database.meta(connection, "cleaned")[0]

    def _go_on(self) -> bool:
        return not self._stopped

    def _quietly(self, now: int, every: int) -> None:
        try:
            if not 0 <= now - self.cleaned_at() < every:
                self.clean(now, fully=False)
        except StreamsError:
            _log.exception("the log in %s could not be cleaned", self._database.directory)

    def _clean(self, now: int, *, fully: bool) -> None:
        with self._database.reading() as connection:
            topics = self._seen_by(connection).topics
        for name, entry in topics.items():
            self._attempt(lambda name=name: self._expire(name, now))
            cleaner = Cleaner(self._reader, self._commits, name, entry, now)
            for number in range(entry.partitions):
                self._attempt(
                    lambda cleaner=cleaner, number=number: cleaner.clean(number, fully=fully, go_on=self._go_on)
                )
        self.sweep()
        retention.remove_abandoned(self._commits, self._files, now / 1000)
        self._commits(lambda connection: deduplication.forget_producers(connection, now - _PRODUCERS_MS))
        while self._go_on() and self._commits(retention.shrink):
            pass
        self._commits(lambda connection: database.put_meta(connection, "cleaned", now, b""))

    def _expire(self, name: str, now: int) -> None:
        """Moves earliest offsets on."""

        def write(connection: sqlite3.Connection) -> None:
            entry = self._seen_by(connection).topic(name)
            for number, earliest in retention.expired(connection, entry, now).items():
                retention.truncate(connection, chunks.partition(connection, entry.number, number), earliest)

        with self._database.reading() as connection:
            is_due = bool(retention.expired(connection, self._seen_by(connection).topic(name), now))
        if is_due:
            self._commits(write)

    def _attempt(self, step: Callable[[], object]) -> None:
        """A step for a topic that may be deleted, or lose records, at the same time."""
        if self._go_on():
            try:
                step()
            except (UnknownTopicError, OffsetOutOfRangeError):
                _log.debug("a topic changed while it was cleaned", exc_info=True)
