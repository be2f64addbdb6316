"""How long does it take to divide the state of a sub-topology among more tasks, instead of reading its topic again?

    python -m benchmarks.rescale [--scale 1] [--keys 1000000] [--records 10000000] [--before 8] [--after 32]
                                 [--no-spark] [--json]

A table has `keys` counts in `before` tasks; `--scale 0.1` means a tenth of all keys and records. The first rows divide
its state: a checkpoint with the snapshots of the old tasks becomes one with those of the new tasks, in this process,
and by a Spark job. The others count the `records` of a topic again: an application on Spark that reads them from an
embedded log, from its start until the last record is committed; and one task without a log, which is the least that
reprocessing can take.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.report import write_tables
from headrace import StreamsBuilder, Topology, serde
from headrace.checkpoint.files import BlobRef, DeltaRef, digest_of, task_file_name
from headrace.checkpoint.ledger import Ledger, TaskHead
from headrace.checkpoint.rescale import Division, Piece, Share, plan_pieces, rescale
from headrace.checkpoint.storage import Storage, open_storage
from headrace.config import Config
from headrace.log.embedded.file_log import FileLog
from headrace.log.protocol import Records
from headrace.model.ids import TaskId, TopicPartition
from headrace.model.partitioner import partition_of
from headrace.runtime.partitioning import lay_out_state
from headrace.runtime.rows import Input, Inputs, PartitionBatch
from headrace.runtime.task import Task, TaskEnvironment
from headrace.state.delta import Delta, encode_delta
from headrace.state.engine import MemoryEngine, Version
from headrace.state.task_state import table_prefix
from headrace.state.values import NUMBER
from headrace.topology.subtopologies import plan

CONFIG = Config.of({"application.id": "benchmark"})
BATCH = 100_000  # records


class Result(NamedTuple):
    """One way to the new tasks: seconds, entries or records, and the bytes of the checkpoint or the log."""

    way: str
    seconds: float
    count: int
    read: int
    written: int


def count_by_key() -> Topology:
    builder = StreamsBuilder()
    builder.stream("in", key=serde.STRING, value=serde.BYTES).group_by_key().count(store="counts")
    return builder.build()


def key(number: int) -> bytes:
    return b"key %012d" % number


def write_state(storage: Storage, keys: int, tasks: int) -> Ledger:
    """Writes a snapshot for each task."""
    prefix, value = table_prefix("counts"), NUMBER.pack(0) + serde.LONG.encode(1)
    rows: list[list[tuple[bytes, bytes]]] = [[] for _ in range(tasks)]
    for number in range(keys):
        rows[partition_of(key(number), tasks) or 0].append((prefix + key(number), value))
    ledger = Ledger()
    ledger.number = 0
    for partition, own in enumerate(rows):
        task = TaskId(0, partition)
        data, name = encode_delta(Delta(Version(0, "a"), tuple(own))), task_file_name("snapshots", task, 0, "a")
        storage.create(name, data)
        blob = BlobRef(name, 0, len(data), digest_of(data))
        ledger.tasks[task] = TaskHead((DeltaRef(0, "a", len(own), blob),))
    return ledger


def divide(keys: int, before: int, after: int, *, on_spark: bool) -> Result:
    graph = count_by_key().graph()
    layout = lay_out_state(graph, plan(graph).stages[0], CONFIG)
    with tempfile.TemporaryDirectory() as folder:
        storage = open_storage(folder)
        ledger = write_state(storage, keys, before)
        run = start_spark(folder) if on_spark else None
        divisions = [Division(0, before, after, layout)]
        pieces = plan_pieces(ledger, divisions, 1)
        began = time.perf_counter()
        done = rescale(storage, ledger, divisions, {}, run=run)
        seconds = time.perf_counter() - began
    deltas = [delta for head in done.tasks.values() for delta in head.chain]
    read = sum(delta.blob.size for piece in pieces for _, chain in piece.sources for delta in chain)
    way = f"divide the state, {before} to {after} tasks, {'on Spark' if on_spark else 'in one process'}"
    return Result(way, seconds, sum(delta.entries for delta in deltas), read, sum(delta.blob.size for delta in deltas))


def start_spark(folder: str) -> Any:
    from headrace.spark.job_planner import run_on_spark  # noqa: PLC0415 - it takes a second
    from headrace.spark.session import start_context  # noqa: PLC0415

    context = start_context("local[2]", None).result()
    context.parallelize(range(2), 2).map(str).collect()  # those of an application that runs have started, too

    def run(pieces: Sequence[Piece], work: Callable[[Storage, Piece], list[Share]]) -> Iterator[list[Share]]:
        return run_on_spark(context, folder, pieces, work)

    return run


def reprocess_on_spark(keys: int, records: int, tasks: int) -> Result:
    """Counts the records of a topic of the embedded log from its beginning. The topic is written before."""
    from headrace import Application  # noqa: PLC0415 - it takes a second

    with tempfile.TemporaryDirectory() as folder:
        with FileLog(Path(folder, "log")) as log:
            log.create_topic("in", tasks)
            for start in range(0, records, BATCH):
                rows: list[list[bytes]] = [[] for _ in range(tasks)]
                for number in range(start, min(start + BATCH, records)):
                    found = key(number * 7919 % keys)
                    rows[partition_of(found, tasks) or 0].append(found)
                log.append(
                    [
                        (TopicPartition("in", partition), Records(own, [b"x"] * len(own), [0] * len(own)))
                        for partition, own in enumerate(rows)
                        if own
                    ]
                )
        size = sum(file.stat().st_size for file in Path(folder, "log").rglob("*") if file.is_file())
        app = Application(
            "benchmark",
            count_by_key(),
            f"file:{folder}/log",
            checkpoint=f"{folder}/checkpoint",
            state_dir=f"{folder}/state",
            master="local[2]",
        )
        began = time.perf_counter()
        with app:
            app.drain()
            seconds = time.perf_counter() - began
        written = sum(file.stat().st_size for file in Path(folder, "checkpoint").rglob("*") if file.is_file())
    return Result(f"count {records:,} records again, on Spark, {tasks} tasks", seconds, records, size, written)


def reprocess(keys: int, records: int) -> Result:
    """Counts the records again. Their batches are made before the clock starts."""
    graph = count_by_key().graph()
    task = Task(TaskId(0, 0), graph, plan(graph).stages[0].nodes, MemoryEngine(), TaskEnvironment(CONFIG, {}), clock=0)
    at, seconds = TopicPartition("in", 0), 0.0
    for number, start in enumerate(range(0, records, BATCH)):
        count = min(BATCH, records - start)
        found = [key((start + n) * 7919 % keys) for n in range(count)]
        batch = PartitionBatch(at, range(start, start + count), Records(found, [b"x"] * count, [0] * count))
        began = time.perf_counter()
        task.run(Inputs({at: Input([batch], start + count)}), clock=0, version=Version(number, "a"))
        seconds += time.perf_counter() - began
    task.close()
    return Result(f"count {records:,} records again, one task, no log", seconds, records, 0, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="of keys and records")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--before", type=int, default=8)
    parser.add_argument("--after", type=int, default=32)
    parser.add_argument("--spark", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    keys, records = max(1, int(given.keys * given.scale)), max(1, int(given.records * given.scale))
    results = [divide(keys, given.before, given.after, on_spark=False)]
    if given.spark:
        results += [divide(keys, given.before, given.after, on_spark=True)]
        results += [reprocess_on_spark(keys, records, given.after)]
    results.append(reprocess(keys, records))
    if given.json:
        print(json.dumps([result._asdict() for result in results]))
        return
    table = Table("way", "seconds", "entries or records", "MB read", "MB written")
    for way, seconds, count, read, written in results:
        table.add_row(way, f"{seconds:.2f}", f"{count:,}", f"{read / 1e6:.1f}", f"{written / 1e6:.1f}")
    Console(width=120).print(table)
    if given == parser.parse_args([]):
        write_tables("rescale", "More tasks", table)


if __name__ == "__main__":
    main()
