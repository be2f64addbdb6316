"""The embedded log: a directory on one machine, for any number of processes on it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.log import catalog, groups, places, reading, retention, stamps, waiting
from headrace.log.appending import Append
from headrace.log.catalog import Catalog
from headrace.log.errors import GroupInUseError, OffsetOutOfRangeError
from headrace.log.parcels import prepared
from headrace.log.protocol import Chunk, Extent, Group, Item, Membership, Stamp, Topic
from headrace.log.sharing import Shared, acquire, release
from headrace.log.verify import problems_of
from headrace.model.clock import Clock, SystemClock
from headrace.model.ids import TopicPartition


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

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str | int] | None = None) -> Topic:
        return self._change(name, lambda topics: catalog.create(topics, name, partitions, config or {}))

    def add_partitions(self, name: str, partitions: int) -> Topic:
        return self._change(name, lambda topics: catalog.grow(topics, name, partitions))

    def alter_config(self, name: str, config: Mapping[str, str | int | None]) -> Topic:
        return self._change(name, lambda topics: catalog.alter(topics, name, config))

    def _change(self, name: str, change: Callable[[Catalog], Catalog]) -> Topic:
        shared = self._shared

        def run(connection: sqlite3.Connection) -> Topic:
            before = shared.topics.seen_by(connection)
            after = change(before)
            catalog.write(connection, after)
            places.set_up(connection, before.topics.get(name), after.topics[name])
            return after.topics[name].named(name)

        return shared.commits(run)

    def delete_topic(self, name: str) -> None:
        shared = self._shared

        def run(connection: sqlite3.Connection) -> None:
            before = shared.topics.seen_by(connection)
            catalog.write(connection, catalog.delete(before, name))
            places.tear_down(connection, before.topics[name])

        shared.commits(run)
        shared.upkeep.sweep()

    # --------------------------------------------------------------------------------------------------- records
    def extents(self, topics: Sequence[str]) -> dict[TopicPartition, Extent]:
        with self._shared.database.reading() as connection:
            known = self._shared.topics.seen_by(connection)
            return {
                TopicPartition(name, row.partition): Extent(row.earliest, row.upto)
                for name in topics
                for row in places.partitions(connection, known.topic(name))
            }

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return {at: reading.offset_for_time(self._shared.reader, at, time) for at, time in times.items()}

    def confirm(self, ids: Mapping[str, str]) -> Callable[[], None]:
        return lambda: reading.check_ids(ids, self.topic)

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
        reading.check_range(at, extent, start, end)
        return self._shared.reader.chunks(at, start, end, topic_id)

    def append(self, items: Sequence[Item], *, stamp: Stamp | None = None) -> list[int]:
        shared, now = self._shared, self._clock.now()
        offsets = shared.commits.together(shared.store, Append(prepared(items, shared.files), now, stamp))
        self._clean_if_due(now)
        return offsets

    def new_producer(self) -> int:
        now = self._clock.now()
        return self._shared.commits(lambda connection: stamps.new_producer(connection, now))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        shared = self._shared

        def run(connection: sqlite3.Connection) -> dict[TopicPartition, int]:
            known, earliest = shared.topics.seen_by(connection), dict[TopicPartition, int]()
            for at, offset in before.items():
                row = places.partition(connection, known.place(at).number, at.partition)
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
        return waiting.wait(self, positions, timeout, self._clock, self._pause or self._shared.database.pause)

    # ------------------------------------------------------------------------------------------------ deliveries
    def deliver(self, application: str, number: int, items: Sequence[Item]) -> bool:
        shared, now = self._shared, self._clock.now()
        batch = Append(prepared(items, shared.files), now)

        def run(connection: sqlite3.Connection) -> bool:
            is_due = stamps.due(connection, application, number)
            if is_due:
                shared.store(connection, [batch])
                stamps.put_marker(connection, application, number)
            return is_due

        is_new = shared.commits(run)
        self._clean_if_due(now)
        return is_new

    def delivered(self, application: str) -> int:
        with self._shared.database.reading() as connection:
            return stamps.marker(connection, application)

    def mark_delivered(self, application: str, number: int | None) -> None:
        self._shared.commits(lambda connection: stamps.put_marker(connection, application, number))

    # ---------------------------------------------------------------------------------------------------- groups
    def groups(self) -> Mapping[str, Group]:
        now = self._clock.now()
        with self._shared.database.reading() as connection:
            known = self._shared.topics.seen_by(connection)
            return {name: groups.seen(name, state, known, now) for name, state in groups.load_all(connection).items()}

    def committed(self, group: str) -> dict[TopicPartition, int]:
        with self._shared.database.reading() as connection:
            state = groups.load(connection, group) or groups.GroupState()
            return groups.offsets_of(state, self._shared.topics.seen_by(connection))

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], *, member: str | None = None) -> None:
        shared, now = self._shared, self._clock.now()

        def run(connection: sqlite3.Connection) -> None:
            state = groups.load(connection, group) or groups.GroupState()
            if member is None:
                groups.drop_dead(state, now)
            groups.check_may_commit(group, state, member, offsets.keys())
            groups.set_offsets(state, offsets, shared.topics.seen_by(connection))
            groups.save(connection, group, state)

        shared.commits(run)

    def delete_group(self, group: str) -> None:
        now = self._clock.now()

        def run(connection: sqlite3.Connection) -> None:
            state = groups.load_known(connection, group)
            groups.drop_dead(state, now)
            if state.members:
                raise GroupInUseError(f"the group {group!r} is in use by {', '.join(sorted(state.members))}")
            groups.delete(connection, group)

        self._shared.commits(run)

    def join(
        self, group: str, member: str, topics: Sequence[str], holding: AbstractSet[TopicPartition], lease: int
    ) -> Membership:
        now = self._clock.now()
        # Not durable: a loss of power ends all leases anyhow.
        with self._shared.database.writing(durable=False) as connection:
            entries = self._shared.topics.seen_by(connection).topics
            partitions = {name: entry.partitions for name, entry in entries.items()}
            state = groups.load(connection, group) or groups.GroupState()
            membership = groups.join(state, member, topics, holding, partitions, now, lease)
            groups.save(connection, group, state)
            return membership

    def leave(self, group: str, member: str) -> None:
        with self._shared.database.writing(durable=False) as connection:
            state = groups.load(connection, group)
            if state is not None:
                groups.leave(state, member)
                groups.save(connection, group, state)

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
