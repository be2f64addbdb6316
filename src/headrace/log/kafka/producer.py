"""Producers of a Kafka cluster: they check records before the first one is sent, and store each record once.

`Appender` appends records outside of transactions. `TransactionalProducer.commit` begins a transaction, sends records,
and commits or aborts it. `RecordChecker` and `send` serve both.

The answer to a transaction counts only if it is definite: committed, aborted or fenced. After any other answer the
outcome is unknown. Then a new producer with the same transactional id is created, which ends the transaction of the old
one, and the delivery marker tells whether it was committed.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count, repeat
from types import NoneType
from typing import Any, TypeVar

from headrace.errors import LogUnavailableError, ProducerFencedError, StateCorruptedError, StreamsError
from headrace.log.chunk_format import record_length, unpack
from headrace.log.kafka.clients import (
    CHECK_BROKERS,
    FENCED,
    MOVING,
    NO_ANSWER,
    NOT_IN_METADATA,
    TRANSIENT,
    ClientSettings,
    Deadline,
    code_of,
    create_client,
    kafka,
    translate_error,
    translate_errors,
)
from headrace.log.kafka.reader import NO_TIME, PartitionReader
from headrace.log.kafka.topics import Topics
from headrace.log.protocol import Item, ProducerSequence, Records, Topic
from headrace.log.validation import (
    check_partition,
    check_record_length,
    damaged_item,
    is_next_append,
    item_with_offsets,
    missing_key,
)
from headrace.model.ids import TopicPartition

BATCH_SIZE = 1_000_000  # bytes that a producer sends at once; smaller if a topic accepts less
_MAX_PRODUCERS = 1000  # whose last append is remembered
Batch = list[tuple[TopicPartition, Records]]  # records to send, by partition
Result = TypeVar("Result")
_LOGGER = logging.getLogger("headrace.log.kafka")


class RecordChecker:
    """Checks records before they are sent, so that the cluster accepts all of them or none is sent."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._configs: dict[str, tuple[str, Mapping[str, str]]] = {}  # by topic, with its id
        self._described: dict[str, tuple[float, Topic]] = {}  # by topic, with the time

    def check(self, items: Sequence[Item], *, max_age: float = 0.0) -> tuple[Batch, int]:
        """Returns the unpacked records, and the largest batch size that all of their topics accept.

        What is known of the topics may be `max_age` seconds old.
        """
        batch = [(TopicPartition(*at), _unpack(TopicPartition(*at), records)) for at, records in items]
        topics = self._describe(sorted({at.topic for at, _ in batch}), max_age)
        sizes = [BATCH_SIZE]
        for at, records in batch:
            check_partition(at, topics[at.topic].partitions)
            config = self._config_of(topics[at.topic])
            sizes.append(int(config["max.message.bytes"]))
            _check_records(at, records, config)
        return batch, min(sizes)

    def _describe(self, names: Sequence[str], max_age: float) -> dict[str, Topic]:
        now = time.monotonic()
        known = {name: topic for name, (at, topic) in self._described.items() if now - at < max_age}
        if missing := [name for name in names if name not in known]:
            found = self._topics.get(*missing)
            self._described.update({name: (now, topic) for name, topic in found.items()})
            known |= found
        return known

    def forget_config(self, topic: str) -> None:
        """Reads the settings of a topic again the next time."""
        self._configs.pop(topic, None)

    def _config_of(self, topic: Topic) -> Mapping[str, str]:
        known = self._configs.get(topic.name)
        if known is None or known[0] != topic.id:
            known = self._configs[topic.name] = (topic.id, topic.config)
        return known[1]


def _unpack(at: TopicPartition, records: Records | bytes) -> Records:
    if isinstance(records, Records):
        return records
    try:
        unpacked, offsets = unpack(records)
    except StateCorruptedError as error:
        raise damaged_item(at, error) from None
    if offsets is not None:
        raise item_with_offsets(at)
    return unpacked


