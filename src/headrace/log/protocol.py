"""What a log does, the types that go in and out of it, and what the embedded log and Kafka do in the same way.

`Log` has four groups of methods: topics, records, deliveries (the outputs of an application's batches, exactly once),
and consumer groups. `SupportsShares` is for logs to which several processes can deliver one batch together.

Both logs extend `BaseLog`, which opens and closes connections, opens others after a fork, and waits for records.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import repeat
from types import TracebackType
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from headrace.model.clock import Clock, SystemClock
from headrace.model.ids import TopicPartition
from headrace.model.record import Headers

LogRow = tuple[int, bytes | None, bytes | None, int, Headers]  # offset, key, value, timestamp, headers


@dataclass(frozen=True, slots=True)
class Records:
    """Records for one partition, column by column. `headers` is None if no record has any.

    >>> len(Records.from_rows([(b"k", b"v", 10, ()), (None, b"w", 11, ())]))
    2
    """

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps: Sequence[int]
    headers: Sequence[Headers] | None = None

    def __len__(self) -> int:
        return len(self.timestamps)

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[bytes | None, bytes | None, int, Headers]]) -> Records:
        """Builds the columns from rows of (key, value, timestamp, headers)."""
        if not rows:
            return cls((), (), ())
        keys, values, timestamps, headers = zip(*rows, strict=True)
        return cls(keys, values, timestamps, headers if any(headers) else None)

    def slice(self, start: int, end: int) -> Records:
        """Returns the records from position `start` up to, but without, position `end`."""
        if start == 0 and end >= len(self):
            return self
        headers = None if self.headers is None else self.headers[start:end]
        return Records(self.keys[start:end], self.values[start:end], self.timestamps[start:end], headers)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records that were read, with their offsets in ascending order. Compaction leaves gaps between offsets."""

    offsets: Sequence[int]
    records: Records

    def __len__(self) -> int:
        return len(self.offsets)

    def rows(self) -> Iterator[LogRow]:
        """Iterates over the records.

        >>> list(Chunk(range(7, 8), Records([b"k"], [b"v"], [10])).rows())
        [(7, b'k', b'v', 10, ())]
        """
        records = self.records
        headers = repeat((), len(self)) if records.headers is None else records.headers
        return zip(self.offsets, records.keys, records.values, records.timestamps, headers, strict=True)


# Records for one partition, to be appended: columns, or bytes that another process packed with `chunk_format.pack`.
Item = tuple[TopicPartition, Records | bytes]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. A topic that is deleted and created again gets another id. `config` includes the defaults."""

    name: str
    id: str
    partitions: int
    config: Mapping[str, str]


class Extent(NamedTuple):
    """The offsets of a partition: the earliest that it still has, and the end, which the next record will get."""

    earliest: int
    end: int


class ProducerSequence(NamedTuple):
    """Identifies one append of one producer, so that an append that is retried is stored once."""

    producer_id: int
    number: int


class Membership(NamedTuple):
    """The partitions that a group member may read now. The generation grows with every rebalance."""

    generation: int
    partitions: frozenset[TopicPartition]


class Share(NamedTuple):
    """One of the shares of a batch that several processes deliver at the same time.

    `owner` is what `begin_shares` returned. `producer` is what `deliver_share` returned for this share of the batch
    before, or "": a process that still has this producer delivers with it and need not create another.
    """

    number: int
    ordinal: int
    owner: str
    producer: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group: its live members with the partitions that they hold, and its committed offsets."""

    name: str
    generation: int
    members: Mapping[str, frozenset[TopicPartition]]
    committed: Mapping[TopicPartition, int]


@runtime_checkable
class SupportsShares(Protocol):
    """A log to which several processes can deliver one batch together, each to partitions of its own."""

    def begin_shares(self, application: str, number: int, shares: int) -> str | None:
        """Allows a batch to be delivered in shares and returns the `owner` of the shares.

        When all shares are delivered, `deliver` completes the batch. None: this batch must be delivered as a whole.
        """
        ...

    def deliver_share(self, application: str, share: Share, items: Sequence[Item]) -> str:
        """Stores the outputs of a share and a marker for each partition, all or nothing; returns the producer's name.

        What the log already has of the share is not stored again.
        """
        ...


@runtime_checkable
class HasBrokers(Protocol):
    """A log on servers, whose version matters."""

    def check_brokers(self) -> None:
        """Raises ConfigError if the servers are older than the oldest version that is supported."""
        ...


