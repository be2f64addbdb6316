"""What does enrichment cost? Records per second by calls of a service that answers after 10 ms, and by a join.

    python -m benchmarks.lookup [--records 5000] [--redis redis://127.0.0.1:6379] [--json]

Orders get the name of their customer, of whom there are 200, in four ways: a call for each record, one after the other
(`map_values`); many calls at a time (`map_values_async`); the same with a cache; a join with a table that is kept up to
date by change capture. Each runs in one task, as on Spark, in batches of 1,000 records. The first way gets a twentieth
of the records. "Age" is how old the customer may be that an order gets.

With the address of a Redis server, orders are counted by customer, too: in a local store, and in Redis as remote state.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Callable
from typing import Any

import redis
from rich.console import Console
from rich.progress import track
from rich.table import Table

from headrace import StreamsBuilder, serde
from headrace.config import Config
from headrace.log.protocol import Records
from headrace.model.ids import TaskId, TopicPartition
from headrace.runtime.rows import Input, Inputs, PartitionBatch
from headrace.runtime.task import Task, TaskEnvironment
from headrace.state.engine import Version
from headrace.state.lmdb import LmdbEngine

ANSWER = 0.01  # seconds
CUSTOMERS, BATCH, CAPACITY = 200, 1000, 100
NAMES = {f"c{number}": f"customer {number}" for number in range(CUSTOMERS)}
Order = dict[str, Any]


def find_name(customer: str) -> str:
    time.sleep(ANSWER)
    return NAMES[customer]


async def find_name_async(customer: str) -> str:
    await asyncio.sleep(ANSWER)
    return NAMES[customer]


def add_name(order: Order, name: str) -> Order:
    return {**order, "name": name}


def one_by_one(builder: StreamsBuilder) -> Any:
    return orders(builder).map_values(lambda order: add_name(order, find_name(order["customer"])))


def at_once(builder: StreamsBuilder) -> Any:
    """Every record is a call: the orders differ, so that none is shared."""

    async def enrich(order: str) -> Order:
        found: Order = json.loads(order)
        return add_name(found, await find_name_async(found["customer"]))

    return orders(builder).map_values(json.dumps).map_values_async(enrich, capacity=CAPACITY)


def with_cache(builder: StreamsBuilder) -> Any:
    return orders(builder).map_values_async(
        find_name_async, on=lambda order: order["customer"], joiner=add_name, capacity=CAPACITY, cache=60_000
    )


def by_join(builder: StreamsBuilder) -> Any:
    customers = builder.table("customers", key=serde.STRING, value=serde.STRING, store="customers")
    return orders(builder).join(customers, add_name)


def orders(builder: StreamsBuilder) -> Any:
    return builder.stream("orders", key=serde.STRING, value=serde.JSON)


def batch_of(topic: str, rows: list[tuple[str, bytes]]) -> PartitionBatch:
    keys = [key.encode() for key, _ in rows]
    return PartitionBatch(
        TopicPartition(topic, 0), range(len(rows)), Records(keys, [v for _, v in rows], [0] * len(rows))
    )


def measure(enrich: Callable[[StreamsBuilder], Any], count: int) -> float:
    """Records a second. Every record has a result: tables let out each update."""
    builder, chance = StreamsBuilder(), random.Random(1)
    enrich(builder).to("named", key=serde.STRING, value=serde.JSON)
    graph = builder.build().graph()
    chosen = [f"c{chance.randrange(CUSTOMERS)}" for _ in range(count)]
    rows = [(customer, serde.JSON.encode({"customer": customer, "number": n})) for n, customer in enumerate(chosen)]
    batches = [batch_of("orders", rows[start : start + BATCH]) for start in range(0, count, BATCH)]
    if enrich is by_join:
        batches.insert(0, batch_of("customers", [(key, name.encode()) for key, name in NAMES.items()]))
    with tempfile.TemporaryDirectory() as folder:
        around = TaskEnvironment(Config.of({"application.id": "lookup", "statestore.cache.max.bytes": 0}), {})
        task = Task(TaskId(0, 0), graph, list(graph.nodes), LmdbEngine(folder), around, clock=0)
        outputs, begin = 0, time.perf_counter()
        for number, batch in enumerate(batches):
            inputs = Inputs({batch.at: Input([batch], len(batch))})
            outputs += len(task.run(inputs, clock=number, version=Version(number + 1, "a")).outputs)
        taken = time.perf_counter() - begin
        task.close()
    if outputs != count:
        raise AssertionError(f"{enrich.__name__}: {outputs} results of {count} orders")
    return count / taken


# -------------------------------------------------------------------------------------------- local and remote state
def count_locally(builder: StreamsBuilder, _server: Any) -> Any:
    return orders(builder).group_by_key().aggregate(lambda: 0, lambda key, order, count: count + 1).to_stream()


def count_remotely(builder: StreamsBuilder, server: Any) -> Any:
    return orders(builder).map_values(lambda key, order: server.incr(key))


def count_remotely_in_batches(builder: StreamsBuilder, server: Any) -> Any:
    def count(found: list[Order]) -> list[int]:
        pipeline = server.pipeline(transaction=False)
        for order in found:
            pipeline.incr(order["customer"])
        return pipeline.execute()

    return orders(builder).map_values_batch(count, max_records=BATCH)


STATES: list[tuple[str, Callable[[StreamsBuilder, Any], Any], str]] = [
    ("local store, LMDB", count_locally, "exactly once"),
    ("Redis, a call for each record", count_remotely, "a batch that is repeated is counted again"),
    ("Redis, 1,000 records in a call", count_remotely_in_batches, "a batch that is repeated is counted again"),
]


def measure_states(url: str, count: int) -> list[dict[str, Any]]:
    server: Any = redis.Redis.from_url(url)
    rows: list[dict[str, Any]] = []
    for name, build, result in STATES:
        server.flushdb()
        speed = measure(lambda builder, build=build: build(builder, server), count)
        rows.append({"state": name, "records_a_second": round(speed), "result": result})
    server.close()
    return rows


WAYS: list[tuple[str, Callable[[StreamsBuilder], Any], float, str]] = [
    ("map_values, one call after the other", one_by_one, 0.05, "none"),
    (f"map_values_async, {CAPACITY} calls at a time", at_once, 1, "none"),
    ("map_values_async with a cache", with_cache, 1, "that of the cache, 60 s"),
    ("join with a table", by_join, 1, "none: as of the order's time"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=5_000)
    parser.add_argument("--redis", help="the address of a server whose database may be emptied")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [
        {"way": name, "records_a_second": round(measure(enrich, max(1, int(options.records * share)))), "age": age}
        for name, enrich, share, age in track(WAYS, "lookups", console=Console(stderr=True), transient=True)
    ]
    states = measure_states(options.redis, options.records) if options.redis else []
    if options.json:
        print(json.dumps([*rows, *states]))
        return
    for title, found in (("enrichment", rows), ("state", states)):
        table = Table(title, "records/s", "age" if found is rows else "result")
        for name, speed, remark in (row.values() for row in found):
            table.add_row(name, f"{speed:,}", remark)
        if found:
            Console().print(table)


if __name__ == "__main__":
    main()
