"""What a soak sends and reads: words at a steady rate, and the counts that are committed."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import confluent_kafka

from tests.soak.application import IN, OUT, PARTITIONS

kafka: Any = confluent_kafka
QUIET = {"log_level": 2}  # brokers die: clients would write a line for every time that they cannot connect
WORDS = 10_000
MAX_QUEUED = 2_000_000  # words that wait for a broker that is away


class Feeder:
    """Sends words at a steady rate, in a thread; each is in the topic once, though brokers die."""

    def __init__(self, servers: str, rate: int) -> None:
        self._producer = kafka.Producer({
            "bootstrap.servers": servers, "linger.ms": 2, "enable.idempotence": True,
            "queue.buffering.max.messages": MAX_QUEUED, **QUIET,
        })  # fmt: skip
        self._rate, self.sent, self._over = rate, 0, threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        chance, began = random.Random(7), time.monotonic()  # noqa: S311
        while not self._over.wait(0.002):
            due = int((time.monotonic() - began) * self._rate)
            for _ in range(due - self.sent):
                word = b"word%d" % chance.randrange(WORDS)
                self._producer.produce(IN, word, word, timestamp=int(time.time() * 1000))
            self.sent = max(due, self.sent)
            self._producer.poll(0)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._producer.flush()


class CountReader:
    """Reads committed counts, in a thread: the last one of every word, and how old they are."""

    def __init__(self, servers: str) -> None:
        self._consumer = kafka.Consumer({
            "bootstrap.servers": servers, "group.id": "soak", "isolation.level": "read_committed",
            "enable.auto.commit": False, "fetch.wait.max.ms": 5, **QUIET,
        })  # fmt: skip
        self._consumer.assign([kafka.TopicPartition(OUT, part, 0) for part in range(PARTITIONS)])
        self._counts: dict[bytes, int] = {}
        self._ages: list[int] = []
        self.counted = 0
        self.repeated = 0  # counts that are not higher than the one of the same word before
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            for message in self._consumer.consume(5000, 0.01):
                if message.error() is None:
                    word, count = message.key(), int.from_bytes(message.value(), "big")
                    before = self._counts.get(word, 0)
                    self._counts[word] = count
                    self.counted += count - before
                    self.repeated += count <= before
                    self._ages.append(int(time.time() * 1000) - message.timestamp()[1])

    def take_ages(self) -> list[int]:
        """How old the counts were, in ms since the timestamp of their word, that came since the last call; sorted."""
        ages, self._ages = self._ages, []
        return sorted(ages)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._consumer.close()