def _check_records(at: TopicPartition, records: Records, config: Mapping[str, str]) -> None:
    keys, values, times = records.keys, records.values, records.timestamps
    if not len(keys) == len(values) == len(times) or len(records.headers or times) != len(times):
        raise ValueError(f"the columns of records for {at} are not of the same length")
    for what, column in (("keys", keys), ("values", values)):
        if not set(map(type, column)) <= {bytes, NoneType}:
            raise TypeError(f"the {what} of records for {at} are bytes or None")
    if times and max(times) >= 2**63:
        raise OverflowError(f"a timestamp of a record for {at} does not fit into 64 bits")
    if "compact" in config["cleanup.policy"] and None in keys:
        raise missing_key(at.topic)
    limit = int(config["max.message.bytes"])
    longest = sum(max(map(len, filter(None, column)), default=0) for column in (keys, values))
    if records.headers is not None or longest > limit:
        for length in map(record_length, keys, values, records.headers or [()] * len(times)):
            check_record_length(at.topic, length, limit)


def send(producer: Any, batch: Batch, callbacks: Sequence[Any], *, of_all: bool) -> None:
    """Gives records to a producer, and waits while its queue is full.

    The callback of an item is called for each of its records with `of_all`, else for the last one.
    """
    for (at, records), callback in zip(batch, callbacks, strict=True):
        last = len(records) - 1
        _send_records(producer, at, records.slice(0, last), callback if of_all else None)
        _send_records(producer, at, records.slice(last, last + 1), callback)


def _send_records(producer: Any, at: TopicPartition, records: Records, callback: Any) -> None:
    (topic, partition), produce, sent, is_refreshed = at, producer.produce, 0, False
    while sent < len(records):
        rest = records.slice(sent, len(records))
        headers = map(list, rest.headers) if rest.headers else repeat([])
        try:
            # Positional arguments take half the time of keywords: (…, callback, its alias on_delivery, time, headers).
            for key, value, timestamp, pairs in zip(rest.keys, rest.values, rest.timestamps, headers):  # noqa: B905
                produce(topic, value, key, partition, callback, None, timestamp or NO_TIME, pairs)
                sent += 1
        except BufferError:
            producer.poll(0.1)
        except kafka.KafkaException as error:  # the partition exists, but is new to this producer
            if is_refreshed or code_of(error) not in NOT_IN_METADATA:
                raise
            producer.list_topics(topic, timeout=10)
            is_refreshed = True


# ---------------------------------------------------------------------------------------------- outside of transactions
class _ItemResult:
    """Counts the acknowledged records of one item, and keeps the first offset and the first error."""

    def __init__(self) -> None:
        self.acknowledged, self.first_offset, self.error = 0, -1, None

    def __call__(self, error: Any, message: Any) -> None:
        if error is not None:
            self.error = self.error or error
        elif self.first_offset < 0:
            self.first_offset = message.offset()
        self.acknowledged += 1


class Appender:
    """Appends records with an idempotent producer. If brokers fail, an append may be stored in part."""

    def __init__(self, settings: ClientSettings, checker: RecordChecker, reader: PartitionReader) -> None:
        self._settings, self._checker, self._reader = settings, checker, reader
        self._lock = threading.Lock()
        self._producer: Any = None
        self._batch_size = BATCH_SIZE
        self._ids = count(1)
        self._last_appends: dict[int, tuple[int, list[int]]] = {}  # number and offsets, by producer id

    def new_producer(self) -> int:
        with self._lock:
            producer_id = next(self._ids)
            self._last_appends[producer_id] = (-1, [])
            while len(self._last_appends) > _MAX_PRODUCERS:
                del self._last_appends[next(iter(self._last_appends))]
            return producer_id

    def append(self, items: Sequence[Item], sequence: ProducerSequence | None) -> list[int]:
        batch, batch_size = self._checker.check(items)
        if sequence is None:
            return self._send(batch, batch_size)
        if sequence.producer_id not in self._last_appends:
            raise ProducerFencedError(f"the producer {sequence.producer_id} is unknown: make a new one")
        last, offsets = self._last_appends[sequence.producer_id]
        if is_next_append(sequence, last):
            offsets = self._send(batch, batch_size)
            self._last_appends[sequence.producer_id] = (sequence.number, offsets)
        return offsets

    def append_unchecked(self, batch: Batch) -> list[int]:
        """Appends Headrace's own records without checking them against the settings of their topic."""
        return self._send(batch, BATCH_SIZE)

    def _send(self, batch: Batch, batch_size: int) -> list[int]:
        producer = self._open_producer(batch_size)
        results = [_ItemResult() for _ in batch]
        try:
            with translate_errors("an append"):
                send(producer, batch, results, of_all=True)
            self._wait(producer, batch, results)
        except BaseException:
            self._drop(producer)
            raise
        return [
            result.first_offset if len(records) else self._reader.extents([at.topic])[at].end
            for (at, records), result in zip(batch, results, strict=True)
        ]

    def _wait(self, producer: Any, batch: Batch, results: list[_ItemResult]) -> None:
        end = time.monotonic() + self._settings.timeout
        while not all(result.acknowledged == len(records) for (_, records), result in zip(batch, results, strict=True)):
            producer.flush(0.2)
            if time.monotonic() > end:
                raise LogUnavailableError(
                    f"an append got no answer within {self._settings.timeout:g} seconds: some of its records "
                    f"may be stored. {CHECK_BROKERS}"
                )
        for (at, _), result in zip(batch, results, strict=True):
            if result.error is not None:
                raise translate_error(result.error, f"appending to {at}")

    def _open_producer(self, batch_size: int) -> Any:
        """Returns the producer. It is replaced if a topic accepts only smaller batches than before."""
        with self._lock:
            if self._producer is not None and batch_size < self._batch_size:
                self._producer.flush(self._settings.timeout)
                self._producer = None
            if self._producer is None:
                self._batch_size = min(batch_size, self._batch_size)
                fixed = {"enable.idempotence": True, "acks": "all", "batch.size": self._batch_size}
                self._producer = create_client("producer", self._settings, fixed)
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
            producer.flush(self._settings.timeout)


