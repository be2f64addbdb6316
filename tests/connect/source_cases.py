"""Every source, for tests that kill its process: how it is made, how it is fed, and what the log must have.

A feeder runs in the test. It adds to what the source reads, before a life begins and while it runs, and compares.
"""

from __future__ import annotations

import queue
import random
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import obstore
import psycopg
import sqlalchemy as sa
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from headrace import serde
from headrace.connect import (
    FileSource,
    GeneratorSource,
    LogSource,
    MqttSource,
    PostgresChanges,
    Source,
    SqlSource,
)
from headrace.connect.file_sink import open_store
from headrace.connect.source import SourceRunner
from headrace.log.embedded.file_log import FileLog
from headrace.log.open import open_log
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.testing.source_check import read_pairs
from headrace.topology.connectors import SourceSpec
from headrace.web import HttpSource
from tests.connect.lives import KillAt
from tests.connect.sink_cases import below

Pairs = list[tuple[Any, Any]]
connect: Any = psycopg.connect
SECONDS = 60.0
TOKEN = "secret"  # noqa: S105


# ------------------------------------------------------------------------------------------------------------- one life
def make_spec(kind: str, address: str, name: str) -> SourceSpec:
    source = SOURCES[kind].make(address, name)
    return SourceSpec(source=source, topic="in", key=source.key, value=source.value, partitions=2)


def read_source(
    kind: str, place: str, address: str, name: str, max_records: int = 2, moment: str | None = None, nth: int = 1,
    hold: str | None = None,
) -> None:  # fmt: skip
    """Reads until `complete` exists and nothing is left, or until it is killed. `place` has the log."""
    complete = Path(place, "complete")
    with closing(FileLog(f"{place}/log")) as log:
        runner = SourceRunner(
            "shop-in", make_spec(kind, address, name), log,
            max_records=max_records, read_timeout=SOURCES[kind].timeout, at_step=KillAt(moment, nth, hold),
        )  # fmt: skip
        while True:
            is_complete, runner.is_caught_up = complete.exists(), False
            time.sleep(min(0.2, runner.advance()))
            if is_complete and runner.is_caught_up:
                break
        runner.close()


def read_log(kind: str, place: Path, address: str, name: str) -> Pairs:
    with closing(FileLog(place / "log")) as log:
        return read_pairs(log, make_spec(kind, address, name))


# -------------------------------------------------------------------------------------------------------------- feeders
class Feeder(ABC):
    """`feed` adds what a source can read, some five records. It may be called again and again."""

    def __init__(self, address: str, name: str, server: Any) -> None:
        self.address, self.name, self.server = address, name, server
        self.fed = 0

    def numbers(self) -> range:
        """The next numbers; none comes twice."""
        self.fed += 5
        return range(self.fed - 5, self.fed)

    @abstractmethod
    def feed(self) -> None: ...

    def settle(self) -> None:
        """Waits until everything that was fed is where the source finds it."""
        return

    def go_away(self) -> None:
        self.server.kill()

    def come_back(self) -> None:
        self.server.start()

    @abstractmethod
    def check(self, found: Pairs) -> None:
        """Compares what the log has."""

    def close(self) -> None:
        return


class NumberFeeder(Feeder):
    """What it feeds are numbers, and the log must have each of them once."""

    def feed(self) -> None:
        for number in self.numbers():
            self.add(number)

    def add(self, number: int) -> None:
        raise NotImplementedError

    def number_of(self, _key: Any, value: Any) -> int:
        return int(value)

    def check(self, found: Pairs) -> None:
        counts = Counter(self.number_of(key, value) for key, value in found)
        assert counts == Counter(range(self.fed)), {
            "missing": sorted(set(range(self.fed)) - counts.keys()),
            "repeated": {number: times for number, times in counts.items() if times > 1},
        }


class GeneratorFeeder(NumberFeeder):
    def __init__(self, address: str, name: str, server: Any) -> None:
        super().__init__(address, name, server)
        self.fed = LIMIT

    def feed(self) -> None:
        return


