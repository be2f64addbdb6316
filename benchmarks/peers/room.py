"""The topics of one measurement: what is there before, a backlog that appears at once, and what comes out.

The backlog is written in one transaction before a system starts and becomes visible when that is committed, so that
writing it costs nothing while a system is measured, and none of it is read while the system still starts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # pyright: ignore[reportPrivateImportUsage]

from benchmarks.peers.truths import Judge
from benchmarks.peers.workload import PARTITIONS, Given

OUTPUT = "out"
TRANSACTION = 900_000  # ms, as long as a broker allows: a slow system must have started by then
TIMEOUT = 60.0
Place = tuple[str, int]


class Room:
    """Topics and a group whose names begin with the same word; they are deleted when it is closed."""

    def __init__(self, bootstrap: str, name: str, inputs: Sequence[str], others: Sequence[str] = ()) -> None:
        self.name = f"{name}-{uuid4().hex[:6]}".lower()
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
        self.inputs = [self._topic(topic) for topic in inputs]
        self.output = self._topic(OUTPUT)
        topics = [NewTopic(topic, PARTITIONS, 1) for topic in [*self.inputs, *map(self._topic, others), self.output]]
        for made in self._admin.create_topics(topics).values():
            made.result(TIMEOUT)
        self._backlog: Producer | None = None

    def _topic(self, name: str) -> str:
        return f"{self.name}-{name}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._backlog is not None:
            self._backlog.abort_transaction(TIMEOUT)
        found = self._admin.list_topics(timeout=TIMEOUT).topics
        own = [topic for topic in found if self.name in topic]  # with those that a system has made for itself
        for deleted in self._admin.delete_topics(own).values():
            deleted.exception(TIMEOUT)

    # ----------------------------------------------------------------------------------------------------- writing
    def write(self, records: Iterable[Given]) -> None:
        producer = Producer(_producer(self.bootstrap))
        self._produce(producer, records)

    def hold(self, backlog: Iterable[Given]) -> None:
        """Writes the backlog; nobody who reads what is committed sees it."""
        settings = {"transactional.id": f"{self.name}-backlog", "transaction.timeout.ms": TRANSACTION}
        producer = Producer(_producer(self.bootstrap) | settings)
        producer.init_transactions(TIMEOUT)
        producer.begin_transaction()
        self._produce(producer, backlog)
        self._backlog = producer

    def reveal(self, ends: dict[Place, int]) -> None:
        """Lets the backlog appear, which is when all partitions say that they end behind it."""
        if self._backlog is None:
            return
        self._backlog.commit_transaction(TIMEOUT)
        self._backlog = None
        deadline = time.monotonic() + TIMEOUT
        while any(end < ends[place] for place, end in self.ends(self.inputs).items()):
            if time.monotonic() > deadline:
                raise SystemExit(f"the backlog of {self.name} did not appear within {TIMEOUT:g} seconds")
            time.sleep(0.002)

    def _produce(self, producer: Producer, records: Iterable[Given]) -> None:
        produce, prefix = producer.produce, f"{self.name}-"
        for i, (topic, key, value, timestamp, partition) in enumerate(records):
            where = -1 if partition is None else partition
            while True:
                try:
                    produce(prefix + topic, value, key, where, timestamp=timestamp)
                    break
                except BufferError:
                    producer.poll(0.1)
            if i % 10_000 == 0:
                producer.poll(0)
        if left := producer.flush(TIMEOUT):
            raise SystemExit(f"{left:,} records could not be written to {self.name} within {TIMEOUT:g} seconds")

    # ----------------------------------------------------------------------------------------------------- looking
    def ends(self, topics: Sequence[str], *, committed: bool = True) -> dict[Place, int]:
        """Where the partitions end, for who reads only what is committed or for who reads everything."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        places = [TopicPartition(topic, i) for topic in topics for i in range(PARTITIONS)]
        asked: dict[TopicPartition, Any] = {place: OffsetSpec.latest() for place in places}
        deadline = time.monotonic() + TIMEOUT
        while True:
            found = self._admin.list_offsets(asked, isolation_level=level, request_timeout=TIMEOUT)
            try:
                return {(place.topic, place.partition): given.result().offset for place, given in found.items()}
            except KafkaException:  # a topic that has just been made has no leader for a moment
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def output_ends(self) -> list[int]:
        found = self.ends([self.output])
        return [found[self.output, i] for i in range(PARTITIONS)]

    def consumed(self) -> dict[Place, int]:
        """How far the system's group says it is in the input."""
        asked = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(self.name)])
        found = asked[self.name].result(TIMEOUT).topic_partitions
        inputs = set(self.inputs)
        return {(at.topic, at.partition): max(0, at.offset) for at in found if at.topic in inputs}

    def has_consumed(self, ends: dict[Place, int]) -> bool:
        consumed = self.consumed()
        return all(consumed.get(place, 0) >= end for place, end in ends.items())

    # ----------------------------------------------------------------------------------------------------- reading
    def judged(self, judge: Judge) -> list[int]:
        """Shows all output to the judge; the offset after the last record that counts, of each partition."""
        judge.anew()
        last = [0] * PARTITIONS
        consumer = Consumer(_consumer(self.bootstrap, self.name))
        for partition in range(PARTITIONS):
            consumer.assign([TopicPartition(self.output, partition, 0)])
            for message in _until_the_end(consumer):
                if judge.sees(message.key() or b"", message.value() or b""):
                    last[partition] = message.offset() + 1
        consumer.close()
        return last


def prepare(bootstrap: str) -> None:
    """Lets a new broker make what it keeps of groups and transactions, as every broker in use has long done."""
    with Room(bootstrap, "prepare", ["in"]) as room:
        room.hold([])
        room.reveal(room.ends(room.inputs, committed=False))
        consumer = Consumer(_consumer(bootstrap, room.name))
        consumer.commit(offsets=[TopicPartition(room.inputs[0], 0, 0)], asynchronous=False)
        consumer.close()


def _until_the_end(consumer: Consumer) -> Iterator[Any]:
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        for message in consumer.consume(10_000, 0.2):
            deadline = time.monotonic() + TIMEOUT
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                return
    raise SystemExit(f"the output gives nothing for {TIMEOUT:g} seconds and has no end")


def _producer(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "partitioner": "murmur2_random",
        "linger.ms": 20,
        "log_level": 3,  # a broker that has just started is asked again
        "batch.size": 262_144,
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 262_144,
    }


def _consumer(bootstrap: str, name: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "log_level": 3,
        "group.id": f"{name}-judge",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