# --------------------------------------------------------------------------------------------------------- transactions
_PAUSE, _RETRY_PAUSE, _PROGRESS = 0.002, 0.1, 2.0  # seconds
_PURGED = {kafka.KafkaError._PURGE_QUEUE, kafka.KafkaError._PURGE_INFLIGHT}  # noqa: SLF001 - public names
_RETRIED = {*NO_ANSWER, *MOVING, kafka.KafkaError.CONCURRENT_TRANSACTIONS}  # the previous transaction is being ended
_HAS_FAILED = {kafka.KafkaError._STATE, kafka.KafkaError._FATAL}  # noqa: SLF001
_IS_EMPTY = kafka.KafkaError.INVALID_TXN_STATE  # nothing was sent in the transaction
_NOT_WRITABLE = kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED


class OutcomeUnknownError(Exception):
    """It is not known whether a transaction was committed, or it was aborted for a reason that may pass."""


def retry_until_known(
    what: str, settings: ClientSettings, attempt: Callable[[], Result], reset: Callable[[], None]
) -> Result:
    """Repeats an attempt at a delivery until its outcome is known. `reset` drops the producer of the last attempt."""
    threads = settings.threads
    end = threads.seconds() + settings.timeout
    while True:
        try:
            return attempt()
        except OutcomeUnknownError as error:
            reset()
            _LOGGER.warning("It is not known whether %s was delivered: %s", what, error)
            if threads.seconds() > end:
                raise LogUnavailableError(f"{what} could not be delivered: {error}") from error
        threads.sleep(_RETRY_PAUSE)