LIMIT = 300


def generate(number: int) -> tuple[Any, Any]:
    return number % 3, number


class FileFeeder(NumberFeeder):
    def feed(self) -> None:
        numbers = self.numbers()
        folder = Path(self.address, self.name)
        folder.mkdir(exist_ok=True)
        (folder / ".new").write_text("".join(f"{number}\n" for number in numbers))
        (folder / ".new").rename(folder / f"{numbers.start:06}")


class BucketFeeder(NumberFeeder):
    def feed(self) -> None:
        numbers = self.numbers()
        store = open_store(below(self.address, self.name))
        obstore.put(store, f"{numbers.start:06}.csv", b"n\n" + b"".join(b"%d\n" % number for number in numbers))

    def number_of(self, _key: Any, value: Any) -> int:
        return int(value["n"])


class SqlFeeder(NumberFeeder):
    def __init__(self, address: str, name: str, server: Any) -> None:
        super().__init__(address, name, server)
        self.execute(f"create table {name} (id bigint auto_increment primary key, n bigint)")

    def execute(self, query: str) -> None:
        engine = sa.create_engine(self.address)
        with engine.begin() as connection:
            connection.execute(sa.text(query))
        engine.dispose()

    def feed(self) -> None:
        rows = ", ".join(f"({number})" for number in self.numbers())
        self.execute(f"insert into {self.name} (n) values {rows}")  # noqa: S608

    def number_of(self, _key: Any, value: Any) -> int:
        return value["n"]


class LogFeeder(NumberFeeder):
    def __init__(self, address: str, name: str, server: Any) -> None:
        super().__init__(address, name, server)
        with closing(open_log(log_address(address))) as log:
            log.create_topic(name, 2)

    def feed(self) -> None:
        with closing(open_log(log_address(self.address))) as log:
            for number in self.numbers():
                records = Records([b"%d" % number], [b"%d" % number], [number])
                log.append([(TopicPartition(self.name, number % 2), records)])


def log_address(place: str) -> str:
    return place if place.startswith("kafka:") else f"file:{place}/other"


class PostgresFeeder(Feeder):
    """Commits transactions at random; every change of a row has a version."""

    def __init__(self, address: str, name: str, server: Any) -> None:
        super().__init__(address, name, server)
        self._chance = random.Random(name)  # noqa: S311
        with connect(address, autocommit=True) as connection:
            connection.execute(f"create table {name} (id int primary key, version int)")
            connection.execute(f"insert into {name} select n, 0 from generate_series(1, 10) n")  # noqa: S608

    def feed(self) -> None:
        with connect(self.address) as connection:
            for version in self.numbers():
                is_deletion = self._chance.random() < 0.3
                query = (
                    f"delete from {self.name} where id = %s"  # noqa: S608
                    if is_deletion
                    else f"insert into {self.name} values (%s, {version + 1}) on conflict (id) "  # noqa: S608
                    "do update set version = excluded.version"
                )
                connection.execute(query, [self._chance.randint(1, 15)])

    def check(self, found: Pairs) -> None:
        for number in range(1, 16):
            versions = [value["version"] for key, value in found if key == number and value is not None]
            assert versions == sorted(set(versions)), f"row {number} came twice or out of order: {versions}"
        with connect(self.address) as connection:
            rows = dict(connection.execute(f"select id, version from {self.name}").fetchall())  # noqa: S608
        assert {key: value["version"] for key, value in dict(found).items() if value is not None} == rows

    def close(self) -> None:
        PostgresChanges(self.address, self.name).drop()


