"""Reads a Kafka cluster: the offsets of partitions, and ranges of records.

`PartitionReader.read` takes a consumer from a pool, so that a range which begins where the last one ended continues on
the same consumer, which has already fetched ahead.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from headrace.errors import LogBusyError, LogUnavailableError, OffsetOutOfRangeError, UnknownTopicError
from headrace.log.kafka.clients import (
    CHECK_BROKERS,
    MOVING,
    NO_ANSWER,
    AdminConnection,
    ClientSettings,
    Deadline,
    ask,
    ask_all,
    create_reader,
    kafka,
    kafka_admin,
    translate_error,
    translate_errors,
)
from headrace.log.kafka.topics import Topics
from headrace.log.protocol import Chunk, Extent, Records
from headrace.log.validation import check_deletion, check_partition, check_range, check_topic_id
from headrace.model.ids import TopicPartition
from headrace.model.record import Headers

_MAX_RECORDS = 20_000  # of one chunk
_PAUSE = 0.02  # seconds between two requests for offsets
_ENDS_TIMEOUT = 1.0  # seconds; after it the admin client is asked
_IDLE_CONSUMERS = 8  # kept in the pool
_Message: Any = kafka.Message
_KEY, _VALUE, _OFFSET = _Message.key, _Message.value, _Message.offset
_TIMESTAMP, _HEADERS, _ERROR = _Message.timestamp, _Message.headers, _Message.error
_END = kafka.KafkaError._PARTITION_EOF  # noqa: SLF001 - a public name
# The client reconnects by itself. It also looks for the coordinator of its group, although nothing is committed for it.
_IGNORED = {*NO_ANSWER, *MOVING, kafka.KafkaError.GROUP_AUTHORIZATION_FAILED}
# The client takes the timestamp 0 for "now". It is written as -1, which Kafka's own clients show as "no timestamp".
NO_TIME = -1
# The latest offset that consumers of committed records see is the one up to which all transactions have ended.
_LATEST, _EARLIEST = kafka_admin.OffsetSpec.latest(), kafka_admin.OffsetSpec.earliest()


# -------------------------------------------------------------------------------------------------------- consumers
class PartitionConsumer:
    """A consumer that reads one partition. It continues at `position` of `at`; if `at` is None, it reads nothing."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.at: TopicPartition | None = None
        self.position = -1
        self.fetched: list[Any] = []  # messages from `position` on
        self.end = -1  # the end of the partition, once the client has reported it, which it does only once
        self.topics = set[str]()  # whose leaders the client knows

    def stay(self, at: TopicPartition, position: int, fetched: list[Any]) -> None:
        """Lets the consumer fetch ahead from a position."""
        self.at, self.position, self.fetched = at, position, fetched

    def unassign(self) -> None:
        self.at, self.fetched = None, []
        self.client.unassign()


