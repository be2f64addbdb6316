"""The producer: sends records to a log.

`send` adds the record to the `Batch` of its partition and returns a `Delivery`. A thread appends the batches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Generic, Literal, NamedTuple, overload

from typing_extensions import TypeVar

from headrace.clients.topic_serdes import TopicSerdes
from headrace.errors import (
    LogBusyError,
    ProducerFencedError,
    SchemaRegistryError,
    SerializationError,
    StreamsError,
    UnknownTopicError,
)
from headrace.hints import explain_names
from headrace.log.chunk_format import record_length
from headrace.log.open import ClientConfig, resolve_log
from headrace.log.protocol import Closeable, Item, Log, ProducerSequence, Records
from headrace.log.validation import check_record_length
from headrace.model.clock import Clock, SystemClock
from headrace.model.ids import TopicPartition
from headrace.model.partitioner import partition_of
from headrace.model.record import Headers, RecordMetadata, headers_of
from headrace.model.timestamps import epoch_milliseconds
from headrace.model.windows import milliseconds
from headrace.serde.primitives import resolve_serde
from headrace.serde.protocol import Serde, encode_part

K = TypeVar("K", default=bytes)  # without a serde a key is bytes
V = TypeVar("V", default=bytes)
K2 = TypeVar("K2")
V2 = TypeVar("V2")


class Batch:
    """Records for one partition that are appended together. `send_now` ends the linger time."""

    def __init__(self, at: TopicPartition, send_now: Callable[[], None]) -> None:
        self.at, self.send_now = at, send_now
        self.error: BaseException | None = None
        self.was_reported = False  # whether a caller has got the error
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._timestamps: list[int] = []
        self._headers: list[Headers] = []
        self._base = -1
        self._stored = threading.Event()

    def add(self, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers) -> Delivery:
        index = len(self._keys)
        self._keys.append(key)
        self._values.append(value)
        self._timestamps.append(timestamp)
        self._headers.append(headers)
        return Delivery(self, index)

    def records(self) -> Records:
        headers = self._headers if any(self._headers) else None
        return Records(self._keys, self._values, self._timestamps, headers)

    def succeed(self, base: int) -> None:
        self._base = base
        self._stored.set()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self._stored.set()

    def is_done(self) -> bool:
        return self._stored.is_set()

    def base(self, timeout: int | timedelta | None) -> int:
        """Waits until the batch is stored, and returns the offset of its first record."""
        if not self._stored.is_set():
            self.send_now()
            seconds = None if timeout is None else milliseconds(timeout, "the timeout") / 1000
            if not self._stored.wait(seconds):
                raise LogBusyError(f"a record for {self.at} was not stored within {timeout} ms; it may still be")
        if self.error is not None:
            self.was_reported = True
            raise self.error
        return self._base


class Delivery:
    """The outcome of a `send`."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch, self._index = batch, index

    def done(self) -> bool:
        return self._batch.is_done()

    def result(self, timeout: int | timedelta | None = None) -> RecordMetadata:
        """Waits until the record is stored, and returns its topic, partition and offset. Raises if that failed."""
        return RecordMetadata(*self._batch.at, self._batch.base(timeout) + self._index)

    def exception(self, timeout: int | timedelta | None = None) -> BaseException | None:
        """Waits until the record is stored or has failed, and returns the error or None."""
        try:
            self._batch.base(timeout)
        except LogBusyError:
            if not self._batch.is_done():
                raise
        except BaseException:  # noqa: BLE001, S110 - the result is the error itself
            pass
        return self._batch.error

    @property
    def offset(self) -> int:
        return self.result().offset


# (topic, key, value, number of partitions) -> partition; None: by the hash of the key, as Kafka does
Partitioner = Callable[[str, Any, Any, int], int | None]
_RETRIES = 5
_OVERHEAD = 16  # bytes that a record takes beside key, value and headers


class Target(NamedTuple):
    """What the producer must know of a topic."""

    partitions: int
    longest_record: int
    compacts: bool


