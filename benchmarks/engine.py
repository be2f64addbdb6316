"""How fast is it end to end? Count by key from log to log, beside Spark's own ways; and how soon is one batch out?

    python -m benchmarks.engine [--records 2000000] [--keys 100000] [--batch 200000] [--slots 2] [--json]

Headrace reads and writes the embedded log. Spark's own `groupBy().count()` and `transformWithState` read and write
Parquet, the files that Spark is best at: columns, compressed, nothing to parse, as in the log. They run in update mode
on RocksDB, in batches of the same size, with a shuffle partition per slot, once in the session that Headrace makes, and
the first also in one as Spark comes. Every side runs in processes of its own, first with a few records to warm up; its
time is from when a query that runs gets its input until the last output is on disk. CPU seconds are those of all its
processes, Python's and Java's: they tell the cost of a record even where others use the machine. `transformWithState`
gets a tenth of records, keys and batch, so that a key comes as often in a batch; it needs `pip install protobuf`.

The second table says how long ten records take from the log of an idle application to the log that they cause, for
topologies without, with one and with two repartitions, beside the shortest batch that Spark can do by itself: ten rows
that it makes up and throws away, in the same session.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.report import write_tables
from headrace import Application, StreamsBuilder, Topology, serde
from headrace.log import FileLog, Records
from headrace.log.chunk_format import pack
from headrace.model.ids import TopicPartition
from headrace.model.partitioner import partition_of
from headrace.spark import session as ours

HEADRACE, SPARK, STOCK, STATEFUL = "Headrace", "Spark's count", "… in a session as Spark comes", "transformWithState"
GOALS = {SPARK: 1.0, STATEFUL: 40.0}  # times their speed, by CPU
GOAL_OF_LATENCY = 3.0  # times Spark's shortest batch, for one level
LATENCY = "latency"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
APPENDED = 10_000  # records of a chunk of the log


@dataclass(frozen=True)
class Load:
    """How much there is to do: `batch` records of one file or of one partition of the log are read at once."""

    records: int
    keys: int
    batch: int
    slots: int

    def smaller(self, times: int) -> Load:
        return replace(
            self, records=self.records // times, keys=max(1, self.keys // times), batch=max(1, self.batch // times)
        )

    def input(self) -> list[str]:
        chance = random.Random(2)
        return [f"key-{chance.randrange(self.keys)}" for _ in range(self.records)]


# ----------------------------------------------------------------------------------------------------------- measuring
def cpu_seconds() -> float:
    """What all processes of this session have used; a side's processes are those of its session."""
    session, ticks = os.getsid(0), 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))  # its own, and those of its children that have ended
    return ticks / os.sysconf("SC_CLK_TCK")


class Watch:
    """Seconds on the clock and of CPU, from its making to `stop`."""

    def __init__(self) -> None:
        self._cpu, self._started = cpu_seconds(), time.perf_counter()

    def stop(self, records: int) -> dict[str, float]:
        return {
            "seconds": time.perf_counter() - self._started,
            "cpu": cpu_seconds() - self._cpu,
            "records": records,
            "load": os.getloadavg()[0],
        }


@contextmanager
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as path:
        yield path


def session(load: Load, *, stock: bool = False) -> SparkSession:
    """The session that a query runs in: Headrace's, or one as Spark comes."""
    if stock:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.master(f"local[{load.slots}]").config("spark.ui.enabled", "false")
        spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
    else:
        spark = ours.own_session(ours.session(slots=load.slots))
    spark.conf.set("spark.sql.shuffle.partitions", load.slots)
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    return spark


# ------------------------------------------------------------------------------------------------------------ Headrace
def new_log(path: str, load: Load) -> FileLog:
    log = FileLog(f"{path}/log")
    log.create_topic("in", load.slots)
    log.create_topic("out", load.slots)
    return log


def count_by_key() -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream("in", key=serde.STRING, value=serde.STRING).group_by_key()
    grouped.count(store="counts").to_stream().to("out", key=serde.STRING, value=serde.LONG)
    return builder.build()


def packed_input(load: Load, part: range) -> list[tuple[TopicPartition, bytes]]:
    """Chunks for the log, ready to be appended."""
    places = {f"key-{i}": partition_of(b"key-%d" % i, load.slots) for i in range(load.keys)}
    columns: list[tuple[list[bytes], list[int]]] = [([], []) for _ in range(load.slots)]
    for time_, key in zip(part, load.input()[part.start : part.stop], strict=True):
        keys, times = columns[places[key] or 0]
        keys.append(key.encode())
        times.append(time_)
    return [
        (TopicPartition("in", partition), pack(Records(keys, [b"x"] * len(keys), times).slice(i, i + APPENDED)))
        for partition, (keys, times) in enumerate(columns)
        for i in range(0, len(keys), APPENDED)
    ]


