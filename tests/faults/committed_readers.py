"""Readers of committed records, with Kafka's own client, while everything else dies."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import confluent_kafka

from headrace.model.ids import TopicPartition
from tests.faults.deployment import PATIENCE

kafka: Any = confluent_kafka
Line = tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes], ...]]  # key, value, timestamp, headers
_CODES = kafka.KafkaError
# The client connects again by itself.
_PASSING = {_CODES._TRANSPORT, _CODES._ALL_BROKERS_DOWN, _CODES._TIMED_OUT, _CODES._RESOLVE}


class CommittedReader:
    """Begins to read at once, in a thread; `with` ends it. `_find_fault` says what is wrong with a record."""

    def __init__(self, servers: str, partitions: Iterable[TopicPartition]) -> None:
        self._over = threading.Event()
        self._failed: list[str] = []
        self._consumer = kafka.Consumer({
            "bootstrap.servers": servers, "group.id": "witness", "isolation.level": "read_committed",
            "enable.auto.commit": False, "auto.offset.reset": "error", "reconnect.backoff.max.ms": 500, "log_level": 0,
        })  # fmt: skip
        self._consumer.assign([kafka.TopicPartition(*at, 0) for at in partitions])
        self._thread = threading.Thread(target=self._read, name="witness")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._consumer.close()

    def check(self) -> None:
        """Fails if a record was wrong."""
        assert not self._failed, self._failed

    def _until(self, reached: Any) -> None:
        end = time.monotonic() + PATIENCE
        while not reached():
            assert time.monotonic() < end, f"what was due did not come: {self._describe()}"
            self._over.wait(0.01)

    def _read(self) -> None:
        while not self._over.is_set() and not self._failed:
            for message in self._consumer.consume(1000, 0.1):
                if message.error() is None:
                    at = TopicPartition(message.topic(), message.partition())
                    fault = self._find_fault(at, message)
                    if fault is not None:
                        self._failed.append(f"{at} @ {message.offset()}: {fault}")
                elif message.error().code() not in _PASSING:
                    self._failed.append(str(message.error()))

    def _describe(self) -> str:
        raise NotImplementedError

    def _find_fault(self, at: TopicPartition, message: Any) -> str | None:
        raise NotImplementedError


class Witness(CommittedReader):
    """Knows the records that are due in every partition: whatever is not the next one is a failure."""

    def __init__(self, servers: str, due: Mapping[TopicPartition, Sequence[Line]]) -> None:
        super().__init__(servers, due)
        self._due = due
        self._seen = dict.fromkeys(due, 0)

    @property
    def count(self) -> int:
        """How many records it has seen."""
        self.check()
        return sum(self._seen.values())

    def sees(self, count: int) -> None:
        """Waits until it has seen so many."""
        self._until(lambda: self.count >= count)

    def sees_all(self) -> None:
        """Waits until it has seen everything that is due, and nothing else."""
        self._until(lambda: self.count == sum(map(len, self._due.values())))

    def _describe(self) -> str:
        return f"it has seen {self._seen}"

    def _find_fault(self, at: TopicPartition, message: Any) -> str | None:
        place, due = self._seen[at], self._due[at]
        found = message.key(), message.value(), max(message.timestamp()[1], 0), tuple(message.headers() or ())
        self._seen[at] += 1
        if place < len(due) and found == due[place]:
            return None
        wanted = due[place] if place < len(due) else "nothing more"
        return f"record {place}: {found} instead of {wanted}"


class CountWitness(CommittedReader):
    """Reads the results of a word count without a cache: a word's next count is one more than its last one."""

    def __init__(self, servers: str, topic: str, partitions: int) -> None:
        super().__init__(servers, [TopicPartition(topic, part) for part in range(partitions)])
        self._counts = Counter[str]()

    @property
    def counts(self) -> Counter[str]:
        """The last count of every word."""
        self.check()
        return self._counts.copy()

    def sees(self, counts: Counter[str]) -> None:
        """Waits until it has seen at least these counts."""
        self._until(lambda: counts <= self.counts)

    def _describe(self) -> str:
        return f"it has seen {self._counts}"

    def _find_fault(self, at: TopicPartition, message: Any) -> str | None:
        word, count, due = message.key().decode(), int(message.value()), self._counts[message.key().decode()] + 1
        self._counts[word] = count
        return None if count == due else f"the count of {word} is {count} instead of {due}"