class ConsumerPool:
    """Idle consumers of a process."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._idle: list[PartitionConsumer] = []
        self._is_closed = False

    @contextmanager
    def borrow(self, at: TopicPartition, position: int) -> Generator[PartitionConsumer]:
        """Returns the consumer that continues at a position, or any idle one. After an error it is closed."""
        consumer = self._take(at, position)
        is_usable = False
        try:
            yield consumer
            is_usable = True
        except GeneratorExit:  # the caller did not read to the end of the range
            consumer.at = None
            is_usable = True
            raise
        finally:
            self._give_back(consumer, is_usable=is_usable)

    def _take(self, at: TopicPartition, position: int) -> PartitionConsumer:
        with self._lock:
            continuing = [idle for idle in self._idle if (idle.at, idle.position) == (at, position)]
            free = [idle for idle in self._idle if idle.at is None or idle.at == at]
            for consumer in (*continuing, *free):
                self._idle.remove(consumer)
                return consumer
        return PartitionConsumer(create_reader(self._settings))

    def _give_back(self, consumer: PartitionConsumer, *, is_usable: bool) -> None:
        closed: PartitionConsumer | None = consumer
        with self._lock:
            is_kept = is_usable and not self._is_closed
            if is_kept:
                self._idle.append(consumer)
                closed = self._idle.pop(0) if len(self._idle) > _IDLE_CONSUMERS else None
        if is_kept and consumer.at is None:
            consumer.unassign()
        if closed is not None:
            closed.client.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle, self._is_closed = self._idle, [], True
        for consumer in idle:
            consumer.client.close()


class PartitionReader:
    """Reads the offsets and the records of partitions."""

    def __init__(self, admin: AdminConnection, topics: Topics) -> None:
        self._admin, self._topics, self._timeout = admin, topics, admin.settings.timeout
        self._pool = ConsumerPool(admin.settings)
        self._ends: dict[tuple[str, int], int] = {}  # by topic id and partition, as last seen
        self._counts: dict[str, tuple[str, int]] = {}  # topic id and number of partitions by topic, as last seen
        self._lock = threading.Lock()
        self._asking: Any = None  # a consumer that is asked for ends

    def close(self) -> None:
        self._pool.close()
        with self._lock:
            client, self._asking = self._asking, None
        if client is not None:
            client.close()

    # ----------------------------------------------------------------------------------------------------- offsets
    def extents(self, names: Sequence[str]) -> dict[TopicPartition, Extent]:
        # The topics and the extents are requested at the same time, if the partitions are probably known.
        answer = self._topics.begin_get(names)
        expected, extents = {name: self._counts.get(name) for name in names}, self._guess_extents(names)
        topics = answer()
        counts = {name: (topic.id, topic.partitions) for name, topic in topics.items()}
        partitions = _list_partitions(counts)
        if counts != expected or not extents:
            self._counts.update(counts)
            extents = self._request_extents(partitions)
        seen = {at: self._ends.get((topics[at.topic].id, at.partition), 0) for at in partitions}
        deadline = time.monotonic() + self._timeout
        # A broker that has just started may hide the end of a partition for a moment.
        while any(extents[at].end < end for at, end in seen.items()) and time.monotonic() < deadline:
            time.sleep(_PAUSE)
            extents = self._request_extents(partitions)
        self._ends.update({(topics[at.topic].id, at.partition): extents[at].end for at in partitions})
        return extents

    def _guess_extents(self, names: Sequence[str]) -> dict[TopicPartition, Extent]:
        """Returns the extents of the partitions that the topics had last time; none if a topic is new."""
        counts = {name: self._counts[name] for name in names if name in self._counts}
        if len(counts) < len(names):
            return {}
        try:
            return self._request_extents(_list_partitions(counts))
        except UnknownTopicError:
            return {}

    def _request_extents(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Extent]:
        first, last = self._request_offsets(dict.fromkeys(partitions, _EARLIEST), dict.fromkeys(partitions, _LATEST))
        return {at: Extent(first[at], last[at]) for at in partitions}

    def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the ends of partitions: the offsets up to which readers see records."""
        # A consumer knows the leaders, so it needs one request, and the admin client two. The latter explains errors.
        with self._lock:
            if self._asking is None:
                self._asking = create_reader(self._admin.settings)
            client = self._asking
        wanted = [kafka.TopicPartition(*at, kafka.OFFSET_END) for at in partitions]
        found: list[Any] = []
        with suppress(kafka.KafkaException):
            found = client.offsets_for_times(wanted, timeout=_ENDS_TIMEOUT) if wanted else []
        if len(found) == len(wanted) and not any(at.error or at.offset < 0 for at in found):
            return {TopicPartition(at.topic, at.partition): at.offset for at in found}
        return self._request_offsets(dict.fromkeys(partitions, _LATEST))[0]

    def _request_offsets(self, *wanted: Mapping[TopicPartition, Any]) -> list[dict[TopicPartition, int]]:
        """Returns the offsets for mappings from partitions to offset specs. Repeats while partitions move."""
        end = time.monotonic() + self._timeout
        while True:
            try:
                return self._try_request_offsets(wanted)
            except LogBusyError:
                if time.monotonic() > end:
                    raise
                time.sleep(_PAUSE)
                self._topics.names()  # refreshes the client's metadata

    def _try_request_offsets(self, wanted: Sequence[Mapping[TopicPartition, Any]]) -> list[dict[TopicPartition, int]]:
        def request(timeout: float) -> dict[tuple[int, TopicPartition], Future[Any]]:
            return {
                (i, TopicPartition(at.topic, at.partition)): future
                for i, specs in enumerate(wanted)
                if specs
                for at, future in self._admin.client.list_offsets(
                    {kafka.TopicPartition(*at): spec for at, spec in specs.items()},
                    isolation_level=kafka.IsolationLevel.READ_COMMITTED,
                    request_timeout=timeout,
                ).items()
            }

        names = sorted({at.topic for specs in wanted for at in specs})
        found: list[dict[TopicPartition, int]] = [{} for _ in wanted]
        doing = f"asking for the offsets of {', '.join(names)}"
        for (i, at), future in ask_all(self._admin, doing, request, NO_ANSWER).items():
            with translate_errors(f"asking for the offsets of {at}"):
                offset = future.result().offset
                if offset == kafka.OFFSET_INVALID:  # the client reports a leader that did not answer as a success
                    raise LogBusyError(f"asking for the offsets of {at} got no answer. {CHECK_BROKERS}")
                found[i][at] = offset
        return found

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        self._check_partitions(times)
        # Below 1 there may be records whose time is written as -1.
        specs = {at: kafka_admin.OffsetSpec.for_timestamp(max(time, 1)) for at, time in times.items()}
        offsets = self._request_offsets(specs)[0]
        extents = self._request_extents([at for at, time in times.items() if time < 1])
        found: dict[TopicPartition, int | None] = {at: None if offsets[at] < 0 else offsets[at] for at in times}
        found.update({at: extent.earliest if extent.earliest < extent.end else None for at, extent in extents.items()})
        return found

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        self._check_partitions(before)
        for at, extent in self._request_extents(list(before)).items():
            check_deletion(at, extent, before[at])
        wanted = [kafka.TopicPartition(*at, offset) for at, offset in before.items()]
        with translate_errors("deleting records"):
            answers = self._admin.client.delete_records(wanted, request_timeout=self._timeout)
            return {TopicPartition(at.topic, at.partition): of.result().low_watermark for at, of in answers.items()}

    def _check_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        topics = self._topics.get(*sorted({at.topic for at in partitions}))
        for at in partitions:
            check_partition(at, topics[at.topic].partitions)

    # ----------------------------------------------------------------------------------------------------- records
    def read(
        self, at: TopicPartition, start: int, end: int | None, topic_id: str | None = None, has_more: bool | None = None
    ) -> Generator[Chunk]:
        check = partial(self._check_range, at, start, end, topic_id)
        if end is not None and has_more is not None:
            return self._read_chunks(at, start, end, has_more=has_more, check=check)
        extent = check()
        end = extent.end if end is None else end
        return self._read_chunks(at, start, end, has_more=extent.end > end)

    def _check_range(self, at: TopicPartition, start: int, end: int | None, topic_id: str | None) -> Extent:
        """Raises if the partition does not have the offsets of a range."""
        topic = self._topics.get(at.topic)[at.topic]
        check_partition(at, topic.partitions)
        check_topic_id(at.topic, topic.id, topic_id)
        extent = self._request_extents([at])[at]
        check_range(at, extent, start, extent.end if end is None else end)
        return extent

    def _read_chunks(
        self, at: TopicPartition, start: int, end: int, *, has_more: bool, check: Callable[[], Extent] | None = None
    ) -> Generator[Chunk]:
        """Reads a range. With `has_more` the consumer keeps fetching behind `end`. `check` explains failures."""
        if start == end:
            return
        with self._pool.borrow(at, start) as consumer, translate_errors(f"reading {at}"):
            try:
                for messages, behind in self._poll_range(consumer, at, start, end, check):
                    if messages:
                        yield _make_chunk(messages)
                    if behind or (has_more and behind is not None):
                        consumer.stay(at, end, behind)
                    elif behind is not None:
                        consumer.at = None
            except (OffsetOutOfRangeError, UnknownTopicError):
                if check is not None:
                    check()  # raises an error that says more
                raise

    def _poll_range(
        self, consumer: PartitionConsumer, at: TopicPartition, start: int, end: int, check: Callable[[], Extent] | None
    ) -> Iterator[tuple[list[Any], list[Any] | None]]:
        """Yields the messages of a range as they arrive; with the last ones, the messages behind the range."""
        client, doing = consumer.client, f"reading {at}"
        fetched = consumer.fetched
        if (consumer.at, consumer.position) != (at, start):
            fetched, consumer.end = [], -1
            if at.topic not in consumer.topics:
                # Without this the client finds the leader of a topic that is new to it only a second later.
                ask(self._admin, doing, lambda timeout: client.list_topics(at.topic, timeout=timeout))
                consumer.topics.add(at.topic)
            client.assign([kafka.TopicPartition(*at, start)])
        deadline = Deadline(doing, self._admin.settings)
        while True:
            # `consume` waits until it has as many messages as were asked for: so wait for one, then take what is there.
            messages = fetched or client.consume(1, 0 if consumer.end >= end else 1.0)
            fetched = []
            messages += client.consume(_MAX_RECORDS, 0)
            in_range, behind = _split_at_end(consumer, messages, at, end)
            if in_range or behind is not None:
                yield in_range, behind
                deadline = Deadline(doing, self._admin.settings)
            if behind is not None:
                return
            if check is not None and not messages:
                check()  # nothing arrived: the range may not exist
                check = None
            if deadline.left < 0:
                raise LogUnavailableError(f"reading {at} got no answer for {self._timeout:g} s. {CHECK_BROKERS}")
            deadline.warn_if_due()


