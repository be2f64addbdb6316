"""How throughput grows with slots, and what goes through the driver.

    python -m benchmarks.scaling [--scale 0.1] [--slots 1 2 4] [--json]

Count by key (W5, no repartition) and word count (W1, one) run on the embedded log. The input is prepared beforehand:
it is packed, and appended when the slots are there. The time ends when the last output is in the log. Every run has
processes of its own. `local` is the session that Headrace makes on one machine; `local-cluster` is Spark's cluster of
executors in processes of their own, one for each slot.

The last columns say what the driver and its slots tell each other: orders, receipts and heartbeats. Records go from
slot to slot, so messages and bytes of a batch must not grow with its records: the second table runs the same records
in batches of different sizes. Results of a task that are smaller than `receipt.max.bytes` travel in its receipt; it is
0 here, so that every batch is treated alike.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.peers.programs.run_headrace import count_by_key, word_count
from benchmarks.peers.truths import Judge
from benchmarks.peers.workload import PARTITIONS, Given
from benchmarks.peers.workloads import workload
from benchmarks.report import write_tables
from headrace import Application, StreamsBuilder
from headrace.log import FileLog, Records
from headrace.log.chunk_format import pack
from headrace.model.ids import TopicPartition
from headrace.model.partitioner import partition_of
from headrace.spark.session import session

PROGRAMS: dict[str, Callable[[StreamsBuilder, str], None]] = {"W5": count_by_key, "W1": word_count}
ROOM = "scaling"  # what the names of topics begin with
LOCAL, CLUSTER = "local", "local-cluster"
APPENDED = 10_000  # records of a chunk of the log
GOAL = 1.7  # times one slot's records/s, with two slots on one machine
BATCHES = (2_500, 10_000, 40_000)  # records of a partition in a batch, for the table of traffic
MOST_GROWTH = 1.5  # of bytes of a batch, when it has 16 times the records


class Side(NamedTuple):
    """One measurement."""

    workload: str
    master: str
    slots: int
    batch: int = 100_000  # records of a partition
    scale: float = 1.0


# ------------------------------------------------------------------------------------------------------------ one side
def chunks_of(records: Iterable[Given]) -> list[tuple[TopicPartition, bytes]]:
    """Chunks for the log, ready to be appended."""
    columns: defaultdict[TopicPartition, list[tuple[bytes | None, bytes, int]]] = defaultdict(list)
    for topic, key, value, timestamp, partition in records:
        at = partition if partition is not None else partition_of(key, PARTITIONS) or 0
        columns[TopicPartition(f"{ROOM}-{topic}", at)].append((key, value, timestamp))
    return [
        (at, pack(Records(*map(list, zip(*some[i : i + APPENDED], strict=True)))))
        for at, some in columns.items()
        for i in range(0, len(some), APPENDED)
    ]


def run_side(side: Side) -> dict[str, Any]:
    given = workload(side.workload, side.scale)
    started = session(f"{LOCAL}[{side.slots}]" if side.master == LOCAL else f"{CLUSTER}[{side.slots},1,1024]")
    builder = StreamsBuilder()
    PROGRAMS[side.workload](builder, ROOM)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        log = FileLog(f"{folder}/log")
        for topic in (*given.topics, "out"):
            log.create_topic(f"{ROOM}-{topic}", PARTITIONS)
        app = Application(
            ROOM, builder.build(), f"file:{folder}/log", checkpoint=f"{folder}/checkpoint", state_dir=f"{folder}/state",
            spark=started, num_stream_threads=side.slots, slots_free_cores=0, batch_max_records=side.batch,
            receipt_max_bytes=0,
        )  # fmt: skip
        first, backlog = chunks_of(given.first()), chunks_of(given.backlog())
        log.append(first)
        with app:
            app.drain()
            while len(app.report().slots) < side.slots:  # executors of a cluster come one after the other
                time.sleep(0.1)
            log.append(first)
            app.drain()
            before, began = app.report(), time.perf_counter()
            log.append(backlog)
            app.drain()
            seconds, after = time.perf_counter() - began, app.report()
        check_output(log, given.judge(), side)
        log.close()
    started.stop()
    sent = [late - early for late, early in zip(after.traffic, before.traffic, strict=True)]
    return {
        "records": given.size,
        "seconds": seconds,
        "batches": after.batches - before.batches,
        "messages": sent[0] + sent[2],
        "bytes": sent[1] + sent[3],
    }


def check_output(log: FileLog, judge: Judge, side: Side) -> None:
    for partition in range(PARTITIONS):
        for chunk in log.read(TopicPartition(f"{ROOM}-out", partition), 0):
            for _, key, value, _, _ in chunk.rows():
                judge.sees(key or b"", value or b"")
    if wrong := judge.wrong():
        raise SystemExit(f"{side}: {wrong}")


def in_processes_of_its_own(side: Side) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.scaling", "--side", json.dumps(side)]
    done = subprocess.run(command, stdout=subprocess.PIPE, start_new_session=True, check=True)  # noqa: S603
    return json.loads(done.stdout.splitlines()[-1])


# -------------------------------------------------------------------------------------------------------------- tables
def speeds(results: dict[Side, dict[str, Any]]) -> Table:
    table = Table(title="Throughput by slots, embedded log", caption=f"Goal: ≥ {GOAL} times with two slots, local.")
    for i, name in enumerate(("", "slots", "records/s", "times one slot", "batches", "messages/batch", "kB/batch")):
        table.add_column(name, justify="right" if i else "left")
    for side, it in results.items():
        one = results.get(side._replace(slots=1))
        speed, ratio = it["records"] / it["seconds"], (one["seconds"] / it["seconds"]) if one else None
        shown = "" if ratio is None else f"{ratio:.2f}"
        if ratio is not None and side.slots == 2 and side.master == LOCAL:
            shown = f"[{'green' if ratio >= GOAL else 'red'}]{shown}[/]"
        table.add_row(f"{side.workload} {side.master}", str(side.slots), f"{speed:,.0f}", shown, *traffic(it))
    return table


def traffic(it: dict[str, Any]) -> list[str]:
    batches = max(1, it["batches"])
    return [str(it["batches"]), f"{it['messages'] / batches:,.1f}", f"{it['bytes'] / batches / 1000:,.1f}"]


def growth(results: dict[Side, dict[str, Any]]) -> Table:
    table = Table(title="What goes through the driver", caption=f"Bytes of a batch may grow by {MOST_GROWTH} times.")
    for i, name in enumerate(("", "records/batch", "batches", "messages/batch", "kB/batch", "times the smallest")):
        table.add_column(name, justify="right" if i else "left")
    smallest: dict[str, float] = {}
    for side, it in results.items():
        size = it["bytes"] / max(1, it["batches"])
        times = size / smallest.setdefault(side.workload, size)
        shown = f"[{'green' if times <= MOST_GROWTH else 'red'}]{times:.2f}[/]"
        records = it["records"] / max(1, it["batches"])
        table.add_row(f"{side.workload} {side.master}", f"{records:,.0f}", *traffic(it), shown)
    return table


def measured(sides: list[Side], what: str, console: Console) -> dict[Side, dict[str, Any]]:
    progress = track(sides, what, console=console, transient=True)
    return {side: in_processes_of_its_own(side) for side in progress}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="a share of the records, for a trial")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(run_side(Side(*json.loads(options.side)))))
        return
    console = Console(stderr=options.json)
    by_slots = [
        Side(name, master, slots, scale=options.scale)
        for name in PROGRAMS
        for master, some in ((CLUSTER, options.slots), (LOCAL, [slots for slots in options.slots if slots <= 2]))
        for slots in some
    ]
    by_batch = [Side(name, LOCAL, 2, batch, options.scale) for name in PROGRAMS for batch in BATCHES]
    by_slots_results = measured(by_slots, "Throughput", console)
    by_batch_results = measured(by_batch, "Traffic", console)
    if options.json:
        both = {**by_slots_results, **by_batch_results}
        print(json.dumps([{**side._asdict(), **it} for side, it in both.items()]))
        return
    tables = speeds(by_slots_results), growth(by_batch_results)
    for table in tables:
        console.print(table)
    if options == parser.parse_args([]):
        write_tables("scaling", "More slots", *tables)


if __name__ == "__main__":
    main()
