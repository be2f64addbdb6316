"""The embedded log: a directory on one machine, for any number of processes on it.

All `FileLog` objects of a process that use the same directory share one `LogDirectory`. So they can commit together,
and the process opens the writer lock only once, as the lock requires.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path

from headrace.directories import check_directory, create_directory
from headrace.errors import LogUnavailableError
from headrace.log.embedded import chunks, consumer_groups, topics
from headrace.log.embedded.append import Append, new_producer, prepare, put_marker, read_marker, store_appends
from headrace.log.embedded.chunks import ChunkFiles
from headrace.log.embedded.cleaner import LogCleaner
from headrace.log.embedded.database import Database, unavailable
from headrace.log.embedded.group_commit import GroupCommit
from headrace.log.embedded.reader import ChunkReader, find_damage
from headrace.log.embedded.topics import Catalog
from headrace.log.protocol import BaseLog, Chunk, Extent, Group, Item, Membership, ProducerSequence, Topic
from headrace.log.validation import check_deletion, check_range, check_topic_ids, is_next_batch
from headrace.model.clock import Clock
from headrace.model.ids import TopicPartition


class LogDirectory:
    """An open directory of this process, and how many `FileLog` objects use it."""

    def __init__(self, directory: Path) -> None:
        self.database = Database(directory)
        self.commits = GroupCommit(self.database)
        self.files = ChunkFiles(directory / "chunks")
        self.reader = ChunkReader(self.database, self.files)
        self.cleaner = LogCleaner(self.reader, self.commits)
        self.users = 0

    def store(self, connection: sqlite3.Connection, appends: list[Append]) -> list[list[int]]:
        return store_appends(connection, self.database.catalog(connection), self.files, appends)


_locks: dict[int, threading.Lock] = {}  # by process: a lock may be held at the moment of a fork
_open_directories: dict[tuple[int, int, int], LogDirectory] = {}  # by process, and device and inode of the directory


def _lock() -> threading.Lock:
    return _locks.setdefault(os.getpid(), threading.Lock())


def acquire_directory(directory: Path) -> LogDirectory:
    """Opens a directory, which is created if it does not exist, or shares it if it is open."""
    try:
        create_directory(directory, durable=True)
        check_directory(directory)
        found = directory.stat()
    except FileExistsError:
        raise LogUnavailableError(f"{directory} is a file: a log needs a directory of its own") from None
    except OSError as error:
        raise unavailable(directory, error) from error
    key = (os.getpid(), found.st_dev, found.st_ino)
    with _lock():
        if key not in _open_directories:
            _open_directories[key] = LogDirectory(directory)
        _open_directories[key].users += 1
        return _open_directories[key]


def release_directory(directory: LogDirectory) -> None:
    """Closes a directory after its last user."""
    with _lock():
        directory.users -= 1
        if directory.users == 0:
            for key in [key for key, other in _open_directories.items() if other is directory]:
                del _open_directories[key]
            directory.cleaner.stop()
            directory.database.close()


class FileLog(BaseLog[LogDirectory]):
    """A log in a directory, which is created if it does not exist. `Log` documents the methods.

    >>> import tempfile
    >>> from headrace.log.protocol import Records
    >>> orders = TopicPartition("orders", 0)
    >>> with tempfile.TemporaryDirectory() as directory, FileLog(directory) as log:
    ...     _ = log.create_topic("orders")
    ...     _ = log.append([(orders, Records([b"k"], [b"v"], [10]))])
    ...     [row for chunk in log.read(orders, 0) for row in chunk.rows()]
    [(0, b'k', b'v', 10, ())]
    """

    stores_chunks = True

    def __init__(
        self,
        directory: Path | str,
        *,
        clock: Clock | None = None,
        clean_every: int | None = 60_000,
        pause: Callable[[float], None] | None = None,
    ) -> None:
        """`clean_every`: ms between cleanings in the background while records are appended; None: only `clean` cleans.

        `pause` sleeps for a number of seconds; the default also returns when the same process commits.
        """
        self.directory = Path(directory).absolute()
        self._clean_every, self._pause = clean_every, pause
        super().__init__(clock)
        self._clean_at = self._resources.cleaner.last_cleaned() + (clean_every or 0)

    @property
    def url(self) -> str:
        return f"file:{self.directory}"

    def __reduce__(self) -> tuple[Callable[..., FileLog], tuple[str]]:
        return FileLog, (str(self.directory),)

    def _open(self) -> LogDirectory:
        return acquire_directory(self.directory)

    def _close(self, resources: LogDirectory) -> None:
        release_directory(resources)

    @contextmanager
    def _snapshot(self) -> Generator[tuple[sqlite3.Connection, Catalog]]:
        database = self._resources.database
        with database.reading() as connection:
            yield connection, database.catalog(connection)

    # ---------------------------------------------------------------------------------------------------- topics
    def topics(self) -> Mapping[str, Topic]:
        with self._snapshot() as (_, catalog):
            return {name: catalog.topics[name].describe(name) for name in sorted(catalog.topics)}

    def topic(self, name: str) -> Topic:
        with self._snapshot() as (_, catalog):
            return catalog.topic(name).describe(name)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str | int] | None = None,
        *,
        replication_factor: int | None = None,
    ) -> Topic:
        if replication_factor not in (None, 1, -1):
            raise ValueError(
                f"the topic {name!r} cannot have {replication_factor!r} copies: the embedded log is one directory on "
                "one machine. Leave the replication factor out, or use a Kafka log"
            )
        return self._change_topic(name, lambda catalog: topics.create_topic(catalog, name, partitions, config or {}))

    def add_partitions(self, name: str, partitions: int) -> Topic:
        return self._change_topic(name, lambda catalog: topics.add_partitions(catalog, name, partitions))

    def alter_config(self, name: str, config: Mapping[str, str | int | None]) -> Topic:
        return self._change_topic(name, lambda catalog: topics.alter_config(catalog, name, config))

    def _change_topic(self, name: str, change: Callable[[Catalog], Catalog]) -> Topic:
        resources = self._resources

        def write(connection: sqlite3.Connection) -> Topic:
            before = resources.database.catalog(connection)
            after = change(before)
            topics.save_catalog(connection, after)
            chunks.create_partitions(connection, before.topics.get(name), after.topics[name])
            return after.topics[name].describe(name)

        return resources.commits.run(write)

    def delete_topic(self, name: str) -> None:
        resources = self._resources

        def write(connection: sqlite3.Connection) -> None:
            before = resources.database.catalog(connection)
            topics.save_catalog(connection, topics.delete_topic(before, name))
            chunks.delete_partitions(connection, before.topics[name])

        resources.commits.run(write)
        resources.cleaner.delete_unreadable_chunks()

    # --------------------------------------------------------------------------------------------------- records
    def extents(self, topics: Sequence[str]) -> dict[TopicPartition, Extent]:
        with self._snapshot() as (connection, catalog):
            return {
                TopicPartition(name, row.partition): row.extent
                for name in topics
                for row in chunks.read_partitions(connection, catalog.topic(name))
            }

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return {at: self._resources.reader.offset_for_time(at, time) for at, time in times.items()}

    def confirm_topics(self, ids: Mapping[str, str]) -> Callable[[], dict[str, int]]:
        return lambda: check_topic_ids(ids, self.topic)

    def read(
        self,
        at: TopicPartition,
        start: int,
        end: int | None = None,
        *,
        topic_id: str | None = None,
        has_more: bool | None = None,
    ) -> Iterator[Chunk]:
        at = TopicPartition(*at)
        extent = self._resources.reader.extent(at, topic_id)
        end = extent.end if end is None else end
        check_range(at, extent, start, end)
        return self._resources.reader.read(at, start, end, topic_id)

    def append(self, items: Sequence[Item], *, sequence: ProducerSequence | None = None) -> list[int]:
        resources, now = self._resources, self._clock.now()
        append = Append(prepare(items, resources.files), now, sequence)
        offsets = resources.commits.run_together(resources.store, append)
        self._clean_if_due(now)
        return offsets

    def new_producer(self) -> int:
        now = self._clock.now()
        return self._resources.commits.run(lambda connection: new_producer(connection, now))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        resources = self._resources

        def write(connection: sqlite3.Connection) -> dict[TopicPartition, int]:
            catalog, earliest = resources.database.catalog(connection), dict[TopicPartition, int]()
            for at, offset in before.items():
                row = chunks.read_partition(connection, catalog.topic_of(at).number, at.partition)
                check_deletion(at, row.extent, offset)
                earliest[at] = chunks.truncate_partition(connection, row, row.end if offset == -1 else offset)
            return earliest

        earliest = resources.commits.run(write)
        resources.cleaner.delete_unreadable_chunks()
        return earliest

    def wait(self, positions: Mapping[TopicPartition, int], timeout: int) -> bool:
        return self._wait(positions, timeout, self._pause or self._resources.database.wait_for_commit)

    # ------------------------------------------------------------------------------------------------ deliveries
    def deliver(self, application: str, number: int, items: Sequence[Item]) -> bool:
        resources, now = self._resources, self._clock.now()
        append = Append(prepare(items, resources.files), now)

        def write(connection: sqlite3.Connection) -> bool:
            is_new = is_next_batch(application, number, read_marker(connection, application))
            if is_new:
                resources.store(connection, [append])
                put_marker(connection, application, number)
            return is_new

        is_new = resources.commits.run(write)
        self._clean_if_due(now)
        return is_new

    def begin_delivery(self, application: str, number: int, items: Sequence[Item]) -> Callable[[], None]:
        self.deliver(application, number, items)
        return lambda: None

    def delivered(self, application: str) -> int:
        with self._snapshot() as (connection, _):
            return read_marker(connection, application)

    def mark_delivered(self, application: str, number: int | None) -> None:
        self._resources.commits.run(lambda connection: put_marker(connection, application, number))

    # ---------------------------------------------------------------------------------------------------- groups
    def groups(self) -> Mapping[str, Group]:
        now = self._clock.now()
        with self._snapshot() as (connection, catalog):
            states = consumer_groups.load_all(connection)
            return {group: consumer_groups.describe(group, state, catalog, now) for group, state in states.items()}

    def committed(self, group: str) -> dict[TopicPartition, int]:
        with self._snapshot() as (connection, catalog):
            return consumer_groups.committed_offsets(consumer_groups.load(connection, group), catalog)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], *, member: str | None = None) -> None:
        resources, now = self._resources, self._clock.now()

        def write(connection: sqlite3.Connection) -> None:
            state, catalog = consumer_groups.load(connection, group), resources.database.catalog(connection)
            consumer_groups.commit(group, state, catalog, offsets, member, now)
            consumer_groups.save(connection, group, state)

        resources.commits.run(write)

    def delete_group(self, group: str) -> None:
        now = self._clock.now()
        self._resources.commits.run(lambda connection: consumer_groups.delete(connection, group, now))

    def join(
        self, group: str, member: str, topics: Sequence[str], holding: AbstractSet[TopicPartition], lease: int
    ) -> Membership:
        now, database = self._clock.now(), self._resources.database
        # Not durable: a power failure ends all leases anyway.
        with database.writing(durable=False) as connection:
            state = consumer_groups.load(connection, group)
            catalog = database.catalog(connection)
            membership = consumer_groups.join(state, catalog, member, topics, holding, now, lease)
            consumer_groups.save(connection, group, state)
            return membership

    def leave(self, group: str, member: str) -> None:
        with self._resources.database.writing(durable=False) as connection:
            consumer_groups.leave(connection, group, member)

    # -------------------------------------------------------------------------------------------------- cleaning
    def clean(self) -> None:
        """Runs retention and compaction now, and removes what crashes left behind."""
        self._resources.cleaner.clean(self._clock.now(), fully=True)

    def verify(self) -> list[str]:
        """Reads everything. Returns a sentence for each damaged part."""
        return find_damage(self._resources.reader)

    def _clean_if_due(self, now: int) -> None:
        if self._clean_every is not None and now >= self._clean_at:
            self._clean_at = now + self._clean_every
            self._resources.cleaner.start(now, self._clean_every)
