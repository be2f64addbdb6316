"""How fast are the bare logs? Producers and consumers without an application, on the embedded log and on Kafka.

    python -m benchmarks.clients [--records 200000] [--directory .] [--json]

Three kinds of clients run one after the other: Headrace's on the embedded log, Headrace's on Kafka, and Kafka's own
(confluent-kafka) on the same broker. Records have 100 bytes unless the table says otherwise. Producers and consumers
are processes of their own; a producer's time ends when all of its records are stored. The latency is that of single
records, from `send` to `poll`, at 1,000 a second: it is what an application's latency is added to.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import confluent_kafka as kafka
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.report import write_tables
from headrace import Admin, Consumer, Producer
from headrace.testing import KafkaBroker

PARTITIONS = 3
SIZE = 100  # bytes of a record's value
SIZES = (10, 100, 1_000, 10_000, 100_000)
BYTES = 50_000_000  # of a measurement of sizes, at most
TOPIC = "records"
RATE = 1_000  # records a second, for the latency
SECONDS = 10.0  # of sending, for the latency
SPAWN = multiprocessing.get_context("spawn")


# ---------------------------------------------------------------------------------------------------- kinds of clients
def ignore(value: bytes) -> None:
    """Does nothing with a record."""


class Clients(ABC):
    """Producers and consumers of one kind; `address` is that of the log."""

    def __init__(self, address: str) -> None:
        self.address = address

    def create(self, topic: str) -> None:
        with Admin(self.address) as admin:
            admin.create_topic(topic, partitions=PARTITIONS)

    @abstractmethod
    def produce(self, topic: str, value: bytes, count: int) -> None:
        """Sends records, and returns when all of them are stored."""

    @abstractmethod
    def consume(self, topic: str, count: int, seen: Callable[[bytes], object] = ignore) -> None:
        """Reads records from the beginning."""

    @abstractmethod
    @contextmanager
    def sender(self, topic: str) -> Iterator[Callable[[bytes], object]]:
        """Sends single records, without waiting for others to be sent with them."""
        yield lambda value: None


class HeadraceClients(Clients):
    def produce(self, topic: str, value: bytes, count: int) -> None:
        with Producer(self.address) as producer:
            for number in range(count):
                producer.send(topic, b"%d" % (number % 1000), value)
            producer.flush()

    def consume(self, topic: str, count: int, seen: Callable[[bytes], object] = ignore) -> None:
        with Consumer(self.address, auto_offset_reset="earliest", max_poll_records=5000) as consumer:
            consumer.subscribe(topic)
            while count > 0:
                records = consumer.poll(1000)
                count -= len(records)
                for record in records:
                    seen(record.value)

    @contextmanager
    def sender(self, topic: str) -> Iterator[Callable[[bytes], object]]:
        with Producer(self.address, linger=0) as producer:
            yield lambda value: producer.send(topic, b"key", value)


class KafkaClients(Clients):
    """Kafka's own clients, as they come; records are consumed in lists, which is their fast way."""

    def _producer(self, **settings: Any) -> kafka.Producer:
        return kafka.Producer({"bootstrap.servers": self.address.removeprefix("kafka://"), "acks": "all", **settings})

    def produce(self, topic: str, value: bytes, count: int) -> None:
        producer = self._producer()
        for number in range(count):
            while True:
                try:
                    producer.produce(topic, value, b"%d" % (number % 1000))
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()

    def consume(self, topic: str, count: int, seen: Callable[[bytes], object] = ignore) -> None:
        settings = {"group.id": uuid4().hex, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = kafka.Consumer({"bootstrap.servers": self.address.removeprefix("kafka://"), **settings})
        consumer.assign([kafka.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        while count > 0:
            messages = consumer.consume(5000, 1.0 if seen is ignore else 0.001)
            count -= len(messages)
            for message in messages:
                seen(message.value() or b"")
        consumer.close()

    @contextmanager
    def sender(self, topic: str) -> Iterator[Callable[[bytes], object]]:
        producer = self._producer(**{"linger.ms": 0})

        def send(value: bytes) -> None:
            producer.produce(topic, value, b"key")
            producer.poll(0)

        yield send
        producer.flush()


# -------------------------------------------------------------------------------------------------------- measurements
class Work(NamedTuple):
    """What one process does: `produce` or `consume` so many records of a size."""

    clients: Clients
    verb: str
    topic: str
    count: int
    size: int = SIZE


def do(work: Work, start: threading.Barrier, times: Queue[tuple[float, float]]) -> None:
    start.wait()
    began = time.monotonic()
    if work.verb == "produce":
        work.clients.produce(work.topic, b"v" * work.size, work.count)
    else:
        work.clients.consume(work.topic, work.count)
    times.put((began, time.monotonic()))


def seconds_of(*works: Work) -> float:
    """Runs processes at the same time; returns the seconds from the first begin to the last end."""
    start, times = SPAWN.Barrier(len(works)), SPAWN.Queue()
    processes = [SPAWN.Process(target=do, args=(work, start, times)) for work in works]
    for process in processes:
        process.start()
    taken = [times.get() for _ in works]
    for process in processes:
        process.join()
    return max(end for _, end in taken) - min(begin for begin, _ in taken)


def new_topic(clients: Clients) -> str:
    topic = f"{TOPIC}-{uuid4().hex[:6]}"
    clients.create(topic)
    return topic


def throughput(clients: Clients, count: int) -> dict[str, float]:
    """Records per second, all processes together."""
    one, three, both = new_topic(clients), new_topic(clients), new_topic(clients)
    return {
        "1 producer": count / seconds_of(Work(clients, "produce", one, count)),
        "3 producers": count / seconds_of(*[Work(clients, "produce", three, count // 3)] * 3),
        "1 consumer": count / seconds_of(Work(clients, "consume", one, count)),
        "3 consumers": 3 * count / seconds_of(*[Work(clients, "consume", one, count)] * 3),
        "producer and consumer together": count
        / seconds_of(Work(clients, "produce", both, count), Work(clients, "consume", both, count)),
    }


def by_size(clients: Clients, size: int, most: int) -> dict[str, float]:
    """Records per second that one producer and then one consumer handle."""
    count, topic = max(100, min(most, BYTES // size)), new_topic(clients)
    return {verb: count / seconds_of(Work(clients, verb, topic, count, size)) for verb in ("produce", "consume")}


def latencies(clients: Clients, seconds: float) -> dict[str, float]:
    """Percentiles, in ms, of the time from `send` to `poll` at a steady rate. The first second is not counted."""
    topic, count, taken = new_topic(clients), round(RATE * seconds), list[float]()
    reader = threading.Thread(
        target=clients.consume, args=(topic, count, lambda value: taken.append(time.monotonic() - float(value)))
    )
    reader.start()
    with clients.sender(topic) as send:
        began = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, began + number / RATE - time.monotonic()))
            send(repr(time.monotonic()).encode())
    reader.join()
    found = sorted(taken[RATE:])
    return {f"p{share:g}": 1000 * found[min(len(found) - 1, int(len(found) * share / 100))] for share in (50, 99, 99.9)}


def measure(kinds: dict[str, Clients], count: int, seconds: float) -> Iterator[tuple[str, str, dict[str, float]]]:
    for name, clients in kinds.items():
        clients.produce(new_topic(clients), b"v" * SIZE, 1000)  # warms the broker
        yield "throughput", name, throughput(clients, count)
        yield "latency", name, latencies(clients, seconds)
        for size in SIZES:
            yield f"{size}", name, by_size(clients, size, count)


# -------------------------------------------------------------------------------------------------------------- tables
def speed(records: float, size: int) -> str:
    return f"{records:,.0f} ({records * size / 1e6:,.1f} MB/s)"


def tables(found: dict[tuple[str, str], dict[str, float]], names: list[str]) -> Iterator[Table]:
    def table(title: str, rows: Iterator[tuple[str, ...]]) -> Table:
        made = Table("", *names, title=title)
        for row in rows:
            made.add_row(*row)
        return made

    first = found["throughput", names[0]]
    rows = ((what, *(speed(found["throughput", name][what], SIZE) for name in names)) for what in first)
    yield table("Records/s of 100 bytes", rows)
    shares = ((p, *(f"{found['latency', name][p]:.1f} ms" for name in names)) for p in found["latency", names[0]])
    yield table(f"From send to poll, single records, {RATE:,} a second", shares)
    sizes = (
        (f"{verb}, {size:,} bytes", *(speed(found[f"{size}", name][verb], size) for name in names))
        for verb in ("produce", "consume")
        for size in SIZES
    )
    yield table("Records/s by size, one process", sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long single records are sent")
    parser.add_argument("--directory", default=".", help="where to put the logs for a while: it must be on a disk")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    console = Console(stderr=options.json)
    folder = Path(options.directory).resolve()
    with (
        tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as logs,
        KafkaBroker(f"{logs}/broker") as broker,
    ):
        kinds: dict[str, Clients] = {
            "embedded log": HeadraceClients(f"file:{logs}/embedded"),
            "Kafka": HeadraceClients(broker.address),
            "Kafka, its own clients": KafkaClients(broker.address),
        }
        steps = measure(kinds, options.records, options.seconds)
        total = len(kinds) * (2 + len(SIZES))
        progress = track(steps, "Measuring", total=total, console=console, transient=True)
        found = {(what, name): figures for what, name, figures in progress}
    if options.json:
        print(json.dumps([{"what": what, "clients": name, **figures} for (what, name), figures in found.items()]))
        return
    shown = list(tables(found, list(kinds)))
    for table in shown:
        console.print(table)
    if options == parser.parse_args([]):
        write_tables("clients", "Producers and consumers", *shown)


if __name__ == "__main__":
    main()
