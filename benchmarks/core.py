"""How fast is one core? Records per second through `Task.run`, beside a plain Python loop that does the same work.

    python -m benchmarks.core [--records 200000] [--json]

Both sides get bytes and give bytes. Headrace keeps its state in LMDB and commits it after every batch of 10,000
records; the loop keeps dicts and forgets them. The workloads are the ones that programs are made of.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import orjson
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.report import write_tables
from headrace import JoinWindows, StreamsBuilder, TimeWindows, Topology, serde
from headrace.config import Config
from headrace.model.ids import TaskId
from headrace.runtime.rows import Inputs, batch_rows
from headrace.runtime.task import Task, TaskEnvironment
from headrace.state.engine import Version
from headrace.state.lmdb import LmdbEngine

BATCH = 10_000
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Workload:
    """A topology, its input, the same work by hand, and the share of the loop's speed that is the goal."""

    name: str
    goal: float
    topology: Callable[[], Topology]
    rows: Callable[[int], list[Row]]
    by_hand: Callable[[list[Row]], int]
    caching: bool = True


# -------------------------------------------------------------------------------------------- stateless on JSON
def orders(count: int) -> list[Row]:
    chance = random.Random(1)
    return [
        (
            "orders",
            0,
            i,
            b"%d" % i,
            orjson.dumps({"id": i, "quantity": chance.randrange(10), "sku": f"s{i % 500}"}),
            i,
            (),
            i,
        )
        for i in range(count)
    ]


def order_filter() -> Topology:
    builder = StreamsBuilder()
    (
        builder.stream("orders", key=serde.STRING, value=serde.JSON)
        .filter(lambda order: order["quantity"] > 4)
        .map_values(lambda order: {"sku": order["sku"], "double": order["quantity"] * 2})
        .to("big", key=serde.STRING, value=serde.JSON)
    )
    return builder.build()


def order_filter_by_hand(rows: list[Row]) -> int:
    out = []
    for _, _, _, key, value, timestamp, headers, _ in rows:
        key = key.decode()
        order = orjson.loads(value)
        if order["quantity"] > 4:
            made = {"sku": order["sku"], "double": order["quantity"] * 2}
            out.append(("big", key.encode(), orjson.dumps(made), timestamp, headers))
    return len(out)


# ------------------------------------------------------------------------------------------------- count by key
def keyed(count: int) -> list[Row]:
    chance = random.Random(2)
    return [("in", 0, i, b"key-%d" % chance.randrange(100_000), b"x", i, (), i) for i in range(count)]


def count_by_key() -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream("in", key=serde.STRING, value=serde.STRING).group_by_key()
    grouped.count(store="counts").to_stream().to("out", key=serde.STRING, value=serde.LONG)
    return builder.build()


def count_by_hand(rows: list[Row]) -> int:
    counts: dict[str, int] = {}
    out = []
    for start in range(0, len(rows), BATCH):
        changed: dict[str, int] = {}
        for _, _, _, key, value, timestamp, _, _ in rows[start : start + BATCH]:
            key, value = key.decode(), value.decode()
            counts[key] = counts.get(key, 0) + 1
            changed[key] = timestamp
        for key, timestamp in changed.items():
            out.append(("out", key.encode(), counts[key].to_bytes(8, "big"), timestamp, ()))
    return len(out)


# ------------------------------------------------------------------------------------------- hopping statistics
class Trade(msgspec.Struct, frozen=True):
    ticker: str
    ask: float


class Stats(msgspec.Struct, frozen=True):
    count: int
    total: float
    low: float


def trades(count: int) -> list[Row]:
    chance = random.Random(3)
    encode = msgspec.json.encode
    names = [f"T{i}" for i in range(1000)]
    rows = []
    for i in range(count):
        ticker = chance.choice(names)
        rows.append(("trades", 0, i, ticker.encode(), encode(Trade(ticker, chance.randrange(1000) / 10)), i, (), i))
    return rows


