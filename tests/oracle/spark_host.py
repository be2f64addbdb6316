"""Cases of the language in an `Application` on Spark, with either kind of log; all of them share one Spark session."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Collection, Iterable
from functools import cache
from typing import Any

from headrace import InvalidStateStoreError, Record, Topology, serde
from headrace.app import Application
from headrace.log.open import open_log
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.spark.session import session
from headrace.testing import KafkaBroker


def configuration(case: dict[str, Any]) -> dict[str, Any]:
    """As in the driver: without caching and without waiting between emissions, unless the case says so."""
    given = case.get("config", {})
    config = {
        "statestore.cache.max.bytes": given.get("cache_max_bytes", 0),
        "emit.interval.ms": given.get("emit_interval_ms", 0),
        "stream.time.scope": "application",  # in the driver the whole topology is one task
    }
    return config | ({"dsl.store.suppliers.class": "memory"} if given.get("store_type") == "in_memory" else {})


class SparkHost:
    """What `interpret.py --host` and the tests ask of a host."""

    def __init__(self, topology: Topology, case: dict[str, Any]) -> None:
        self.folder = tempfile.mkdtemp(prefix="headrace-case-")
        address = self.address()
        self.log = open_log(address)
        for topic in sorted({step["pipe"]["topic"] for step in case["steps"] if "pipe" in step}):
            self.log.create_topic(topic, 1)
        self.app = Application(
            "oracle",
            topology,
            address,
            checkpoint=f"{self.folder}/checkpoint",
            state_dir=f"{self.folder}/state",
            spark=session(),
            config=configuration(case),
        )
        self.app.start()
        self.read_to: dict[str, int] = {}

    def address(self) -> str:
        return f"file:{self.folder}/log"

    def pipe(self, topic: str, record: Record, *, key: serde.Serde, value: serde.Serde) -> None:
        raw_key = None if record.key is None else key.encode(record.key)
        raw_value = None if record.value is None else value.encode(record.value)
        records = Records([raw_key], [raw_value], [record.timestamp], [record.headers])
        self.log.append([(TopicPartition(topic, 0), records)])

    def advance_wall_clock(self, ms: int) -> None:
        pass

    def settle(self) -> None:
        self.app.drain(timeout=60_000)

    def produced_topics(self) -> Collection[str]:
        return [name for name in self.log.topics() if self.log.extents([name])[TopicPartition(name, 0)].end > 0]

    def read(self, topic: str, *, key: serde.Serde, value: serde.Serde) -> Iterable[Record]:
        if topic not in self.log.topics():
            return []
        found = []
        for chunk in self.log.read(TopicPartition(topic, 0), self.read_to.get(topic, 0)):
            for offset, raw_key, raw_value, timestamp, headers in chunk.rows():
                self.read_to[topic] = offset + 1
                decoded = None if raw_key is None else key.decode(raw_key)
                found.append(
                    Record(decoded, None if raw_value is None else value.decode(raw_value), timestamp, headers)
                )
        return found

    def store(self, name: str) -> Any | None:
        try:
            return self.app.store(name)
        except InvalidStateStoreError:
            return None

    def dropped_records(self) -> int:
        return int(self.app.metrics()["dropped-records-total"])

    def close(self) -> None:
        self.app.stop()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def broker() -> KafkaBroker:
    """One broker for all cases, which ends with the program."""
    started = KafkaBroker()
    atexit.register(started.close)
    return started


class KafkaHost(SparkHost):
    """The same on a broker of its own; what a case leaves there goes before the next one comes."""

    def address(self) -> str:
        return broker().address

    def produced_topics(self) -> Collection[str]:
        return [name for name in super().produced_topics() if name != "oracle-delivered"]

    def close(self) -> None:
        self.app.stop()
        for name in self.log.topics():
            self.log.delete_topic(name)
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)
