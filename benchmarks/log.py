"""How fast is the embedded log? Records per second to and from a disk, beside one fsync per record.

    python -m benchmarks.log [--records 500000] [--directory .] [--json]

Everything that is counted as written is on the disk: `append` returns after an fsync. The yardstick is the same log
with one record, and so one fsync, at a time; a plain file with one fsync per record is there to compare. In a directory
that is in memory (/dev/shm, on some machines /tmp) they mean nothing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.report import write_tables
from headrace.clients import Consumer, Producer
from headrace.log import FileLog, Records
from headrace.log.chunk_format import pack
from headrace.model.ids import TopicPartition

BATCH = 10_000
A = TopicPartition("a", 0)


@dataclass(frozen=True)
class Figure:
    """Records per second, and what it should be at least: as a number, or as a multiple of one fsync per record."""

    name: str
    speed: float
    goal: float | None = None
    goal_ratio: float | None = None


def some_records(count: int) -> Records:
    chance = random.Random(1)
    keys = [b"key-%d" % chance.randrange(1000) for _ in range(count)]
    values = [b'{"id": %d, "price": %d, "sku": "s%d"}' % (i, chance.randrange(1000), i % 500) for i in range(count)]
    return Records(keys, values, [1_700_000_000_000 + i for i in range(count)])


@contextmanager
def new_log(directory: str, partitions: int = 1) -> Iterator[FileLog]:
    with tempfile.TemporaryDirectory(dir=directory) as path, FileLog(path, clean_every=None) as log:
        log.create_topic("a", partitions)
        yield log


def speed(count: int, run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return count / (time.perf_counter() - started)


# ---------------------------------------------------------------------------------------------------- record by record
def one_fsync_per_record(directory: str, count: int = 300) -> float:
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:

        def run() -> None:
            for i in range(count):
                file.write(b'key-%d {"id": %d, "price": 1, "sku": "s"}\n' % (i, i))
                os.fsync(file.fileno())

        return speed(count, run)


def append_singly(log: FileLog, count: int) -> None:
    one = Records([b"key-1"], [b'{"id": 1, "price": 1, "sku": "s"}'], [1])
    for _ in range(count):
        log.append([(A, one)])


def single_records(directory: str, threads: int) -> float:
    with new_log(directory) as log:
        crowd = [threading.Thread(target=append_singly, args=(log, 40)) for _ in range(threads)]

        def run() -> None:
            for thread in crowd:
                thread.start()
            for thread in crowd:
                thread.join()

        return speed(40 * threads, run)


def in_a_process(directory: str, start: threading.Barrier) -> None:
    with FileLog(directory, clean_every=None) as log:
        start.wait()
        append_singly(log, 100)


def single_records_of_processes(directory: str, count: int) -> float:
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(count + 1)
    with new_log(directory) as log:
        crowd = [context.Process(target=in_a_process, args=(str(log.directory), start)) for _ in range(count)]
        for process in crowd:
            process.start()
        start.wait()

        def run() -> None:
            for process in crowd:
                process.join()

        return speed(100 * count, run)


def sent_records(directory: str, records: Records) -> float:
    with new_log(directory, 3) as log, Producer(log) as producer:

        def run() -> None:
            for key, value in zip(records.keys, records.values, strict=True):
                producer.send("a", key, value)
            producer.flush()

        return speed(len(records), run)


# ---------------------------------------------------------------------------------------------------------- in batches
def batched(directory: str, records: Records, prepare: Callable[[Records], Records | bytes]) -> float:
    parts = [prepare(records.slice(i, i + BATCH)) for i in range(0, len(records), BATCH)]
    with new_log(directory) as log:
        return speed(len(records), lambda: [log.append([(A, part)]) for part in parts])


def deliveries(directory: str, count: int = 60) -> float:
    """Seconds that a small batch to three partitions takes."""
    part = some_records(10)
    with new_log(directory, 3) as log:
        times: list[float] = []
        for number in range(count):
            started = time.perf_counter()
            log.deliver("bench", number, [(TopicPartition("a", i), part) for i in range(3)])
            times.append(time.perf_counter() - started)
    return median(times)


def reading(directory: str, records: Records) -> Iterator[Figure]:
    count = len(records)
    with new_log(directory) as log:
        for i in range(0, count, BATCH):
            log.append([(A, records.slice(i, i + BATCH))])
        yield Figure("read, chunk by chunk", speed(count, lambda: sum(len(chunk) for chunk in log.read(A, 0))), 500_000)
        yield Figure("read, record by record", speed(count, lambda: sum(1 for c in log.read(A, 0) for _ in c.rows())))
        with Consumer(log, auto_offset_reset="earliest", max_poll_records=5000) as consumer:
            consumer.subscribe("a")

            def run() -> None:
                seen = 0
                while seen < count:
                    seen += len(consumer.poll(1000))

            yield Figure("Consumer.poll", speed(count, run))


def measure(directory: str, count: int) -> Iterator[Figure]:
    records = some_records(count)
    yield Figure("append of single records, 1 thread", single_records(directory, 1))
    yield Figure("… 32 threads", single_records(directory, 32))
    yield Figure("… 100 threads", single_records(directory, 100), goal_ratio=10)
    yield Figure("… 4 processes", single_records_of_processes(directory, 4))
    yield Figure("(a plain file, an fsync for each)", one_fsync_per_record(directory))
    yield Figure("Producer.send", sent_records(directory, records.slice(0, count // 5)), goal_ratio=10)
    yield Figure(f"append of {BATCH:,} records", batched(directory, records, lambda part: part), 300_000)
    yield Figure(f"append of {BATCH:,} packed records", batched(directory, records, pack), 300_000)
    yield from reading(directory, records)


def shown(figure: Figure, base: float) -> tuple[str, str, str, str]:
    goal, is_met = "", True
    if figure.goal is not None:
        goal, is_met = f"≥ {figure.goal:,.0f}/s", figure.speed >= figure.goal
    if figure.goal_ratio is not None:
        goal, is_met = f"≥ {figure.goal_ratio:g} times", figure.speed >= figure.goal_ratio * base
    colour = "green" if is_met else "red"
    return figure.name, f"[{colour}]{figure.speed:,.0f}[/]", f"{figure.speed / base:,.1f} times", goal


def main() -> None:
    parser = argparse.ArgumentParser(description="Records per second to and from the embedded log.")
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--directory", default=".", help="where to put the log for a while: it must be on a disk")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    console = Console(stderr=options.json)
    directory = str(Path(options.directory).resolve())
    progress = track(measure(directory, options.records), "Measuring", total=11, console=console, transient=True)
    figures = list(progress)
    latency = deliveries(directory)
    if options.json:
        print(json.dumps({"delivery": latency} | {figure.name: figure.speed for figure in figures}))
        return
    table = Table(title="The embedded log, on disk")
    for i, column in enumerate(("what", "records/s", "times one fsync per record", "goal")):
        table.add_column(column, justify="right" if i else "left")
    for figure in figures:
        table.add_row(*shown(figure, figures[0].speed))
    console.print(table)
    delivery = f"Delivery of a small batch to three partitions: {1000 * latency:.1f} ms (median)"
    console.print(delivery)
    if options == parser.parse_args([]):
        write_tables("log", "The embedded log", table, f"{delivery}.")


if __name__ == "__main__":
    main()
