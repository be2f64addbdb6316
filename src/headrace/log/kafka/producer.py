"""Records on their way to a Kafka cluster: checked before the first one leaves, and sent each once."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from itertools import count, repeat
from typing import Any

from headrace.errors import LogCorruptedError, LogUnavailableError, ProducerFencedError, StateCorruptedError
from headrace.log.chunk_format import record_length, unpack
from headrace.log.kafka.clients import Clients, kafka, make
from headrace.log.kafka.reader import NO_TIME, Reading
from headrace.log.kafka.requests import NEW, code_of, explained, translated
from headrace.log.kafka.topics import Topics
from headrace.log.protocol import Item, ProducerSequence, Records, Topic
from headrace.log.validation import check_record_length
from headrace.model.ids import TopicPartition

BATCH = 1_000_000  # bytes that a producer sends at once; no more than a topic takes
_RECENT = 1000  # producers whose last append is remembered
Load = list[tuple[TopicPartition, Records]]


class Checking:
    """Looks at records before they are sent, so that all of them can be stored, or none is."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._settings: dict[str, tuple[str, Mapping[str, str]]] = {}  # by topic, with its id

    def __call__(self, items: Sequence[Item]) -> tuple[Load, int]:
        """The records, and the largest batch that all of their topics take."""
        load = [(TopicPartition(*at), _unpacked(TopicPartition(*at), records)) for at, records in items]
        topics = self._topics.known(sorted({at.topic for at, _ in load}))
        limits = [BATCH]
        for at, records in load:
            self._topics.place(at, topics[at.topic])
            settings = self._settings_of(topics[at.topic])
            limits.append(int(settings["max.message.bytes"]))
            _check(at, records, settings)
        return load, min(limits)

    def forget(self, topic: str) -> None:
        """The settings of a topic were changed."""
        self._settings.pop(topic, None)

    def _settings_of(self, topic: Topic) -> Mapping[str, str]:
        known = self._settings.get(topic.name)
        if known is None or known[0] != topic.id:
            known = self._settings[topic.name] = (topic.id, topic.config)
        return known[1]


def _unpacked(at: TopicPartition, records: Records | bytes) -> Records:
    if isinstance(records, Records):
        return records
    try:
        found, offsets = unpack(records)
    except StateCorruptedError as error:
        raise LogCorruptedError(f"records for {at} arrived damaged: {error}", at=at) from None
    if offsets is not None:
        raise ValueError(f"records for {at} were packed with offsets: the log gives them, when they are appended")
    return found


def _check(at: TopicPartition, records: Records, settings: Mapping[str, str]) -> None:
    keys, values, times = records.keys, records.values, records.timestamps
    if not len(keys) == len(values) == len(times) or len(records.headers or times) != len(times):
        raise ValueError(f"the columns of records for {at} are not of the same length")
    if not all(raw is None or type(raw) is bytes for raw in keys):
        raise TypeError(f"the keys of records for {at} are bytes or None")
    if not all(raw is None or type(raw) is bytes for raw in values):
        raise TypeError(f"the values of records for {at} are bytes or None")
    if times and max(times) >= 2**63:
        raise OverflowError(f"a timestamp of a record for {at} does not fit into 64 bits")
    if "compact" in settings["cleanup.policy"] and None in keys:
        raise ValueError(f"the topic {at.topic!r} is compacted: every record needs a key, and one of these has none")
    limit = int(settings["max.message.bytes"])
    if records.headers is not None or sum(map(len, filter(None, [*keys, *values]))) > limit:
        for length in map(record_length, keys, values, records.headers or [()] * len(times)):
            check_record_length(at.topic, length, limit)


def send(producer: Any, load: Load, on_delivery: Sequence[Any], *, of_all: bool) -> None:
    """Hands records to a producer, and waits while it has too many. Each item's function learns of all, or the last."""
    for (at, records), told in zip(load, on_delivery, strict=True):
        last = len(records) - 1
        _produce(producer, at, records.slice(0, last), told if of_all else None)
        _produce(producer, at, records.slice(last, last + 1), told)


