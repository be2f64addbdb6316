"""One database per directory and process, so that all clients in a process commit together.

The embedded log: a directory on one machine, for any number of processes on it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.errors import GroupInUseError, LogUnavailableError, OffsetOutOfRangeError
from headrace.log.embedded import chunks, consumer_groups, deduplication, reader, retention, topics
from headrace.log.embedded.append import Append, prepared, store
from headrace.log.embedded.chunks import ChunkFiles
from headrace.log.embedded.cleaner import LogCleaner
from headrace.log.embedded.database import Database, unavailable
from headrace.log.embedded.group_commit import GroupCommit
from headrace.log.embedded.reader import Reader
from headrace.log.embedded.topics import Catalog, Topics
from headrace.log.embedded.verify import problems_of
from headrace.log.protocol import Chunk, Extent, Group, Item, Membership, Stamp, Topic
from headrace.model.clock import Clock, SystemClock
from headrace.model.ids import TopicPartition


class Shared:
    """All that the users of one directory have in common, and how many they are."""

    def __init__(self, directory: Path) -> None:
        self.database = Database(directory)
        self.commits = GroupCommit(self.database)
        self.files = ChunkFiles(directory / "chunks")
        self.topics = Topics()
        self.reader = Reader(self.database, self.files, self.topics.seen_by)
        self.upkeep = LogCleaner(self.reader, self.commits)
        self.users = 0

    def store(self, connection: sqlite3.Connection, appends: list[Append]) -> list[list[int]]:
        return store(connection, self.topics.seen_by(connection), appends, self.files)


_guards: dict[int, threading.Lock] = {}  # by process: one that was forked while the lock was held needs another
_open: dict[tuple[int, int, int], Shared] = {}  # by process, and by device and inode of the directory


def acquire(directory: Path) -> Shared:
    """The database of a directory, which is made if it is not there."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        place = directory.stat()
    except FileExistsError:
        raise LogUnavailableError(f"{directory} is a file: a log needs a directory of its own") from None
    except OSError as error:
        raise unavailable(directory, error) from error
    key = (os.getpid(), place.st_dev, place.st_ino)
    with _guard():
        if key not in _open:
            _open[key] = Shared(directory)
        _open[key].users += 1
        return _open[key]


def release(shared: Shared) -> None:
    """Closes the database after its last user."""
    with _guard():
        shared.users -= 1
        if shared.users == 0:
            for key in [key for key, other in _open.items() if other is shared]:
                del _open[key]
            shared.upkeep.stop()
            shared.database.close()


def _guard() -> threading.Lock:
    return _guards.setdefault(os.getpid(), threading.Lock())