@explain_names(
    {
        "init_transactions": "send(...): an application writes in transactions, a producer writes every record once",
        "begin_transaction": "send(...): an application writes in transactions, a producer writes every record once",
        "commit_transaction": "flush()",
        "partitions_for": "Admin(log).describe(topic)",
        "produce": "send(topic, key, value)",
    },
    {
        "key_serializer": "key",
        "value_serializer": "value",
        "linger_ms": "linger",
        "timeout_ms": "timeout",
    },
)
class Producer(Closeable, Generic[K, V]):
    """Sends records. They are collected for `linger` ms or up to `batch_size` bytes, and appended together, each once.

    A thread appends them. It ends when nothing is left to send, so records are stored even if the program ends without
    `flush`.

    >>> import tempfile
    >>> from headrace.clients.admin import Admin
    >>> from headrace.serde import STRING
    >>> with tempfile.TemporaryDirectory() as directory, Admin(f"file:{directory}") as admin:
    ...     _ = admin.create_topic("words", partitions=3)
    ...     with Producer(f"file:{directory}", value=STRING) as producer:
    ...         producer.send("words", b"key", "hello").result()
    RecordMetadata(topic='words', partition=1, offset=0)
    """

    def __init__(
        self,
        log: Log | str,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        partitioner: Callable[[str, K, V, int], int | None] | None = None,
        linger: int | timedelta = 5,
        batch_size: int = 1 << 20,
        buffer_size: int = 32 << 20,
        config: ClientConfig | None = None,
        clock: Clock | None = None,
        key_serde: Serde[K] | None = None,
        value_serde: Serde[V] | None = None,
    ) -> None:
        """`key` and `value` are serdes; without them keys and values are bytes. `key_serde` and `value_serde` are
        their old names.

        `config`: settings of Kafka's clients, such as TLS and SASL, or the path of a `.properties` file.
        """
        self._log, self._owns_log = resolve_log(log, config)
        self._key_serde: Serde[Any] = resolve_serde("key", key, key_serde)
        self._value_serde: Serde[Any] = resolve_serde("value", value, value_serde)
        self._serdes = TopicSerdes(config)
        self._partitioner: Partitioner | None = partitioner
        self._linger = milliseconds(linger, "linger") / 1000
        self._batch_size, self._buffer_size = batch_size, buffer_size
        self._clock = clock or SystemClock()
        self._lock = threading.Condition()
        self._pending: dict[TopicPartition, Batch] = {}
        self._due, self._size, self._urgent = 0.0, 0, False
        self._sending: list[Batch] = []
        self._failed: list[Batch] = []
        self._sender: threading.Thread | None = None
        self._last_sender: threading.Thread | None = None  # may still be ending
        self._targets: dict[str, Target] = {}
        self._keyless: dict[str, int] = {}  # batches by topic; chooses the partition for records without a key
        self._sequence: ProducerSequence | None = None

    # --------------------------------------------------------------------------------------------------- sending
    @overload
    def send(
        self,
        topic: str,
        key: K | None = None,
        value: V | None = None,
        *,
        key_serde: None = None,
        value_serde: None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        partitioner: Partitioner | None = None,
    ) -> Delivery: ...
    @overload
    def send(
        self,
        topic: str,
        key: K2 | None = None,
        value: V | None = None,
        *,
        key_serde: Serde[K2],
        value_serde: None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        partitioner: Partitioner | None = None,
    ) -> Delivery: ...
    @overload
    def send(
        self,
        topic: str,
        key: K | None = None,
        value: V2 | None = None,
        *,
        key_serde: None = None,
        value_serde: Serde[V2],
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        partitioner: Partitioner | None = None,
    ) -> Delivery: ...
    @overload
    def send(
        self,
        topic: str,
        key: K2 | None = None,
        value: V2 | None = None,
        *,
        key_serde: Serde[K2],
        value_serde: Serde[V2],
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        partitioner: Partitioner | None = None,
    ) -> Delivery: ...
    def send(
        self,
        topic: str,
        key: Any = None,
        value: Any = None,
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        partitioner: Partitioner | None = None,
    ) -> Delivery:
        """Sends a record. Without `partition` the partitioner decides, else the hash of the key, else the producer."""
        target = self._targets.get(topic) or self._target(topic)
        pairs = headers_of(headers) if headers else ()
        raw_key, pairs = self._encode(key_serde or self._key_serde, key, pairs, topic, "key")
        raw_value, pairs = self._encode(value_serde or self._value_serde, value, pairs, topic, "value")
        length = record_length(raw_key, raw_value, pairs)
        check_record_length(topic, length, target.longest_record)
        if raw_key is None and target.compacts:
            raise ValueError(f"the topic {topic!r} is compacted: a record for it needs a key")
        choose = partitioner or self._partitioner
        if partition is None and choose is not None:
            partition = choose(topic, key, value, target.partitions)
        if partition is None:
            partition = partition_of(raw_key, target.partitions)
        time_of = self._clock.now() if timestamp is None else _time(timestamp)
        with self._lock:
            at = TopicPartition(topic, self._keyless_partition(topic, target) if partition is None else partition)
            if not 0 <= at.partition < target.partitions:
                raise UnknownTopicError(
                    f"the topic {topic!r} has no partition {at.partition}: it has {target.partitions}"
                )
            delivery = self._batch_for(at).add(raw_key, raw_value, time_of, pairs)
            self._size += length + _OVERHEAD
            self._wake_sender()
        return delivery

    def _encode(
        self, serde: Serde[Any], field: Any, headers: Headers, topic: str, part: Literal["key", "value"]
    ) -> tuple[bytes | None, Headers]:
        try:
            return encode_part(self._serdes.bind(serde, topic, part), field, headers)
        except SchemaRegistryError:
            raise
        except Exception as error:
            raise SerializationError(f"the {part} of a record for {topic!r} cannot be encoded: {error}") from error

    def flush(self, timeout: int | timedelta | None = None) -> None:
        """Waits until every record is stored, at most `timeout` (ms or a timedelta): then a `LogBusyError`.

        Raises the error of a record that could not be stored, unless its `Delivery` has raised it already.
        """
        limit = None if timeout is None else milliseconds(timeout, "the timeout of flush")
        with self._lock:
            self._send_now()
            if not self._lock.wait_for(
                lambda: not (self._pending or self._sending), None if limit is None else limit / 1000
            ):
                raise LogBusyError(f"not every record was stored within {limit} ms; the producer goes on sending")
            unreported = [batch for batch in self._failed if not batch.was_reported]
            self._failed.clear()
        for batch in unreported:
            batch.base(0)

    def close(self) -> None:
        try:
            self.flush()
        finally:
            if self._last_sender is not None:
                self._last_sender.join()
            if self._owns_log:
                self._log.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except StreamsError:
            if error is None:
                raise

    # ------------------------------------------------------------------------------------------------ partitions
    def _target(self, topic: str) -> Target:
        found = self._log.topic(topic)
        config = found.config
        target = Target(found.partitions, int(config["max.message.bytes"]), "compact" in config["cleanup.policy"])
        self._targets[topic] = target
        return target

    def _keyless_partition(self, topic: str, target: Target) -> int:
        """Returns the partition for records without a key. It changes with every batch, which keeps chunks large."""
        return self._keyless.setdefault(topic, 0) % target.partitions

    def _batch_for(self, at: TopicPartition) -> Batch:
        while self._size >= self._buffer_size:
            self._send_now()
            self._lock.wait()
        batch = self._pending.get(at)
        if batch is None:
            if not self._pending:
                self._due = time.monotonic() + self._linger
            batch = self._pending[at] = Batch(at, self._send_now)
        return batch

    # ---------------------------------------------------------------------------------------------------- thread
    def _send_now(self) -> None:
        with self._lock:
            self._urgent = bool(self._pending)
            self._lock.notify_all()

    def _wake_sender(self) -> None:
        if self._sender is None:
            self._sender = self._last_sender = threading.Thread(target=self._run, name="headrace-producer")
            self._sender.start()
        elif self._size >= self._batch_size:
            self._lock.notify_all()

    def _run(self) -> None:
        """Appends pending batches until none is left."""
        while True:
            with self._lock:
                while self._pending and not self._urgent and self._size < self._batch_size:
                    left = self._due - time.monotonic()
                    if left <= 0:
                        break
                    self._lock.wait(left)
                self._sending = list(self._pending.values())
                self._pending.clear()
                self._size, self._urgent = 0, False
                self._targets.clear()  # topics may get more partitions
                for topic in {batch.at.topic for batch in self._sending} & self._keyless.keys():
                    self._keyless[topic] += 1
                if not self._sending:
                    self._sender = None
                    return
            self._append(self._sending)
            with self._lock:
                self._sending = []
                self._lock.notify_all()

    def _append(self, batches: list[Batch]) -> None:
        try:
            offsets = self._append_once([(batch.at, batch.records()) for batch in batches])
        except BaseException as error:  # noqa: BLE001 - `Delivery` raises it
            if len(batches) > 1:  # append them one by one, so that only the bad one fails
                for batch in batches:
                    self._append([batch])
            else:
                batches[0].fail(error)
                self._failed.append(batches[0])
        else:
            for batch, offset in zip(batches, offsets, strict=True):
                batch.succeed(offset)

    def _append_once(self, items: list[Item]) -> list[int]:
        """Appends items. An append that is repeated is stored once."""
        for attempt in range(_RETRIES):
            sequence = self._sequence or ProducerSequence(self._log.new_producer(), 0)
            try:
                offsets = self._log.append(items, sequence=sequence)
            except BaseException as error:
                is_first, is_last = attempt == 0, attempt == _RETRIES - 1
                if isinstance(error, StreamsError) and error.retriable and not is_last:
                    self._sequence = sequence  # repeat with the same number: the log knows whether it has stored it
                    continue
                self._sequence = None
                # After a long time without appends the log does not know the producer: the next attempt gets a new id.
                if not (isinstance(error, ProducerFencedError) and is_first):
                    raise
            else:
                self._sequence = ProducerSequence(sequence.producer_id, sequence.number + 1)
                return offsets
        raise AssertionError


def _time(timestamp: int | datetime) -> int:
    time_of = epoch_milliseconds(timestamp, "the timestamp")
    if time_of < 0:
        raise ValueError(f"a timestamp is 0 or more, in ms since the epoch, not {time_of}")
    return time_of