class HttpFeeder(NumberFeeder):
    """A client that sends a request again, with the same key, until it is answered with 202."""

    def __init__(self, address: str, name: str, server: Any) -> None:
        super().__init__(address, name, server)
        self._numbers: queue.Queue[int | None] = queue.Queue()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def add(self, number: int) -> None:
        self._numbers.put(number)

    def _send(self) -> None:
        while (number := self._numbers.get()) is not None:
            while not self._is_taken(number):
                time.sleep(0.05)
            self._numbers.task_done()

    def _is_taken(self, number: int) -> bool:
        headers = {"Authorization": f"Bearer {TOKEN}", "Idempotency-Key": f"{number}"}
        try:
            url = f"http://127.0.0.1:{self.address}/records"
            return httpx.post(url, json={"n": number}, headers=headers, timeout=10).status_code == 202
        except httpx.TransportError:
            return False

    def settle(self) -> None:
        end = time.monotonic() + SECONDS
        while self._numbers.unfinished_tasks:
            assert time.monotonic() < end, "requests are not answered"
            time.sleep(0.01)

    def number_of(self, _key: Any, value: Any) -> int:
        return value["n"]

    def close(self) -> None:
        self._numbers.put(None)
        self._thread.join(SECONDS)


class MqttFeeder(NumberFeeder):
    """A publisher. The broker goes away as an administrator stops it: a killed broker loses messages by itself."""

    def __init__(self, address: str, name: str, server: Any) -> None:
        super().__init__(address, name, server)
        port, is_there = int(address.rpartition(":")[2]), threading.Event()
        reader = mqtt_client(f"shop-{name}", clean=False)  # makes the session, in which the broker keeps messages
        reader.on_subscribe = lambda *_: is_there.set()
        reader.connect("127.0.0.1", port)
        reader.loop_start()
        reader.subscribe(f"{name}/#", qos=1)
        assert is_there.wait(SECONDS)
        reader.disconnect()
        reader.loop_stop()

    def feed(self) -> None:
        sender = mqtt_client("", clean=True)
        sender.connect("127.0.0.1", int(self.address.rpartition(":")[2]))
        sender.loop_start()
        for number in self.numbers():
            sender.publish(f"{self.name}/{number % 3}", str(number), qos=1).wait_for_publish(SECONDS)
        sender.disconnect()
        sender.loop_stop()

    def go_away(self) -> None:
        self.server.stop()


def mqtt_client(client_id: str, *, clean: bool) -> Any:
    return Client(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=clean)


# ------------------------------------------------------------------------------------------------------------ the cases
class SourceCase(NamedTuple):
    """`make` gets the address of what is read, and a name for the table, topic or folder."""

    make: Callable[[str, str], Source]
    feeder: type[Feeder]
    server: str | None = None  # a fixture: the address is its `place`
    timeout: float = 0.05  # seconds that a read waits


def make_mqtt(address: str, name: str) -> Source:
    host, _, port = address.partition(":")
    return MqttSource(host, f"{name}/#", client_id=f"shop-{name}", port=int(port), value=serde.STRING)


def make_http(address: str, name: str) -> Source:
    return HttpSource(name, token=TOKEN, port=int(address), remembered=50)


def make_files(address: str, name: str) -> Source:
    return FileSource(f"{address}/{name}")


def make_bucket(address: str, name: str) -> Source:
    return FileSource(below(address, f"{name}/*.csv"), format="csv")


def make_mirror(address: str, name: str) -> Source:
    return LogSource(log_address(address), name)


SOURCES = {
    "postgres-changes": SourceCase(PostgresChanges, PostgresFeeder, "postgres"),
    "files": SourceCase(make_files, FileFeeder),
    "files-s3": SourceCase(make_bucket, BucketFeeder, "s3"),
    "sql": SourceCase(lambda url, table: SqlSource(url, table, column="id"), SqlFeeder, "mariadb"),
    "http": SourceCase(make_http, HttpFeeder),
    "mqtt": SourceCase(make_mqtt, MqttFeeder, "sessions", timeout=0.5),
    "log": SourceCase(make_mirror, LogFeeder),
    "log-kafka": SourceCase(make_mirror, LogFeeder, "kafka"),
    "generator": SourceCase(lambda _, name: GeneratorSource(name, generate, limit=LIMIT), GeneratorFeeder),
}


def free_ports() -> Iterator[int]:
    while True:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            yield listening.getsockname()[1]