def _list_partitions(counts: Mapping[str, tuple[str, int]]) -> list[TopicPartition]:
    return [TopicPartition(name, i) for name, (_, partitions) in counts.items() for i in range(partitions)]


def _split_at_end(
    consumer: PartitionConsumer, messages: list[Any], at: TopicPartition, end: int
) -> tuple[list[Any], list[Any] | None]:
    """Returns the messages before `end`, and those behind it, or None if the end was not reached.

    The client does not show aborted records, transaction markers, and records that compaction removed. So the end is
    reached with the last record before it, with any record at or behind it, or with the end of the partition.
    """
    errors: list[Any] = list(map(_ERROR, messages))
    if any(errors):
        for message, error in zip(messages, errors, strict=True):
            if error is None:
                continue
            if error.code() == _END:
                consumer.end = max(consumer.end, message.offset())
            elif error.code() not in _IGNORED:
                raise _reading_error(error, at)
        messages = [message for message, error in zip(messages, errors, strict=True) if error is None]
    if messages and messages[-1].offset() >= end - 1:
        split = bisect_left(messages, end, key=_OFFSET)
        return messages[:split], messages[split:]
    return messages, [] if consumer.end >= end else None


def _reading_error(error: Any, at: TopicPartition) -> Exception:
    found = translate_error(error, f"reading {at}")
    if isinstance(found, OffsetOutOfRangeError):
        return OffsetOutOfRangeError(f"{at} lost records while it was read: retention removed them ({error})", at=at)
    return found


def _make_chunk(messages: list[Any]) -> Chunk:
    # Reading the fields of messages is a third of the time for a record; `map` does it without a frame for each.
    times: list[int] = [time for _, time in map(_TIMESTAMP, messages)]
    if NO_TIME in times:
        times = [0 if time == NO_TIME else time for time in times]
    found: list[Any] = list(map(_HEADERS, messages))
    headers: list[Headers] | None = [tuple(pairs or ()) for pairs in found] if any(found) else None
    keys: list[Any] = list(map(_KEY, messages))
    values: list[Any] = list(map(_VALUE, messages))
    offsets: list[int] = list(map(_OFFSET, messages))
    return Chunk(offsets, Records(keys, values, times, headers))
