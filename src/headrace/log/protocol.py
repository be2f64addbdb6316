"""What a log is: topics of partitions of records, groups that read them, and deliveries; embedded or on Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple, Protocol, runtime_checkable

from headrace.model.ids import TopicPartition
from headrace.model.record import Headers

LogRow = tuple[int, bytes | None, bytes | None, int, Headers]  # offset, key, value, timestamp, headers


@dataclass(frozen=True, slots=True)
class Records:
    """Records for one partition, column by column; `headers` is None where no record has any.

    >>> len(Records.of([(b"k", b"v", 10, ()), (None, b"w", 11, ())]))
    2
    """

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps: Sequence[int]
    headers: Sequence[Headers] | None = None

    def __len__(self) -> int:
        return len(self.timestamps)

    @classmethod
    def of(cls, rows: Sequence[tuple[bytes | None, bytes | None, int, Headers]]) -> Records:
        """Of (key, value, timestamp, headers), record by record."""
        if not rows:
            return cls((), (), ())
        keys, values, timestamps, headers = zip(*rows, strict=True)
        return cls(keys, values, timestamps, headers if any(headers) else None)

    def part(self, start: int, end: int) -> Records:
        """The records from one position to another."""
        if start == 0 and end >= len(self):
            return self
        headers = None if self.headers is None else self.headers[start:end]
        return Records(self.keys[start:end], self.values[start:end], self.timestamps[start:end], headers)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records as they are read: by offset; offsets may be missing, after compaction."""

    offsets: Sequence[int]
    records: Records

    def __len__(self) -> int:
        return len(self.offsets)

    def rows(self) -> Iterator[LogRow]:
        """Record by record.

        >>> list(Chunk(range(7, 8), Records([b"k"], [b"v"], [10])).rows())
        [(7, b'k', b'v', 10, ())]
        """
        records = self.records
        headers = repeat((), len(self)) if records.headers is None else records.headers
        return zip(self.offsets, records.keys, records.values, records.timestamps, headers, strict=True)


# Records to be appended: as columns, or packed elsewhere by `packing.pack`, which saves the one who appends the work.
Item = tuple[TopicPartition, Records | bytes]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic; deleted and made anew, it has another id. The configuration is complete, defaults included."""

    name: str
    id: str
    partitions: int
    config: Mapping[str, str]


class Extent(NamedTuple):
    """The first offset that a partition still has, and the one that its next record will get."""

    earliest: int
    end: int


class Stamp(NamedTuple):
    """Which append of which producer: the same one comes twice if the first outcome was unclear, and is stored once."""

    producer: int
    sequence: int


class Membership(NamedTuple):
    """What a member of a group may read now. The generation grows whenever the members or their partitions change."""

    generation: int
    partitions: frozenset[TopicPartition]


class Share(NamedTuple):
    """One of the shares in which a batch is delivered at once.

    `line` names who shared it out, `producer` who delivered that of the batch before: only that one need not be new.
    """

    number: int
    ordinal: int
    line: str
    producer: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group: its living members with the partitions they hold, and how far it has read."""

    name: str
    generation: int
    members: Mapping[str, frozenset[TopicPartition]]
    committed: Mapping[TopicPartition, int]


@runtime_checkable
class Shareable(Protocol):
    """A log to which several processes can deliver a batch together, each the partitions that only it has."""

    def share_out(self, application: str, number: int, shares: int) -> str | None:
        """Lets a batch be delivered in shares, and then by `deliver` with what is left; gives the line for them.

        None: it is not to be shared, but delivered as a whole.
        """
        ...

    def deliver_share(self, application: str, share: Share, items: Sequence[Item]) -> str:
        """Stores the outputs of a share and that it has them, all or nothing; what it has already is left out.

        Gives the name of the producer.
        """
        ...


class Log(Protocol):
    """Topics of partitions of (key, value, timestamp, headers) with offsets. Safe for threads; times are in ms."""

    # ---------------------------------------------------------------------------------------------------- topics
    def topics(self) -> Mapping[str, Topic]:
        """All topics by name."""
        ...

    def topic(self, name: str) -> Topic: ...

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str | int] | None = None,
        *,
        replication_factor: int | None = None,
    ) -> Topic:
        """Creates a topic; without a replication factor the settings of the log decide."""
        ...

    def delete_topic(self, name: str) -> None: ...

    def add_partitions(self, name: str, partitions: int) -> Topic:
        """Lets a topic have more partitions, `partitions` in all."""
        ...

    def alter_config(self, name: str, config: Mapping[str, str | int | None]) -> Topic:
        """Changes the settings that are named; None is the default again."""
        ...

    # --------------------------------------------------------------------------------------------------- records
    def extents(self, topics: Sequence[str]) -> dict[TopicPartition, Extent]:
        """The offsets of all partitions of some topics at one moment."""
        ...

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset whose record is at or after a time; None where there is no such record."""
        ...

    def read(
        self,
        at: TopicPartition,
        start: int,
        end: int | None = None,
        *,
        topic_id: str | None = None,
        more: bool | None = None,
    ) -> Iterator[Chunk]:
        """The records from `start` up to but without `end`, or up to the end of the partition.

        Offsets that are not there, and a topic with another id, are errors. Whoever has just seen the range says so by
        `more`, whether there is more behind it: then a log far away asks again only if the records do not come, and
        the id of the topic is to be confirmed.
        """
        ...

    def confirm(self, ids: Mapping[str, str]) -> Callable[[], None]:
        """Asks whether topics have these ids; what is given waits for the answer, and raises if one has another."""
        ...

    def append(self, items: Sequence[Item], *, stamp: Stamp | None = None) -> list[int]:
        """Stores all items or none, on disk before it returns; gives the first offset of each."""
        ...

    def new_producer(self) -> int:
        """An id for stamps; the first append has sequence 0."""
        ...

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Removes the records before an offset, -1: all; gives the earliest offsets."""
        ...

    def wait(self, positions: Mapping[TopicPartition, int], timeout: int) -> bool:
        """Until one of the partitions has a record at its position; False if that took too long."""
        ...

    # ------------------------------------------------------------------------------------------------ deliveries
    def deliver(self, application: str, number: int, items: Sequence[Item]) -> bool:
        """Stores the outputs of a batch and that it was delivered, all or nothing, if the batch before it was.

        False: this batch was delivered before. The first batch has number 0.
        """
        ...

    def delivered(self, application: str) -> int:
        """The last batch that was delivered; -1 if none was."""
        ...

    def mark_delivered(self, application: str, number: int | None) -> None:
        """Goes on as if a batch was the last one delivered, or, with None, as if there never was any."""
        ...

    # ---------------------------------------------------------------------------------------------------- groups
    def groups(self) -> Mapping[str, Group]: ...

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Where a group goes on reading; nothing for a group that never committed."""
        ...

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], *, member: str | None = None) -> None:
        """Says where a group goes on reading. Without a member: only while nobody is reading."""
        ...

    def delete_group(self, group: str) -> None: ...

    def join(
        self, group: str, member: str, topics: Sequence[str], holding: AbstractSet[TopicPartition], lease: int
    ) -> Membership:
        """Makes or keeps somebody a member until the lease is over, and says what to read.

        `holding` is what the member still reads. What is not in the answer it has to give up, by a second call without
        it; until then nobody else gets it, unless the lease ends.
        """
        ...

    def leave(self, group: str, member: str) -> None: ...

    def close(self) -> None: ...
