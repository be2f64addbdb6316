"""Somebody who reads what is committed all the time, with Kafka's own client, while everything else dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

import confluent_kafka

from headrace.model.ids import TopicPartition
from tests.faults.ground import PATIENCE

kafka: Any = confluent_kafka
Line = tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes], ...]]  # key, value, timestamp, headers
_CODES = kafka.KafkaError
# The client connects again by itself.
_PASSING = {_CODES._TRANSPORT, _CODES._ALL_BROKERS_DOWN, _CODES._TIMED_OUT, _CODES._RESOLVE}


class Witness:
    """Begins to read at once; `with` ends it. Whatever is not the next line that is `due` is a failure."""

    def __init__(self, servers: str, due: Mapping[TopicPartition, Sequence[Line]]) -> None:
        self._due, self._over = due, threading.Event()
        self._seen = dict.fromkeys(due, 0)
        self._failed: list[str] = []
        self._consumer = kafka.Consumer({
            "bootstrap.servers": servers, "group.id": "witness", "isolation.level": "read_committed",
            "enable.auto.commit": False, "auto.offset.reset": "error", "reconnect.backoff.max.ms": 500, "log_level": 0,
        })  # fmt: skip
        self._consumer.assign([kafka.TopicPartition(*at, 0) for at in due])
        self._thread = threading.Thread(target=self._read, name="witness")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._consumer.close()

    @property
    def count(self) -> int:
        """How many records it has seen."""
        assert not self._failed, self._failed
        return sum(self._seen.values())

    def sees(self, count: int) -> None:
        """Waits until it has seen so many."""
        self._until(lambda: self.count >= count)

    def sees_all(self) -> None:
        """Waits until it has seen everything that is due, and nothing else."""
        self._until(lambda: self.count == sum(map(len, self._due.values())))

    def _until(self, reached: Any) -> None:
        end = time.monotonic() + PATIENCE
        while not reached():
            assert time.monotonic() < end, f"of what is due it has seen {self._seen}"
            self._over.wait(0.01)

    def _read(self) -> None:
        while not self._over.is_set() and not self._failed:
            for message in self._consumer.consume(1000, 0.1):
                if message.error() is None:
                    self._compare(message)
                elif message.error().code() not in _PASSING:
                    self._failed.append(str(message.error()))

    def _compare(self, message: Any) -> None:
        at = TopicPartition(message.topic(), message.partition())
        place, due = self._seen[at], self._due[at]
        found = message.key(), message.value(), max(message.timestamp()[1], 0), tuple(message.headers() or ())
        if place >= len(due) or found != due[place]:
            wanted = due[place] if place < len(due) else "nothing more"
            self._failed.append(f"{at} @ {message.offset()}, record {place}: {found} instead of {wanted}")
        self._seen[at] += 1
