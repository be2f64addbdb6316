"""The consumer: reads records from a log, alone or as a member of a consumer group.

`Fetcher` keeps the position in each partition and reads from there. `Consumer` adds the group, commits and serdes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from typing import Any, Generic, Literal, NamedTuple, cast, get_args
from uuid import uuid4

from typing_extensions import TypeVar

from headrace.clients.topic_serdes import TopicSerdes
from headrace.errors import (
    OffsetOutOfRangeError,
    ProducerFencedError,
    SchemaRegistryError,
    SerializationError,
    StreamsError,
)
from headrace.hints import explain_names
from headrace.log.open import ClientConfig, resolve_log
from headrace.log.protocol import Closeable, Extent, Log, LogRow
from headrace.model.clock import Clock, SystemClock
from headrace.model.ids import TopicPartition
from headrace.model.record import Headers
from headrace.model.windows import milliseconds
from headrace.serde.primitives import resolve_serde
from headrace.serde.protocol import Serde, decode_part

K = TypeVar("K", default=bytes)  # without a serde a key is bytes
V = TypeVar("V", default=bytes)
K_co = TypeVar("K_co", covariant=True, default=bytes)
V_co = TypeVar("V_co", covariant=True, default=bytes)
Reset = Literal["earliest", "latest", "none"]
Taken = tuple[TopicPartition, LogRow]


class Fetcher:
    """Reads partitions in turn. `positions` has the next offset of each partition."""

    def __init__(self, log: Log, reset: Reset) -> None:
        self._log, self._reset = log, reset
        self.positions: dict[TopicPartition, int] = {}
        self._open: dict[TopicPartition, tuple[Iterator[LogRow], int]] = {}  # rows, and the end of their range
        self._turn = 0

    def add(self, partitions: Iterable[TopicPartition], committed: Mapping[TopicPartition, int]) -> None:
        """Starts to read partitions at their committed offsets, or where `auto_offset_reset` says."""
        new = [at for at in partitions if at not in committed]
        extents = self._extents(new)
        self.positions.update({at: committed[at] for at in partitions if at in committed})
        self.positions.update({at: self._reset_position(at, extents[at]) for at in new})

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        for at in partitions:
            self.positions.pop(at, None)
            self._open.pop(at, None)

    def move(self, at: TopicPartition, offset: int) -> None:
        self._open.pop(at, None)
        self.positions[at] = offset

    def rewind(self, records: Iterable[Taken]) -> None:
        """Returns to the first of some records that were taken, in each partition."""
        for at, row in records:
            if row[0] < self.positions[at]:
                self.move(at, row[0])

    def take(self, limit: int) -> list[Taken]:
        """Returns up to `limit` records. Each call begins with another partition."""
        self._open_more()
        order = sorted(self._open)
        self._turn += 1
        taken: list[Taken] = []
        for i in range(len(order)):
            at = order[(self._turn + i) % len(order)]
            try:
                taken += self._take_from(at, limit - len(taken))
            except StreamsError:
                if not taken:
                    raise
                break  # return what was taken; the next call raises the error, if it remains
        return taken

    def _take_from(self, at: TopicPartition, limit: int) -> list[Taken]:
        rows, end = self._open[at]
        taken: list[Taken] = []
        try:
            for row in islice(rows, limit):
                taken.append((at, row))
                self.positions[at] = row[0] + 1
        except OffsetOutOfRangeError:  # removed while it was read: the next call resets the position
            del self._open[at]
            return taken
        except StreamsError:
            del self._open[at]
            if not taken:
                raise
            return taken
        if len(taken) < limit:  # compaction removed everything between the last record and the end
            del self._open[at]
            self.positions[at] = end
        return taken

    def _open_more(self) -> None:
        idle = [at for at in self.positions if at not in self._open]
        for at, extent in self._extents(idle).items():
            if not extent.earliest <= self.positions[at] <= extent.end:
                self.positions[at] = self._reset_position(at, extent)
            start = self.positions[at]
            if start < extent.end:
                with suppress(OffsetOutOfRangeError):  # removed since: the next call resets the position
                    chunks = self._log.read(at, start, extent.end)
                    self._open[at] = ((row for chunk in chunks for row in chunk.rows()), extent.end)

    def _extents(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Extent]:
        wanted = set(partitions)
        extents = self._log.extents(sorted({at.topic for at in wanted}))
        return {at: extent for at, extent in extents.items() if at in wanted}

    def _reset_position(self, at: TopicPartition, extent: Extent) -> int:
        if self._reset == "none":
            is_known = at in self.positions
            where = f"{self.positions[at]}, which is not there" if is_known else "nowhere: nothing is committed"
            raise OffsetOutOfRangeError(
                f"{at} would be read from {where}, and auto_offset_reset is 'none': seek to one of {extent.earliest} "
                f"to {extent.end}, or choose 'earliest' or 'latest'",
                at=at, earliest=extent.earliest, end=extent.end,
            )  # fmt: skip
        return extent.earliest if self._reset == "earliest" else extent.end


Partitions = frozenset[TopicPartition]
_REBALANCE_INTERVAL = 1000  # ms, at most, between two calls that renew the membership


class ConsumerRecord(NamedTuple, Generic[K_co, V_co]):
    """A record, and the topic, partition and offset that it was read from. A key or value can be None.

    >>> record = ConsumerRecord("words", 0, 7, b"key", b"hello", 1_700_000_000_000, ())
    >>> record.offset, record.value
    (7, b'hello')
    """

    topic: str
    partition: int
    offset: int
    key: K_co
    value: V_co
    timestamp: int
    headers: Headers


@explain_names(
    {
        "commit_sync": "commit()",
        "commit_async": "commit()",
        "unsubscribe": "subscribe() without topics",
        "list_topics": "Admin(log).topics()",
        "beginning_offsets": "Admin(log).describe(topic).extents",
        "end_offsets": "Admin(log).describe(topic).extents",
        "partitions_for": "Admin(log).describe(topic)",
        "offsets_for_times": "Admin(log).reset_offsets(group, topic, to=time)",
    },
    {
        "group_id": "group",
        "key_deserializer": "key",
        "value_deserializer": "value",
        "timeout_ms": "timeout",
        "enable_auto_commit": "auto_commit",
    },
)
class Consumer(Closeable, Generic[K, V]):
    """Reads topics, alone or as a member of a group.

    The members of a group share the partitions, and continue where a dead member has committed last. A member counts
    as alive for `session_timeout` ms after each `poll`. With `auto_commit`, the records of earlier polls are committed
    every `auto_commit_interval` ms, when partitions are given up, and by `close`.

    >>> import tempfile
    >>> from headrace.log.embedded.file_log import FileLog
    >>> from headrace.log.protocol import Records
    >>> with tempfile.TemporaryDirectory() as directory, FileLog(directory) as log:
    ...     _ = log.create_topic("words")
    ...     _ = log.append([(TopicPartition("words", 0), Records([b"k"], [b"hello"], [10]))])
    ...     with Consumer(log, auto_offset_reset="earliest") as consumer:
    ...         consumer.subscribe("words")
    ...         consumer.poll()[0].value
    b'hello'
    """

    def __init__(
        self,
        log: Log | str,
        group: str | None = None,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        auto_offset_reset: Reset = "latest",
        auto_commit: bool = True,
        auto_commit_interval: int | timedelta = 5000,
        max_poll_records: int = 500,
        session_timeout: int | timedelta = 45_000,
        idle_timeout: int | timedelta | None = None,
        config: ClientConfig | None = None,
        clock: Clock | None = None,
        key_serde: Serde[K] | None = None,
        value_serde: Serde[V] | None = None,
    ) -> None:
        """`key` and `value` are serdes; without them keys and values are bytes. `key_serde` and `value_serde` are
        their old names.

        `idle_timeout`: iteration ends when no record has arrived for this time; without it, never.

        `config`: settings of Kafka's clients, such as TLS and SASL, or the path of a `.properties` file.
        """
        if auto_offset_reset not in get_args(Reset):
            raise ValueError(f"auto_offset_reset is 'earliest', 'latest' or 'none', not {auto_offset_reset!r}")
        self._log, self._owns_log = resolve_log(log, config)
        self._group, self._member = group, f"consumer-{uuid4().hex[:16]}"
        serdes = TopicSerdes(config)
        self._key_serde = serdes.bind(resolve_serde("key", key, key_serde), None, "key")
        self._value_serde = serdes.bind(resolve_serde("value", value, value_serde), None, "value")
        self._auto_commits = auto_commit and group is not None
        self._interval = milliseconds(auto_commit_interval, "auto_commit_interval")
        self._limit, self._idle_timeout = max_poll_records, idle_timeout
        self._lease = milliseconds(session_timeout, "session_timeout", at_least=1)
        self._clock = clock or SystemClock()
        self._fetcher = Fetcher(self._log, auto_offset_reset)
        self._topics: tuple[str, ...] = ()
        self._on_assign = self._on_revoke = _ignore
        self._rebalance_at = self._commit_at = 0  # times

    # ---------------------------------------------------------------------------------------------- what to read
    def subscribe(
        self,
        *topics: str,
        on_assign: Callable[[Partitions], object] | None = None,
        on_revoke: Callable[[Partitions], object] | None = None,
    ) -> None:
        """Reads whole topics, or as a member of a group the assigned partitions.

        `on_assign` and `on_revoke` are called with partitions that the member gets and gives up.
        """
        for topic in topics:
            self._log.topic(topic)
        if not topics:
            self._leave()
            self._fetcher.drop(self.assignment)
        self._topics, self._rebalance_at = topics, 0
        self._on_assign, self._on_revoke = on_assign or _ignore, on_revoke or _ignore

    def assign(self, *partitions: TopicPartition) -> None:
        """Reads these partitions, without the assignment of a group."""
        self._leave()
        self._topics = ()
        self._fetcher.drop(self.assignment)
        self._fetcher.add(partitions, self._log.committed(self._group) if self._group else {})

    @property
    def assignment(self) -> Partitions:
        return frozenset(self._fetcher.positions)

    # --------------------------------------------------------------------------------------------------- reading
    def poll(self, timeout: int | timedelta = 0) -> list[ConsumerRecord[K, V]]:
        """Returns the next records. Waits up to `timeout` ms for the first."""
        deadline = self._clock.now() + milliseconds(timeout, "the timeout")
        while True:
            self._commit_if_due()
            self._rebalance()
            records = self._decoded(self._fetcher.take(self._limit))
            now = self._clock.now()
            if records or now >= deadline:
                return records
            until = min(deadline, self._rebalance_at) if self._topics else deadline
            self._log.wait(self._fetcher.positions, max(until - now, 1))

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        """Iterates over the records. If a loop ends early, the next poll returns what it did not read."""
        step = _REBALANCE_INTERVAL if self._idle_timeout is None else milliseconds(self._idle_timeout, "idle_timeout")
        while (records := self.poll(step)) or self._idle_timeout is None:
            yield from self._iterate(records)

    def _iterate(self, records: list[ConsumerRecord[K, V]]) -> Generator[ConsumerRecord[K, V]]:
        done = 0
        try:
            for record in records:
                done += 1
                yield record
        finally:
            for record in reversed(records[done:]):
                self.seek(TopicPartition(record.topic, record.partition), record.offset)

    def _decoded(self, taken: list[Taken]) -> list[ConsumerRecord[K, V]]:
        """Decodes records up to the first that fails. The next poll begins with that one, and raises."""
        key_serde, value_serde = self._key_serde, self._value_serde
        records: list[ConsumerRecord[K, V]] = []
        for i, (at, (offset, key, value, timestamp, headers)) in enumerate(taken):
            try:
                decoded = decode_part(key_serde, key, headers), decode_part(value_serde, value, headers)
            except SchemaRegistryError:
                self._fetcher.rewind(taken[i:])
                raise
            except Exception as error:
                self._fetcher.rewind(taken[i:])
                if records:
                    break
                hint = f"seek({at!r}, {offset + 1}) skips it"
                raise SerializationError(
                    f"the record at offset {offset} of {at} cannot be decoded: {error}; {hint}"
                ) from error
            pair = cast("tuple[K, V]", decoded)
            records.append(ConsumerRecord(*at, offset, *pair, timestamp, headers))
        return records

    # ------------------------------------------------------------------------------------------------- positions
    def position(self, at: TopicPartition) -> int:
        """Returns the offset of the next record."""
        self._check_assigned(at)
        return self._fetcher.positions[at]

    def seek(self, at: TopicPartition, offset: int) -> None:
        """Continues at an offset."""
        self._check_assigned(at)
        if offset < 0:
            raise ValueError(f"an offset is 0 or more, not {offset}")
        self._fetcher.move(at, offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continues at the earliest records, in all partitions if none are given."""
        for at, extent in self._extents(partitions).items():
            self._fetcher.move(at, extent.earliest)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continues at the end, in all partitions if none are given."""
        for at, extent in self._extents(partitions).items():
            self._fetcher.move(at, extent.end)

    def _extents(self, partitions: tuple[TopicPartition, ...]) -> Mapping[TopicPartition, Any]:
        self._rebalance()
        for at in partitions:
            self._check_assigned(at)
        wanted = set(partitions or self.assignment)
        extents = self._log.extents(sorted({at.topic for at in wanted}))
        return {at: extent for at, extent in extents.items() if at in wanted}

    def _check_assigned(self, at: TopicPartition) -> None:
        if at not in self._fetcher.positions:
            self._rebalance()
        if at not in self._fetcher.positions:
            has = ", ".join(map(str, sorted(self.assignment))) or "none"
            raise ValueError(f"{at} is not assigned to this consumer (it has: {has}): assign or subscribe, then poll")

    # ------------------------------------------------------------------------------------------------- committing
    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commits the positions after the last poll, or the given offsets."""
        if self._group is None:
            raise ValueError("this consumer has no group to commit for: Consumer(log, group=...)")
        self._log.commit(
            self._group,
            dict(self._fetcher.positions) if offsets is None else offsets,
            member=self._member if self._topics else None,
        )

    def committed(self, at: TopicPartition) -> int | None:
        """Returns the committed offset of a partition; None if there is none."""
        return self._log.committed(self._group).get(at) if self._group else None

    def _commit_if_due(self) -> None:
        now = self._clock.now()
        if self._auto_commits and now >= self._commit_at:
            self._commit_at = now + self._interval
            self._auto_commit(self.assignment)

    def _auto_commit(self, partitions: Partitions) -> None:
        """Commits positions. The next rebalance drops a partition that another member has by now."""
        positions = {at: self._fetcher.positions[at] for at in partitions}
        if positions:
            with suppress(ProducerFencedError):
                self.commit(positions)

    # -------------------------------------------------------------------------------------------------- the group
    def _rebalance(self) -> None:
        """Renews the membership when it is due, gives up lost partitions, and starts to read new ones."""
        now = self._clock.now()
        if not self._topics or now < self._rebalance_at:
            return
        self._rebalance_at = now + min(self._lease // 3, _REBALANCE_INTERVAL)
        held = self.assignment
        allowed = self._join(held)
        if lost := held - allowed:
            self._on_revoke(lost)
            if self._auto_commits:
                self._auto_commit(lost)
            self._fetcher.drop(lost)
            allowed = self._join(self.assignment)
        if gained := allowed - held:
            self._fetcher.add(gained, self._log.committed(self._group) if self._group else {})
            self._on_assign(gained)

    def _join(self, held: Partitions) -> Partitions:
        if self._group is None:
            return frozenset(self._log.extents(self._topics))
        return self._log.join(self._group, self._member, self._topics, held, self._lease).partitions

    def _leave(self) -> None:
        if self._group is not None and self._topics:
            if self._auto_commits:
                self._auto_commit(self.assignment)
            self._log.leave(self._group, self._member)

    def close(self) -> None:
        """Commits with `auto_commit`, and leaves the group."""
        self._leave()
        self._topics = ()
        self._fetcher.drop(self.assignment)
        if self._owns_log:
            self._log.close()


def _ignore(_: Partitions) -> None:
    pass