class FileLog:
    """A log in a directory, which is made if it is not there. What it says of each method, `Log` says.

    >>> import tempfile
    >>> from headrace.log.protocol import Records
    >>> orders = TopicPartition("orders", 0)
    >>> with tempfile.TemporaryDirectory() as directory, FileLog(directory) as log:
    ...     _ = log.create_topic("orders")
    ...     _ = log.append([(orders, Records([b"k"], [b"v"], [10]))])
    ...     [row for chunk in log.read(orders, 0) for row in chunk.rows()]
    [(0, b'k', b'v', 10, ())]
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        clock: Clock | None = None,
        clean_every: int | None = 60_000,
        pause: Callable[[float], None] | None = None,
    ) -> None:
        """`clean_every` ms, while records are appended, it is cleaned in the background; None: only by `clean`.

        `pause` stands for waiting some seconds; without it, a record of the same process ends the wait at once.
        """
        self.directory = Path(directory).absolute()
        self._clock, self._clean_every, self._pause = clock or SystemClock(), clean_every, pause
        self._own = (os.getpid(), acquire(self.directory))
        self._clean_at = self._own[1].upkeep.cleaned_at() + (clean_every or 0)

    @property
    def url(self) -> str:
        return f"file:{self.directory}"

    def close(self) -> None:
        process, shared = self._own
        if process == os.getpid():
            self._own = (-1, shared)
            release(shared)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., FileLog], tuple[str]]:
        return FileLog, (str(self.directory),)

    @property
    def _shared(self) -> Shared:
        process, shared = self._own
        if process == -1:
            raise ValueError(f"the log in {self.directory} was closed: open it again, open_log({self.url!r})")
        if process != os.getpid():  # forked: SQLite's connections stay with the parent
            shared = acquire(self.directory)
            self._own = (os.getpid(), shared)
        return shared

    # ---------------------------------------------------------------------------------------------------- topics
    def topics(self) -> Mapping[str, Topic]:
        with self._shared.database.reading() as connection:
            entries = self._shared.topics.seen_by(connection).topics
        return {name: entries[name].named(name) for name in sorted(entries)}

    def topic(self, name: str) -> Topic:
        with self._shared.database.reading() as connection:
            return self._shared.topics.seen_by(connection).topic(name).named(name)

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
        return self._change(name, lambda catalog: topics.create(catalog, name, partitions, config or {}))

    def add_partitions(self, name: str, partitions: int) -> Topic:
        return self._change(name, lambda catalog: topics.grow(catalog, name, partitions))

    def alter_config(self, name: str, config: Mapping[str, str | int | None]) -> Topic:
        return self._change(name, lambda catalog: topics.alter(catalog, name, config))

    def _change(self, name: str, change: Callable[[Catalog], Catalog]) -> Topic:
        shared = self._shared

        def run(connection: sqlite3.Connection) -> Topic:
            before = shared.topics.seen_by(connection)
            after = change(before)
            topics.write(connection, after)
            chunks.set_up(connection, before.topics.get(name), after.topics[name])
            return after.topics[name].named(name)

        return shared.commits(run)

    def delete_topic(self, name: str) -> None:
        shared = self._shared

        def run(connection: sqlite3.Connection) -> None:
            before = shared.topics.seen_by(connection)
            topics.write(connection, topics.delete(before, name))
            chunks.tear_down(connection, before.topics[name])

        shared.commits(run)
        shared.upkeep.sweep()

    # --------------------------------------------------------------------------------------------------- records
    def extents(self, topics: Sequence[str]) -> dict[TopicPartition, Extent]:
        with self._shared.database.reading() as connection:
            known = self._shared.topics.seen_by(connection)
            return {
                TopicPartition(name, row.partition): Extent(row.earliest, row.upto)
                for name in topics
                for row in chunks.partitions(connection, known.topic(name))
            }

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return {at: reader.offset_for_time(self._shared.reader, at, time) for at, time in times.items()}

    def confirm(self, ids: Mapping[str, str]) -> Callable[[], None]:
        return lambda: reader.check_ids(ids, self.topic)

    def read(
        self,
        at: TopicPartition,
        start: int,
        end: int | None = None,
        *,
        topic_id: str | None = None,
        more: bool | None = None,
    ) -> Iterator[Chunk]:
        at = TopicPartition(*at)
        extent = self._shared.reader.extent(at, topic_id)
        end = extent.end if end is None else end
        reader.check_range(at, extent, start, end)
        return self._shared.reader.chunks(at, start, end, topic_id)

    def append(self, items: Sequence[Item], *, stamp: Stamp | None = None) -> list[int]:
        shared, now = self._shared, self._clock.now()
        offsets = shared.commits.together(shared.store, Append(prepared(items, shared.files), now, stamp))
        self._clean_if_due(now)
        return offsets

    def new_producer(self) -> int:
        now = self._clock.now()
        return self._shared.commits(lambda connection: deduplication.new_producer(connection, now))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        shared = self._shared

        def run(connection: sqlite3.Connection) -> dict[TopicPartition, int]:
            known, earliest = shared.topics.seen_by(connection), dict[TopicPartition, int]()
            for at, offset in before.items():
                row = chunks.partition(connection, known.place(at).number, at.partition)
                if not -1 <= offset <= row.upto:
                    raise OffsetOutOfRangeError(
                        f"{at} ends at offset {row.upto}: no records before {offset} can be deleted",
                        at=at, earliest=row.earliest, end=row.upto,
                    )  # fmt: skip
                earliest[at] = retention.truncate(connection, row, row.upto if offset == -1 else offset)
            return earliest

        earliest = shared.commits(run)
        shared.upkeep.sweep()
        return earliest

    def wait(self, positions: Mapping[TopicPartition, int], timeout: int) -> bool:
        return reader.wait(self, positions, timeout, self._clock, self._pause or self._shared.database.pause)

    # ------------------------------------------------------------------------------------------------ deliveries
    def deliver(self, application: str, number: int, items: Sequence[Item]) -> bool:
        shared, now = self._shared, self._clock.now()
        batch = Append(prepared(items, shared.files), now)

        def run(connection: sqlite3.Connection) -> bool:
            is_due = deduplication.due(connection, application, number)
            if is_due:
                shared.store(connection, [batch])
                deduplication.put_marker(connection, application, number)
            return is_due

        is_new = shared.commits(run)
        self._clean_if_due(now)
        return is_new

    def delivered(self, application: str) -> int:
        with self._shared.database.reading() as connection:
            return deduplication.marker(connection, application)

    def mark_delivered(self, application: str, number: int | None) -> None:
        self._shared.commits(lambda connection: deduplication.put_marker(connection, application, number))

    # ---------------------------------------------------------------------------------------------------- groups
    def groups(self) -> Mapping[str, Group]:
        now = self._clock.now()
        with self._shared.database.reading() as connection:
            known = self._shared.topics.seen_by(connection)
            return {
                name: consumer_groups.seen(name, state, known, now)
                for name, state in consumer_groups.load_all(connection).items()
            }

    def committed(self, group: str) -> dict[TopicPartition, int]:
        with self._shared.database.reading() as connection:
            state = consumer_groups.load(connection, group) or consumer_groups.GroupState()
            return consumer_groups.offsets_of(state, self._shared.topics.seen_by(connection))

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], *, member: str | None = None) -> None:
        shared, now = self._shared, self._clock.now()

        def run(connection: sqlite3.Connection) -> None:
            state = consumer_groups.load(connection, group) or consumer_groups.GroupState()
            if member is None:
                consumer_groups.drop_dead(state, now)
            consumer_groups.check_may_commit(group, state, member, offsets.keys())
            consumer_groups.set_offsets(state, offsets, shared.topics.seen_by(connection))
            consumer_groups.save(connection, group, state)

        shared.commits(run)

    def delete_group(self, group: str) -> None:
        now = self._clock.now()

        def run(connection: sqlite3.Connection) -> None:
            state = consumer_groups.load_known(connection, group)
            consumer_groups.drop_dead(state, now)
            if state.members:
                raise GroupInUseError(f"the group {group!r} is in use by {', '.join(sorted(state.members))}")
            consumer_groups.delete(connection, group)

        self._shared.commits(run)

    def join(
        self, group: str, member: str, topics: Sequence[str], holding: AbstractSet[TopicPartition], lease: int
    ) -> Membership:
        now = self._clock.now()
        # Not durable: a loss of power ends all leases anyhow.
        with self._shared.database.writing(durable=False) as connection:
            entries = self._shared.topics.seen_by(connection).topics
            partitions = {name: entry.partitions for name, entry in entries.items()}
            state = consumer_groups.load(connection, group) or consumer_groups.GroupState()
            membership = consumer_groups.join(state, member, topics, holding, partitions, now, lease)
            consumer_groups.save(connection, group, state)
            return membership

    def leave(self, group: str, member: str) -> None:
        with self._shared.database.writing(durable=False) as connection:
            state = consumer_groups.load(connection, group)
            if state is not None:
                consumer_groups.leave(state, member)
                consumer_groups.save(connection, group, state)

    # ---------------------------------------------------------------------------------------------------- upkeep
    def clean(self) -> None:
        """Retention, compaction, and what crashes left behind, now and completely."""
        self._shared.upkeep.clean(self._clock.now(), fully=True)

    def verify(self) -> list[str]:
        """Reads everything; gives a sentence for each thing that is damaged."""
        return problems_of(self._shared.reader)

    def _clean_if_due(self, now: int) -> None:
        if self._clean_every is not None and now >= self._clean_at:
            self._clean_at = now + self._clean_every
            self._shared.upkeep.in_background(now, self._clean_every)