def headrace_counts(log: FileLog, load: Load) -> dict[bytes | None, int]:
    chunks = (chunk for place in range(load.slots) for chunk in log.read(TopicPartition("out", place), 0))
    return {key: int.from_bytes(value or b"", "big") for chunk in chunks for _, key, value, _, _ in chunk.rows()}


def run_headrace(load: Load) -> dict[str, float]:
    session(load)
    with folder() as path:
        address = f"file:{path}/log"
        log = new_log(path, load)
        first, chunks = packed_input(load, range(1)), packed_input(load, range(1, load.records))
        app = Application(
            "bench",
            count_by_key(),
            address,
            checkpoint=f"{path}/checkpoint",
            state_dir=f"{path}/state",
            batch_max_records=load.batch,
            num_stream_threads=load.slots,
        )
        log.append(first)
        with app:
            app.drain()
            watch = Watch()
            log.append(chunks)
            app.drain()
            result = watch.stop(load.records)
        check(HEADRACE, sum(headrace_counts(log, load).values()), load)
        log.close()
    return result


def check(side: str, counted: int, load: Load) -> None:
    if counted != load.records:
        raise SystemExit(f"{side} counted {counted} records instead of {load.records}")


# --------------------------------------------------------------------------------------------------------- Spark's own
def write_files(directory: Path, load: Load) -> None:
    directory.mkdir()
    keys = load.input()
    for i in [0, *range(1, len(keys), load.batch)]:
        some = keys[i : i + load.batch if i else 1]
        table = pa.table({"key": some, "value": ["x"] * len(some), "timestamp": list(range(i, i + len(some)))})
        parquet.write_table(table, directory / f"{i:012}.parquet")


def native(frame: DataFrame) -> DataFrame:
    return frame.groupBy("key").count()