class TransactionalProducer:
    """A producer with a transactional id. Creating one fences all earlier producers with that id.

    `name` is unique. `batch_size` is the most that it sends at once.
    """

    def __init__(self, settings: ClientSettings, topics: Topics, transactional_id: str, batch_size: int) -> None:
        self.batch_size, self.name, self._id = batch_size, secrets.token_hex(8), transactional_id
        self._settings, self._topics = settings, topics
        fixed = {"transactional.id": self._id, "batch.size": batch_size}
        self._producer = create_client("producer", settings, fixed)
        try:
            self._retry(self._producer.init_transactions)
        except kafka.KafkaException as error:
            found = self._translate(error)
            if code_of(error) in NO_ANSWER or error.args[0].retriable():
                raise OutcomeUnknownError(str(found)) from error
            raise found from error

    def commit(self, batch: Batch, markers: Batch, *, markers_last: bool = False) -> dict[TopicPartition, int]:
        """Stores records and markers in one transaction. Returns the last offset of each partition.

        Raises `ProducerFencedError` if another producer has the transactional id, or `OutcomeUnknownError`. With
        `markers_last` the markers are sent after all records have arrived: their partition is locked for less time.
        """
        producer, ends, failures = self._producer, dict[TopicPartition, int](), list[tuple[TopicPartition, Any]]()

        def on_delivery(error: Any, message: Any) -> None:
            at = TopicPartition(message.topic(), message.partition())
            if error is not None:
                failures.append((at, error))
            else:
                ends[at] = message.offset()

        try:
            producer.begin_transaction()
            try:
                self._send(batch, markers, on_delivery, markers_last=markers_last)
                self._retry(producer.commit_transaction)
            except kafka.KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                self._abort()
                raise self._explain_abort(error, failures) from error
        except kafka.KafkaException as error:
            raise self._fenced_or_unknown(error) from error
        except SystemError as error:  # a callback ran while the client was about to raise a fatal error
            raise self._fenced_or_unknown(error.__cause__ or error) from error
        return ends

    def abort(self, batch: Batch) -> None:
        """Stores records in a transaction, and aborts it: no reader of committed records sees them.

        If an earlier transaction of the producer is still open in their partitions, it is aborted there, too.
        """
        producer, failures = self._producer, list[Any]()

        def on_delivery(error: Any, _message: Any) -> None:
            if error is not None:
                failures.append(error)

        deadline = Deadline(self._doing, self._settings)
        try:
            producer.begin_transaction()
            send(producer, batch, [on_delivery] * len(batch), of_all=False)
            while producer.flush(deadline.next_slice()):  # what has not arrived when it is aborted ends nothing
                if deadline.left <= 0:
                    raise OutcomeUnknownError(f"{self._doing} got no answer")
            self._abort()
        except kafka.KafkaException as error:
            raise self._fenced_or_unknown(error) from error
        for error in failures:
            raise OutcomeUnknownError(str(translate_error(error, self._doing)))

    def _send(
        self, batch: Batch, markers: Batch, on_delivery: Callable[[Any, Any], None], *, markers_last: bool
    ) -> None:
        try:
            send(self._producer, batch, [on_delivery] * len(batch), of_all=False)
            if markers_last:
                before, left = -1, self._producer.flush(_PROGRESS)
                while left and left != before:  # as long as there is progress
                    before, left = left, self._producer.flush(_PROGRESS)
            send(self._producer, markers, [on_delivery] * len(markers), of_all=False)
        except kafka.KafkaException as error:
            # A transaction that has failed accepts no records. The commit, which follows, raises the reason.
            if code_of(error) not in _HAS_FAILED:
                raise

    def _abort(self) -> None:
        try:
            self._retry(self._producer.abort_transaction)
        except kafka.KafkaException as error:
            if code_of(error) != _IS_EMPTY:
                raise

    def _explain_abort(self, error: BaseException, failures: Sequence[tuple[TopicPartition, Any]]) -> Exception:
        """Returns why a transaction was aborted, and for which partition or topics.

        A record that the abort purged from the client's queue is no reason.
        """
        reasons = [failure for failure in failures if failure[1].code() not in _PURGED]
        if reasons:
            at, reason = reasons[0]
            found = translate_error(reason, f"{self._doing} to {at}")
            return OutcomeUnknownError(str(found)) if reason.code() in TRANSIENT else found
        if code_of(error) in TRANSIENT:
            return OutcomeUnknownError(str(translate_error(error.args[0], self._doing)))
        names = sorted({at.topic for at, _ in failures})
        if names and code_of(error) == _NOT_WRITABLE:
            names = self._topics.find_unwritable(names) or names
        return translate_error(error.args[0], " to ".join(filter(None, [self._doing, ", ".join(names)])))

    @property
    def _doing(self) -> str:
        return f"a delivery as {self._id!r}"

    def _retry(self, call: Callable[[float], None]) -> None:
        """Repeats a call until the timeout: the client continues what it could not finish in time."""
        deadline = Deadline(self._doing, self._settings)
        while True:
            try:
                return call(deadline.next_slice())
            except kafka.KafkaException as error:
                if code_of(error) not in _RETRIED or not error.args[0].retriable() or deadline.left <= 0:
                    raise
                deadline.warn_if_due()
                self._settings.threads.sleep(_PAUSE)

    def _translate(self, error: BaseException) -> StreamsError:
        if code_of(error) not in FENCED:
            return translate_error(error.args[0], self._doing)
        return ProducerFencedError(
            "another instance of the application has taken over its deliveries, or this one was silent for longer than "
            f"the cluster allows: {error.args[0].str()}. If no other one runs, start it again"
        )

    def _fenced_or_unknown(self, error: BaseException) -> Exception:
        found = self._translate(error) if isinstance(error, kafka.KafkaException) else error
        return found if isinstance(found, ProducerFencedError) else OutcomeUnknownError(str(found))

    def close(self) -> None:
        self._producer.purge()
