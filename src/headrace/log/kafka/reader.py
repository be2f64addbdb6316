"""Ranges of records, read from a Kafka cluster."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from headrace.errors import LogBusyError, LogUnavailableError, OffsetOutOfRangeError, UnknownTopicError
from headrace.log.kafka.clients import Clients, Reader, administration, kafka
from headrace.log.kafka.requests import MOVING, NO_ANSWER, Wait, answers, ask, explained, translated
from headrace.log.kafka.topics import Topics
from headrace.log.protocol import Chunk, Extent, Records
from headrace.log.validation import check_range, check_topic_ids
from headrace.model.ids import TopicPartition
from headrace.model.record import Headers

_AT_ONCE = 20_000  # records of a chunk, at most
_ASK_AGAIN = 0.02  # seconds
_Message: Any = kafka.Message
_KEY, _VALUE, _OFFSET = _Message.key, _Message.value, _Message.offset
_TIMESTAMP, _HEADERS, _ERROR = _Message.timestamp, _Message.headers, _Message.error
_END = kafka.KafkaError._PARTITION_EOF  # noqa: SLF001 - a public name
# The client connects again by itself, and looks for the coordinator of a group that nothing is committed for.
_PASSING = {*NO_ANSWER, *MOVING, kafka.KafkaError.GROUP_AUTHORIZATION_FAILED}
# The client takes the time 0 for "now". It is written as -1, which Kafka's own clients show as "no timestamp".
NO_TIME = -1
Look = Callable[[], Extent]  # raises if a range is not there


class Reading:
    """What `Log` says of offsets and of reading."""

    def __init__(self, clients: Clients, topics: Topics) -> None:
        self._clients, self._topics, self._patience = clients, topics, clients.settings.patience
        self._ends: dict[tuple[str, int], int] = {}  # by topic id and partition, as last seen
        self._counts: dict[str, tuple[str, int]] = {}  # ids and numbers of partitions, as last seen

    # ----------------------------------------------------------------------------------------------------- offsets
    def extents(self, names: Sequence[str]) -> dict[TopicPartition, Extent]:
        answer = self._topics.asking(names)
        expected, extents = {name: self._counts.get(name) for name in names}, self._expected(names)
        topics = {name: topic or self._topics.one(name) for name, topic in answer().items()}
        counts = {name: (topic.id, topic.partitions) for name, topic in topics.items()}
        places = _places(counts)
        if counts != expected or not extents:
            self._counts.update(counts)
            extents = self._extents_of(places)
        seen = {at: self._ends.get((topics[at.topic].id, at.partition), 0) for at in places}
        patience = time.monotonic() + self._patience
        # A broker that has just started may hide the end of a partition for a moment.
        while any(extents[at].end < end for at, end in seen.items()) and time.monotonic() < patience:
            time.sleep(_ASK_AGAIN)
            extents = self._extents_of(places)
        self._ends.update({(topics[at.topic].id, at.partition): extents[at].end for at in places})
        return extents

    def _expected(self, names: Sequence[str]) -> dict[TopicPartition, Extent]:
        """The extents if the topics are those of the last time, asked for without waiting to hear that they are."""
        counts = {name: self._counts[name] for name in names if name in self._counts}
        if len(counts) < len(names):
            return {}
        try:
            return self._extents_of(_places(counts))
        except UnknownTopicError:
            return {}

    def _extents_of(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, Extent]:
        specs = administration.OffsetSpec
        first, last = self._offsets(dict.fromkeys(places, specs.earliest()), dict.fromkeys(places, specs.latest()))
        return {at: Extent(first[at], last[at]) for at in places}

    def ends(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Up to where readers see records."""
        return self._offsets(dict.fromkeys(places, administration.OffsetSpec.latest()))[0]

    def _offsets(self, *wanted: Mapping[TopicPartition, Any]) -> list[dict[TopicPartition, int]]:
        """Offsets, also when partitions move from broker to broker while one asks."""
        end = time.monotonic() + self._patience
        while True:
            try:
                return self._asked(wanted)
            except LogBusyError:
                if time.monotonic() > end:
                    raise
                time.sleep(_ASK_AGAIN)
                self._topics.names()  # so that the client learns where partitions are now

    def _asked(self, wanted: Sequence[Mapping[TopicPartition, Any]]) -> list[dict[TopicPartition, int]]:
        doing = f"asking for the offsets of {', '.join(sorted({at.topic for some in wanted for at in some}))}"
        found: list[dict[TopicPartition, int]] = [{} for _ in wanted]
        for (number, at), future in answers(self._clients, doing, partial(self._ask_all, wanted), NO_ANSWER).items():
            with explained(f"asking for the offsets of {at}"):
                found[number][at] = future.result().offset
        return found

    def _ask_all(
        self, wanted: Sequence[Mapping[TopicPartition, Any]], length: float
    ) -> dict[tuple[int, TopicPartition], Any]:
        asked = [self._ask(some, length) for some in wanted]
        return {(number, at): future for number, some in enumerate(asked) for at, future in some.items()}

    def _ask(self, wanted: Mapping[TopicPartition, Any], length: float) -> dict[TopicPartition, Any]:
        """Futures of offsets; the latest one is that up to which transactions have ended."""
        if not wanted:
            return {}
        specs = {kafka.TopicPartition(*at): spec for at, spec in wanted.items()}
        level = kafka.IsolationLevel.READ_COMMITTED
        asked = self._clients.admin.list_offsets(specs, isolation_level=level, request_timeout=length)
        return {TopicPartition(at.topic, at.partition): future for at, future in asked.items()}

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        for at, topic in self._known(times):
            self._topics.place(at, topic)
        specs = administration.OffsetSpec
        # Below 1 there may be records whose time is written as -1.
        late = self._offsets({at: specs.for_timestamp(max(at_least, 1)) for at, at_least in times.items()})[0]
        early = self._extents_of([at for at, at_least in times.items() if at_least < 1])
        found: dict[TopicPartition, int | None] = {at: None if late[at] < 0 else late[at] for at in times}
        found.update({at: extent.earliest if extent.earliest < extent.end else None for at, extent in early.items()})
        return found

    def _known(self, places: Iterable[TopicPartition]) -> list[tuple[TopicPartition, Any]]:
        topics = self._topics.known(sorted({at.topic for at in places}))
        return [(at, topics[at.topic]) for at in places]

    def delete(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        for at, topic in self._known(before):
            self._topics.place(at, topic)
        for at, extent in self._extents_of(list(before)).items():
            if not -1 <= before[at] <= extent.end:
                raise OffsetOutOfRangeError(
                    f"{at} ends at offset {extent.end}: no records before {before[at]} can be deleted",
                    at=at, earliest=extent.earliest, end=extent.end,
                )  # fmt: skip
        wanted = [kafka.TopicPartition(*at, offset) for at, offset in before.items()]
        with explained("deleting records"):
            asked = self._clients.admin.delete_records(wanted, request_timeout=self._patience)
            return {TopicPartition(at.topic, at.partition): of.result().low_watermark for at, of in asked.items()}

    # ----------------------------------------------------------------------------------------------------- records
    def read(
        self, at: TopicPartition, start: int, end: int | None, topic_id: str | None, more: bool | None = None
    ) -> Generator[Chunk]:
        look = partial(self._checked, at, start, end, topic_id)
        if end is not None and more is not None:
            return self._chunks(at, start, end, more=more, look=look)
        extent = look()
        end = extent.end if end is None else end
        return self._chunks(at, start, end, more=extent.end > end)

    def _checked(self, at: TopicPartition, start: int, end: int | None, topic_id: str | None) -> Extent:
        """Sees whether a range is there."""
        topic = self._topics.one(at.topic)
        self._topics.place(at, topic)
        if topic_id is not None:
            check_topic_ids({at.topic: topic_id}, lambda _: topic)
        extent = self._extents_of([at])[at]
        check_range(at, extent, start, extent.end if end is None else end)
        return extent

    def _chunks(
        self, at: TopicPartition, start: int, end: int, *, more: bool, look: Look | None = None
    ) -> Generator[Chunk]:
        """`more`: there is more behind the end, which will be read next."""
        if start == end:
            return
        with self._clients.reader(at, start) as reader, explained(f"reading {at}"):
            try:
                for good, rest in self._ranged(reader, at, start, end, look):
                    if good:
                        yield _chunk(good)
                    if rest or (more and rest is not None):
                        reader.stay(at, end, rest)
                    elif rest is not None:
                        reader.at = None
            except (OffsetOutOfRangeError, UnknownTopicError):
                if look is not None:
                    look()  # it can say more
                raise

    def _ranged(
        self, reader: Reader, at: TopicPartition, start: int, end: int, look: Look | None
    ) -> Iterator[tuple[list[Any], list[Any] | None]]:
        """The messages of a range as they come; with the last ones come those that lie behind it."""
        consumer, waiting = reader.consumer, reader.rest
        if (reader.at, reader.position) != (at, start):
            waiting, reader.upto = [], -1
            # Without this look the client finds out where a topic is that is new to it only a second later.
            ask(self._clients, f"reading {at}", lambda length: consumer.list_topics(at.topic, timeout=length))
            consumer.assign([kafka.TopicPartition(*at, start)])
        wait = self._wait(at)
        while True:
            # The first call waits; it would wait for as many records as it is to give, if these were more than one.
            messages = waiting or consumer.consume(1, 0 if reader.upto >= end else 1.0)
            waiting = []
            messages += consumer.consume(_AT_ONCE, 0)
            good, rest = _sorted_out(reader, messages, at, end)
            if good or rest is not None:
                yield good, rest
                wait = self._wait(at)
            if rest is not None:
                return
            if look is not None and not messages:
                look()  # it takes long: perhaps it is not there
                look = None
            if wait.left < 0:
                raise LogUnavailableError(
                    f"reading {at} got no answer for {self._patience:g} s. Are the brokers running, and reachable?"
                )
            wait.tell()

    def _wait(self, at: TopicPartition) -> Wait:
        return Wait(f"reading {at}", self._clients.settings.servers, self._patience)


def _places(counts: Mapping[str, tuple[str, int]]) -> list[TopicPartition]:
    return [TopicPartition(name, i) for name, (_, partitions) in counts.items() for i in range(partitions)]


def _sorted_out(
    reader: Reader, messages: list[Any], at: TopicPartition, end: int
) -> tuple[list[Any], list[Any] | None]:
    """The records before the end, and, once it was reached, those behind it.

    Aborted records and the marks of transactions are not shown, nor what compaction removed: so the end is reached with
    the last record before it, with any at or behind it, or with the end of the partition.
    """
    errors: list[Any] = list(map(_ERROR, messages))
    if any(errors):
        for message, error in zip(messages, errors, strict=True):
            if error is None:
                continue
            if error.code() == _END:
                reader.upto = max(reader.upto, message.offset())
            elif error.code() not in _PASSING:
                raise _trouble(error, at)
        messages = [message for message, error in zip(messages, errors, strict=True) if error is None]
    if messages and messages[-1].offset() >= end - 1:
        upto = bisect_left(messages, end, key=_OFFSET)
        return messages[:upto], messages[upto:]
    return messages, [] if reader.upto >= end else None


def _trouble(error: Any, at: TopicPartition) -> Exception:
    found = translated(error, f"reading {at}")
    if isinstance(found, OffsetOutOfRangeError):
        return OffsetOutOfRangeError(f"{at} lost records while it was read: retention removed them ({error})", at=at)
    return found


def _chunk(messages: list[Any]) -> Chunk:
    # Asking each message is a third of the time that a record takes; `map` does it without a frame for every one.
    times: list[int] = [at for _, at in map(_TIMESTAMP, messages)]
    if NO_TIME in times:
        times = [0 if at == NO_TIME else at for at in times]
    found: list[Any] = list(map(_HEADERS, messages))
    headers: list[Headers] | None = [tuple(some or ()) for some in found] if any(found) else None
    keys: list[Any] = list(map(_KEY, messages))
    values: list[Any] = list(map(_VALUE, messages))
    offsets: list[int] = list(map(_OFFSET, messages))
    return Chunk(offsets, Records(keys, values, times, headers))