def add_trade(_: str, trade: Trade, stats: Stats) -> Stats:
    return Stats(stats.count + 1, stats.total + trade.ask, min(stats.low, trade.ask))


def hopping() -> Topology:
    builder = StreamsBuilder()
    (
        builder.stream("trades", key=serde.STRING, value=serde.json_of(Trade))
        .group_by_key()
        .windowed_by(TimeWindows.of(5000, advance=1000))
        .aggregate(lambda: Stats(0, 0.0, 1e9), add_trade, store="stats", value=serde.json_of(Stats))
        .to_stream()
        .to("stats-out", key=serde.windowed(serde.STRING, 5000), value=serde.json_of(Stats))
    )
    return builder.build()


def hopping_by_hand(rows: list[Row]) -> int:
    decode, encode = msgspec.json.Decoder(Trade).decode, msgspec.json.encode
    windows: dict[tuple[str, int], Stats] = {}
    out = []
    for start in range(0, len(rows), BATCH):
        changed: dict[tuple[str, int], int] = {}
        for _, _, _, key, value, timestamp, _, _ in rows[start : start + BATCH]:
            key, trade = key.decode(), decode(value)
            first = max(0, timestamp - 5000 + 1000) // 1000 * 1000
            for begin in range(first, timestamp + 1, 1000):
                place = (key, begin)
                windows[place] = add_trade(key, trade, windows.get(place) or Stats(0, 0.0, 1e9))
                changed[place] = timestamp
        for place, timestamp in changed.items():
            key = place[0].encode() + place[1].to_bytes(8, "big")
            out.append(("stats-out", key, encode(windows[place]), timestamp, ()))
    return len(out)


# --------------------------------------------------------------------------------------------- stream-table join
def views(count: int) -> list[Row]:
    chance = random.Random(4)
    users = 10_000
    rows: list[Row] = [
        ("users", 0, i, b"u%d" % i, orjson.dumps({"name": f"n{i}", "age": i % 90}), 0, (), i) for i in range(users)
    ]
    for i in range(users, count):
        value = orjson.dumps({"page": f"/p/{chance.randrange(1000)}"})
        rows.append(("views", 0, i, b"u%d" % chance.randrange(users), value, i, (), i))
    return rows


def with_user(view: dict[str, Any], user: dict[str, Any]) -> dict[str, Any]:
    return {"page": view["page"], "age": user["age"]}


def stream_table() -> Topology:
    builder = StreamsBuilder()
    users = builder.table("users", key=serde.STRING, value=serde.JSON, store="users")
    joined = builder.stream("views", key=serde.STRING, value=serde.JSON).join(users, with_user)
    joined.to("enriched", key=serde.STRING, value=serde.JSON)
    return builder.build()


def stream_table_by_hand(rows: list[Row]) -> int:
    users: dict[str, Any] = {}
    out = []
    for topic, _, _, key, value, timestamp, headers, _ in rows:
        key = key.decode()
        value = orjson.loads(value)
        if topic == "users":
            users[key] = value
        elif key in users:
            out.append(("enriched", key.encode(), orjson.dumps(with_user(value, users[key])), timestamp, headers))
    return len(out)


# -------------------------------------------------------------------------------------------- stream-stream join
def searches_and_clicks(count: int) -> list[Row]:
    chance = random.Random(5)
    rows = []
    for i in range(count):
        topic = "searches" if i % 2 else "clicks"
        value = orjson.dumps({"q" if i % 2 else "url": f"v{i}"})
        rows.append((topic, 0, i, b"u%d" % chance.randrange(5000), value, i, (), i))
    return rows


def both(click: dict[str, Any], search: dict[str, Any]) -> dict[str, Any]:
    return {"url": click["url"], "q": search["q"]}


def stream_stream() -> Topology:
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=serde.STRING, value=serde.JSON)
    searches = builder.stream("searches", key=serde.STRING, value=serde.JSON)
    clicks.join(searches, both, windows=JoinWindows.of(5000)).to("joined", key=serde.STRING, value=serde.JSON)
    return builder.build()


