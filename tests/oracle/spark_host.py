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
from tests.oracle import running
from tests.oracle.language import Case, Spec
from tests.oracle.topologies import Program


def configuration(case: Case, scope: str = "application") -> dict[str, Any]:
    """The settings of the driver, where the whole topology is one task: its stream time is the application's."""
    settings = running.configuration(case) | {"stream.time.scope": scope}
    del settings["application.id"]
    return settings


class SparkHost:
    """What `interpret.py --host` and the tests ask of a host."""

    def __init__(self, topology: Topology, case: Case, *, scope: str = "application") -> None:
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
            config=configuration(case, scope),
        )
        self.app.start()
        self.read_to: dict[str, int] = {}

    def address(self) -> str:
        return f"file:{self.folder}/log"

    def pipe(self, topic: str, record: Record, *, key: serde.Serde, value: serde.Serde) -> None:
        self.log.append([encoded(topic, record, key, value)])

    def append(self, piped: Iterable[tuple[Program, Spec]]) -> None:
        """Writes the records of a step of several programs at once."""
        self.log.append(
            [
                encoded(spec["topic"], record_of(spec), **program.types_of(spec["topic"]).serdes)
                for program, spec in piped
            ]
        )

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


def record_of(piped: Spec) -> Record:
    """The record of a step."""
    headers = [(name, None if value is None else value.encode()) for name, value in piped.get("headers", [])]
    return Record(piped.get("key"), piped.get("value"), piped["ts"], tuple(headers))


def encoded(topic: str, record: Record, key: serde.Serde, value: serde.Serde) -> tuple[TopicPartition, Records]:
    raw_key = None if record.key is None else key.encode(record.key)
    raw_value = None if record.value is None else value.encode(record.value)
    return TopicPartition(topic, 0), Records([raw_key], [raw_value], [record.timestamp], [record.headers])


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