class Log(Protocol):
    """Topics of partitions of (key, value, timestamp, headers) with offsets. Thread-safe. Times are in ms."""

    @property
    def stores_chunks(self) -> bool:
        """True if the log stores packed chunks as they are; otherwise it has to unpack them."""
        ...

    # ---------------------------------------------------------------------------------------------------- topics
    def topics(self) -> Mapping[str, Topic]:
        """Returns all topics by name."""
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
        """Raises the number of partitions of a topic to `partitions`."""
        ...

    def alter_config(self, name: str, config: Mapping[str, str | int | None]) -> Topic:
        """Changes the given settings of a topic. None resets a setting to its default."""
        ...

    # --------------------------------------------------------------------------------------------------- records
    def extents(self, topics: Sequence[str]) -> dict[TopicPartition, Extent]:
        """Returns the extents of all partitions of the topics."""
        ...

    def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the ends of partitions, more quickly than `extents`."""
        ...

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Returns the offset of the first record at or after each time; None where there is no such record."""
        ...

    def read(
        self,
        at: TopicPartition,
        start: int,
        end: int | None = None,
        *,
        topic_id: str | None = None,
        has_more: bool | None = None,
    ) -> Iterator[Chunk]:
        """Reads the records from `start` up to, but without, `end` or the end of the partition.

        Raises if the partition does not have these offsets, or if the topic has another id. A caller that has just
        read the extents passes `has_more`: whether the partition has records behind `end`. A remote log then checks
        the range only if no records arrive, and does not check the topic id: see `confirm_topics`.
        """
        ...

    def confirm_topics(self, ids: Mapping[str, str]) -> Callable[[], dict[str, int]]:
        """Starts to check that topics have these ids.

        The returned function waits, raises if one differs, and returns how many partitions each topic has.
        """
        ...

    def append(self, items: Sequence[Item], *, sequence: ProducerSequence | None = None) -> list[int]:
        """Stores all items or none, durably before it returns. Returns the first offset of each item.

        On Kafka an append is not a transaction: if brokers fail, it may be stored in part.
        """
        ...

    def new_producer(self) -> int:
        """Returns a new producer id. The first append of the producer has sequence number 0."""
        ...

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Deletes the records before an offset, or all for -1. Returns the new earliest offsets."""
        ...

    def wait(self, positions: Mapping[TopicPartition, int], timeout: int) -> bool:
        """Waits until one of the partitions has a record at its position. Returns False after `timeout` ms."""
        ...

    # ------------------------------------------------------------------------------------------------ deliveries
    def deliver(self, application: str, number: int, items: Sequence[Item]) -> bool:
        """Stores the outputs of a batch together with its marker, all or nothing.

        Returns False if this batch was delivered before; raises if the batch before it was not. The first batch is 0.
        """
        ...

    def begin_delivery(self, application: str, number: int, items: Sequence[Item]) -> Callable[[], None]:
        """Does what `deliver` does, but may return as soon as it is certain that the batch will be stored.

        The returned function waits until readers see it. The next batch may begin before.
        """
        ...

    def delivered(self, application: str) -> int:
        """Returns the number of the last batch that was delivered, or -1."""
        ...

    def mark_delivered(self, application: str, number: int | None) -> None:
        """Sets the marker without storing outputs. None removes it."""
        ...

    # ---------------------------------------------------------------------------------------------------- groups
    def groups(self) -> Mapping[str, Group]: ...

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Returns the committed offsets of a group; none for a group that does not exist."""
        ...

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], *, member: str | None = None) -> None:
        """Commits offsets. Without `member` this is possible only while the group has no members."""
        ...

    def delete_group(self, group: str) -> None: ...

    def join(
        self, group: str, member: str, topics: Sequence[str], holding: AbstractSet[TopicPartition], lease: int
    ) -> Membership:
        """Joins a group, or renews the membership, for `lease` ms. Returns the partitions that the member may read.

        `holding` are the partitions that the member still reads. It must give up those that the answer does not
        contain, and say so by another call without them; until then, or until its lease ends, no other member gets
        them.
        """
        ...

    def leave(self, group: str, member: str) -> None: ...

    def close(self) -> None: ...


# ------------------------------------------------------------------------------------------------- what both logs share
Resources = TypeVar("Resources")
_CLOSED = -1
_FIRST_PAUSE, _LONGEST_PAUSE = 1, 20  # ms; reading the extents of an embedded log takes 0.1
# Resources of the parent process. They are never destroyed: a Kafka client would wait for threads that a fork lacks.
_INHERITED: list[Any] = []


class Closeable(ABC):
    """An object that `with` closes."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BaseLog(Closeable, Generic[Resources]):
    """A log with the connections that it needs. Connections do not survive a fork, so each process opens its own."""

    stores_chunks = False

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock or SystemClock()
        self._process, self._opened = os.getpid(), self._open()

    @property
    @abstractmethod
    def url(self) -> str:
        """The address that `open_log` takes."""

    @abstractmethod
    def extents(self, topics: Sequence[str]) -> dict[TopicPartition, Extent]: ...

    def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        extents = self.extents(sorted({at.topic for at in partitions}))
        return {at: extents[at].end for at in partitions if at in extents}

    @abstractmethod
    def _open(self) -> Resources: ...

    @abstractmethod
    def _close(self, resources: Resources) -> None: ...

    @property
    def _resources(self) -> Resources:
        process = os.getpid()
        if self._process != process:
            if self._process == _CLOSED:
                raise ValueError(f"the log at {self.url} was closed: open it again, open_log({self.url!r})")
            _INHERITED.append(self._opened)
            self._process, self._opened = process, self._open()
        return self._opened

    def close(self) -> None:
        if self._process == os.getpid():
            self._process = _CLOSED
            self._close(self._opened)

    def _wait(self, positions: Mapping[TopicPartition, int], timeout: int, pause: Callable[[float], None]) -> bool:
        """Reads the ends again and again, with growing pauses, until one is beyond its position."""
        deadline = self._clock.now() + timeout
        length = _FIRST_PAUSE
        while True:
            ends = self.ends(list(positions))
            if any(end > positions[at] for at, end in ends.items()):
                return True
            left = deadline - self._clock.now()
            if left <= 0:
                return False
            pause(min(length, left) / 1000)
            length = min(2 * length, _LONGEST_PAUSE)