def stream_stream_by_hand(rows: list[Row]) -> int:
    sides: tuple[dict[str, list[Any]], dict[str, list[Any]]] = ({}, {})
    out = []
    for topic, _, _, key, value, timestamp, headers, _ in rows:
        key = key.decode()
        value = orjson.loads(value)
        left = topic == "clicks"
        mine, others = sides if left else sides[::-1]
        kept = [(t, v) for t, v in others.get(key, ()) if t >= timestamp - 5000]
        for at, other in kept:
            made = both(value, other) if left else both(other, value)
            out.append(("joined", key.encode(), orjson.dumps(made), max(at, timestamp), headers))
        if kept:
            others[key] = kept
        mine.setdefault(key, []).append((timestamp, value))
    return len(out)


WORKLOADS = [
    Workload("filter + map on JSON", 0.50, order_filter, orders, order_filter_by_hand),
    Workload("count by key (100 k keys)", 0.25, count_by_key, keyed, count_by_hand),
    Workload("hopping statistics 5 s / 1 s", 0.30, hopping, trades, hopping_by_hand),
    Workload("stream-table join", 0.25, stream_table, views, stream_table_by_hand),
    Workload("stream-stream join within 5 s", 0.20, stream_stream, searches_and_clicks, stream_stream_by_hand),
]


def batches(rows: list[Row]) -> Iterator[list[Row]]:
    for start in range(0, len(rows), BATCH):
        yield rows[start : start + BATCH]


def run_headrace(workload: Workload, rows: list[Row], directory: Path) -> tuple[float, int]:
    graph = workload.topology().graph()
    config = Config.of({"application.id": "bench", "emit.interval.ms": 0})
    task = Task(TaskId(0, 0), graph, list(graph.nodes), LmdbEngine(directory), TaskEnvironment(config, {}), clock=0)
    produced, started = 0, time.process_time()
    for number, batch in enumerate(batches(rows), 1):
        inputs = Inputs(received=batch_rows(batch))
        produced += len(task.run(inputs, clock=number, version=Version(number, "bench")).outputs)
    elapsed = time.process_time() - started
    task.close()
    return elapsed, produced


def measure(workload: Workload, count: int) -> dict[str, Any]:
    rows = workload.rows(count)
    # As a long-running worker does: what is there to stay is not looked at by every collection, for either side.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    best_ours, best_loop, produced, by_hand = 1e9, 1e9, 0, 0
    for _ in range(3):
        started = time.process_time()
        by_hand = workload.by_hand(rows)
        best_loop = min(best_loop, time.process_time() - started)
        with tempfile.TemporaryDirectory() as directory:
            elapsed, produced = run_headrace(workload, rows, Path(directory))
        best_ours = min(best_ours, elapsed)
    if produced != by_hand:
        raise SystemExit(f"{workload.name}: Headrace gave {produced} records, the loop {by_hand}")
    ours, loop = len(rows) / best_ours, len(rows) / best_loop
    return {"workload": workload.name, "headrace": ours, "loop": loop, "ratio": ours / loop, "goal": workload.goal}


def main() -> None:
    parser = argparse.ArgumentParser(description="Records per second of one core, beside a plain Python loop.")
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    console = Console(stderr=options.json)
    results = [measure(w, options.records) for w in track(WORKLOADS, "Measuring", console=console, transient=True)]
    if options.json:
        print(json.dumps(results))
        return
    table = Table(
        "workload", "Headrace records/s", "loop records/s", "share", "goal", title=f"One core, batches of {BATCH:,}"
    )
    for r in results:
        colour = "green" if r["ratio"] >= r["goal"] else "red"
        share = f"[{colour}]{r['ratio']:.0%}[/]"
        table.add_row(r["workload"], f"{r['headrace']:,.0f}", f"{r['loop']:,.0f}", share, f"{r['goal']:.0%}")
    console.print(table)
    if options == parser.parse_args([]):
        write_tables("core", "One core", table)


if __name__ == "__main__":
    main()