def _produce(producer: Any, at: TopicPartition, records: Records, told: Any) -> None:
    (topic, partition), produce, sent, has_looked = at, producer.produce, 0, False
    while sent < len(records):
        part = records.slice(sent, len(records))
        headers = map(list, part.headers) if part.headers else repeat([])
        try:
            # By position a call takes half the time of one with names: (…, callback, its other name, time, headers).
            for key, value, timestamp, some in zip(part.keys, part.values, part.timestamps, headers):  # noqa: B905
                produce(topic, value, key, partition, told, None, timestamp or NO_TIME, some)
                sent += 1
        except BufferError:
            producer.poll(0.1)
        except kafka.KafkaException as error:  # a partition that is there, as was seen, but new to this producer
            if has_looked or code_of(error) not in NEW:
                raise
            producer.list_topics(topic, timeout=10)
            has_looked = True


class _Tally:
    """What became of the records of one item."""

    def __init__(self) -> None:
        self.done, self.first, self.error = 0, -1, None

    def __call__(self, error: Any, message: Any) -> None:
        if error is not None:
            self.error = self.error or error
        elif self.first < 0:
            self.first = message.offset()
        self.done += 1


class Appending:
    """What `Log` says of appending. Every record is stored once; when brokers fail, an append may be stored in part."""

    def __init__(self, clients: Clients, checking: Checking, reading: Reading) -> None:
        self._clients, self._checking, self._reading = clients, checking, reading
        self._lock = threading.Lock()
        self._producer: Any = None
        self._batch = BATCH
        self._numbers = count(1)
        self._stamped: dict[int, tuple[int, list[int]]] = {}  # the last append of each producer, and its offsets

    def new_producer(self) -> int:
        with self._lock:
            number = next(self._numbers)
            self._stamped[number] = (-1, [])
            while len(self._stamped) > _RECENT:
                del self._stamped[next(iter(self._stamped))]
            return number

    def append(self, items: Sequence[Item], stamp: ProducerSequence | None) -> list[int]:
        load, batch = self._checking(items)
        if stamp is None:
            return self._send(load, batch)
        before = self._stored_before(stamp)
        if before is None:
            before = self._send(load, batch)
            self._stamped[stamp.producer_id] = (stamp.number, before)
        return before

    def _stored_before(self, stamp: ProducerSequence) -> list[int] | None:
        """The offsets that an append got when it came for the first time; None if this is it."""
        if stamp.producer_id not in self._stamped:
            raise ProducerFencedError(f"the producer {stamp.producer_id} is unknown: make a new one")
        last, offsets = self._stamped[stamp.producer_id]
        if last == stamp.number:
            return offsets
        if last + 1 != stamp.number:
            raise ProducerFencedError(
                f"producer {stamp.producer_id} appends number {stamp.number} after number {last}: two clients use one "
                "id, or an append was lost. Make a new producer"
            )
        return None

    def _send(self, load: Load, batch: int) -> list[int]:
        producer = self._ready(batch)
        tallies = [_Tally() for _ in load]
        try:
            with explained("an append"):
                send(producer, load, tallies, of_all=True)
            self._wait(producer, load, tallies)
        except BaseException:
            self._drop(producer)
            raise
        return [
            tally.first if len(records) else self._end(at) for (at, records), tally in zip(load, tallies, strict=True)
        ]

    def _end(self, at: TopicPartition) -> int:
        return self._reading.extents([at.topic])[at].end

    def _wait(self, producer: Any, load: Load, tallies: list[_Tally]) -> None:
        end = time.monotonic() + self._clients.settings.patience
        while not all(tally.done == len(records) for (_, records), tally in zip(load, tallies, strict=True)):
            producer.flush(0.2)
            if time.monotonic() > end:
                raise LogUnavailableError(
                    f"an append got no answer within {self._clients.settings.patience:g} seconds: some of its records "
                    "may be stored. Are the brokers running, and reachable?"
                )
        for (at, _), tally in zip(load, tallies, strict=True):
            if tally.error is not None:
                raise translated(tally.error, f"appending to {at}")

    def _ready(self, batch: int) -> Any:
        """The producer; its batches are as small as the strictest topic that it has met wants them."""
        with self._lock:
            if self._producer is not None and batch < self._batch:
                self._producer.flush(self._clients.settings.patience)
                self._producer = None
            if self._producer is None:
                self._batch = min(batch, self._batch)
                fixed = {"enable.idempotence": True, "acks": "all", "batch.size": self._batch}
                self._producer = make("producer", self._clients.settings, fixed)
            return self._producer

    def _drop(self, producer: Any) -> None:
        producer.purge()
        with self._lock:
            if self._producer is producer:
                self._producer = None

    def close(self) -> None:
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.flush(self._clients.settings.patience)