def stateful(frame: DataFrame) -> DataFrame:
    class Count(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._count = handle.getValueState("count", "count long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            before = self._count.get()
            count = (before[0] if before else 0) + sum(1 for _ in rows)
            self._count.update((count,))
            yield Row(key=key[0], count=count)

        def close(self) -> None:
            pass

    grouped = frame.select("key", "value").groupBy("key")
    return grouped.transformWithState(Count(), "key string, count long", "Update", "None")


def run_spark(load: Load, query: Callable[[DataFrame], DataFrame], *, stock: bool = False) -> dict[str, float]:
    spark = session(load, stock=stock)
    with folder() as path:
        given, made, ready = f"{path}/in", f"{path}/out", Path(path, "ready")
        Path(given).mkdir()
        write_files(ready, load)
        reader = spark.readStream.option("maxFilesPerTrigger", load.slots)
        frame = reader.schema("key string, value string, timestamp long").parquet(given)
        # Files cannot be written in update mode, but batch by batch they can.
        writer = query(frame).writeStream.outputMode("update").option("checkpointLocation", f"{path}/checkpoint")
        writer = writer.foreachBatch(lambda frame, _: frame.write.mode("append").parquet(made))
        spark.conf.set("spark.sql.files.openCostInBytes", "0")  # a file, however small, is a task
        first, *files = sorted(ready.iterdir())
        first.rename(Path(given, first.name))
        running = writer.start()
        running.processAllAvailable()
        watch = Watch()
        for file in files:
            file.rename(Path(given, file.name))
        running.processAllAvailable()
        result = watch.stop(load.records)
        running.stop()
        last = spark.read.parquet(made).groupBy("key").max("count").toDF("key", "count")
        check("Spark", last.groupBy().sum("count").collect()[0][0], load)
    return result


# ------------------------------------------------------------------------------------------------------------- latency
def levels(repartitions: int) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serde.STRING, value=serde.STRING)
    for _ in range(repartitions):
        stream = stream.group_by(lambda key, value: key, key=serde.STRING, value=serde.STRING)
        stream = stream.count().to_stream().map_values(str)
    stream.group_by_key().count().to_stream().to("out", key=serde.STRING, value=serde.LONG)
    return builder.build()


def latency_of(load: Load, repartitions: int, times: int) -> float:
    """Milliseconds until what a few records cause is in the log: the median."""
    with folder() as path:
        address = f"file:{path}/log"
        log = new_log(path, load)
        five = Records([b"key-%d" % i for i in range(5)], [b"x"] * 5, [1] * 5)
        few = [(TopicPartition("in", place), five) for place in range(min(2, load.slots))]
        log.append(few)
        took: list[float] = []
        checkpoint, state = f"{path}/checkpoint", f"{path}/state"
        with Application("levels", levels(repartitions), address, checkpoint=checkpoint, state_dir=state) as app:
            app.drain()
            for _ in range(times):
                before = log.extents(["out"])
                started = time.perf_counter()
                log.append(few)
                while log.extents(["out"]) == before:
                    time.sleep(0.001)
                took.append(1000 * (time.perf_counter() - started))
                app.drain()
                time.sleep(0.2)  # more than the commit interval: it is idle again
        log.close()
    return median(took[times // 3 :])


def shortest_batch(load: Load, times: int) -> float:
    """Milliseconds of Spark's own for ten rows to nowhere, batch after batch: the median."""
    spark = session(load)
    with folder() as path:
        frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        query = frame.writeStream.format("noop").option("checkpointLocation", path).start()
        spent: dict[int, float] = {}
        while len(spent) < times:
            spent |= {p["batchId"]: p["durationMs"]["triggerExecution"] for p in query.recentProgress}
            time.sleep(0.05)
        query.stop()
    return median(list(spent.values())[times // 3 :])


def run_latency(load: Load, times: int = 30, rounds: int = 3) -> dict[str, float]:
    """In turn, so that what else the machine does falls on all alike."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        found.setdefault("floor", []).append(shortest_batch(load, 3 * times))
        for repartitions in range(3):
            found.setdefault(str(repartitions + 1), []).append(latency_of(load, repartitions, times))
    return {name: median(some) for name, some in found.items()}


# -------------------------------------------------------------------------------------------------------------- sides
RUNS: dict[str, Callable[[Load], dict[str, float]]] = {
    HEADRACE: run_headrace,
    SPARK: lambda load: run_spark(load, native),
    STOCK: lambda load: run_spark(load, native, stock=True),
    STATEFUL: lambda load: run_spark(load, stateful),
}


def in_processes_of_its_own(side: str, load: Load) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.engine", "--side", side, *shown(load)]
    done = subprocess.run(command, stdout=subprocess.PIPE, start_new_session=True, check=True)  # noqa: S603
    return json.loads(done.stdout.splitlines()[-1])


def shown(load: Load) -> list[str]:
    return [f"--{name}={getattr(load, name)}" for name in ("records", "keys", "batch", "slots")]


def run_side(side: str, load: Load) -> dict[str, float]:
    if side == LATENCY:
        return run_latency(load)
    RUNS[side](load.smaller(20))
    return RUNS[side](load)


def speeds(results: dict[str, dict[str, float]], load: Load) -> Table:
    title = f"Count by key, {load.records:,} records, {load.keys:,} keys, {load.slots} slots"
    table = Table(title=title, caption="Goals are by CPU: what a core does.")
    for i, name in enumerate(("", "records/s", "records per CPU s", "Headrace, times this", "by CPU", "goal", "load")):
        table.add_column(name, justify="right" if i else "left")
    ours = results[HEADRACE]
    for side, it in results.items():
        by_time = (ours["records"] / ours["seconds"]) / (it["records"] / it["seconds"])
        by_cpu = (ours["records"] / ours["cpu"]) / (it["records"] / it["cpu"])
        goal = GOALS.get(side)
        colour = "default" if goal is None else "green" if by_cpu >= goal else "red"
        figures = f"{it['records'] / it['seconds']:,.0f}", f"{it['records'] / it['cpu']:,.0f}", f"{by_time:.2f}"
        target = "" if goal is None else f"≥ {goal:g}"
        table.add_row(side, *figures, f"[{colour}]{by_cpu:.2f}[/]", target, f"{it['load']:.1f}")
    return table


def latencies(took: dict[str, float]) -> Table:
    table = Table(title="From an idle application's log to its log: ten records, median")
    for i, name in enumerate(("", "ms", "times Spark's shortest batch", "goal")):
        table.add_column(name, justify="right" if i else "left")
    table.add_row("Spark's shortest batch", f"{took['floor']:.0f}", "", "")
    for level in ("1", "2", "3"):
        times = took[level] / took["floor"]
        colour = "default" if level > "1" else "green" if times <= GOAL_OF_LATENCY else "red"
        name = "one level" if level == "1" else f"{level} levels"
        goal = f"≤ {GOAL_OF_LATENCY:g}" if level == "1" else ""
        table.add_row(name, f"{took[level]:.0f}", f"[{colour}]{times:.1f}[/]", goal)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="Count by key end to end, beside Spark's own ways; and latency.")
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=200_000, help="records of one partition in one batch")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--side", choices=[*RUNS, LATENCY], help="measure one side, here, and print it as JSON")
    options = parser.parse_args()
    load = Load(options.records, options.keys, options.batch, options.slots)
    if options.side:
        print(json.dumps(run_side(options.side, load)))
        return
    console = Console(stderr=options.json)
    sides = {HEADRACE: load, SPARK: load, STOCK: load, STATEFUL: load.smaller(10), LATENCY: load}
    if not all(map(importlib.util.find_spec, ("google", "google.protobuf"))):
        console.print("transformWithState is left out: pip install protobuf")
        del sides[STATEFUL]
    progress = track(sides.items(), "Measuring", total=len(sides), console=console, transient=True)
    results = {side: in_processes_of_its_own(side, load) for side, load in progress}
    if options.json:
        print(json.dumps(results))
        return
    took = results.pop(LATENCY)
    tables = speeds(results, load), latencies(took)
    for table in tables:
        console.print(table)
    if options == parser.parse_args([]):
        write_tables("engine", "Beside Spark's own streaming", *tables)


if __name__ == "__main__":
    main()
