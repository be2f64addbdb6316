"""Types of streams, groups and aggregates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

from headrace import (
    BranchedKStream,
    CogroupedKStream,
    GlobalKTable,
    KGroupedStream,
    KGroupedTable,
    KStream,
    KTable,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    Windowed,
    WindowedCogroupedKStream,
    WindowedKStream,
    serde,
)


@dataclass
class Order:
    customer: str | None
    product: str
    amount: float


builder = StreamsBuilder()
orders = builder.stream("orders", key=serde.STRING, value=serde.json_of(Order))
lines = builder.stream("lines", value=serde.STRING)
numbers = builder.stream("numbers", key=serde.STRING, value=serde.LONG)

# ------------------------------------------------------------------------------------------------------------ sources
assert_type(orders, KStream[str, Order])
assert_type(lines, KStream[Any, str])
assert_type(builder.stream("raw"), KStream[Any, Any])
assert_type(builder.stream(["a", "b"], key=serde.LONG), KStream[int, Any])
assert_type(builder.stream(pattern="orders-.*", value=serde.DOUBLE), KStream[Any, float])
assert_type(builder.table("prices", key=serde.STRING, value=serde.LONG), KTable[str, int])
assert_type(builder.table("stock", store=Materialized("stock", key=serde.STRING, value=serde.LONG)), KTable[str, int])
assert_type(builder.global_table("names", key=serde.LONG, value=serde.STRING), GlobalKTable[int, str])

# --------------------------------------------------------------------------------------------------- record by record
assert_type(orders.filter(lambda order: order.amount > 100), KStream[str, Order])
assert_type(orders.filter_not(lambda key, order: order.product == key), KStream[str, Order])
assert_type(orders.map_values(lambda order: order.amount), KStream[str, float])
assert_type(orders.map_values(lambda key, order: (key, order.amount)), KStream[str, tuple[str, float]])
assert_type(lines.map_values(len), KStream[Any, int])
assert_type(lines.map_values(str.upper), KStream[Any, str])
assert_type(orders.map(lambda key, order: (order.product, 1)), KStream[str, int])
assert_type(orders.map(lambda order: (order.customer, order.amount)), KStream[str | None, float])
assert_type(lines.flat_map(lambda line: [(word, 1) for word in line.split()]), KStream[str, int])
assert_type(lines.flat_map_values(lambda line: line.split()), KStream[Any, str])
assert_type(orders.select_key(lambda order: order.amount), KStream[float, Order])
assert_type(orders.peek(lambda key, order: (key, order.amount)), KStream[str, Order])
assert_type(orders.merge(numbers), KStream[str, Order | int])
assert_type(orders.merge(orders), KStream[str, Order])
assert_type(orders.repartition(partitions=4, key=serde.STRING), KStream[str, Order])


def words(line: str) -> Iterator[tuple[str, int]]:
    for word in line.split():
        yield word, len(word)


def length_of(key: str, order: Order, unit: int = 1) -> int:
    return len(order.product) // unit


assert_type(lines.flat_map(words), KStream[str, int])
assert_type(orders.map_values(length_of), KStream[str, int])

assert_type(orders.split(), BranchedKStream[str, Order])
branches = orders.split().branch(lambda order: order.amount > 9).branch(lambda key, order: bool(key)).default_branch()
assert_type(branches, dict[str, KStream[str, Order]])
orders.split().branch(lambda order: order.amount > 9, then=lambda big: big.to("big")).no_default_branch()

# -------------------------------------------------------------------------------------------------------------- sinks
orders.to("copy", key=serde.STRING, value=serde.json_of(Order))
orders.to(lambda key, order, context: order.product)
orders.to(lambda key, order: order.product)
numbers.to("as-doubles", value=serde.DOUBLE)  # DOUBLE can write an int
maybe = orders.map_values(lambda order: len(order.customer) if order.customer else None)
assert_type(maybe, KStream[str, int | None])
maybe.to("lengths", value=serde.LONG)  # None has no bytes, whatever the serde
assert_type(maybe.to_table(store=Materialized("kept", value=serde.LONG)), KTable[str, int])

# ------------------------------------------------------------------------------------------------------------- groups
assert_type(orders.group_by_key(), KGroupedStream[str, Order])
assert_type(maybe.group_by_key(value=serde.LONG), KGroupedStream[str, int])  # without the records that have no value
assert_type(orders.group_by(lambda order: order.customer, key=serde.STRING), KGroupedStream[str, Order])
assert_type(lines.group_by(lambda key, line: line), KGroupedStream[str, str])

by_key, numbers_by_key = orders.group_by_key(), numbers.group_by_key()
assert_type(by_key.count(), KTable[str, int])
assert_type(by_key.count(store="counts", value=serde.INTEGER), KTable[str, int])
assert_type(numbers_by_key.reduce(max), KTable[str, int])
assert_type(by_key.reduce(lambda a, b: a if a.amount > b.amount else b), KTable[str, Order])
assert_type(by_key.aggregate(lambda: 0.0, lambda k, o, t: t + o.amount, value=serde.DOUBLE), KTable[str, float])
assert_type(by_key.aggregate(list[str], lambda key, order, found: [*found, order.product]), KTable[str, list[str]])

# ------------------------------------------------------------------------------------------------------------ windows
minutes = by_key.windowed_by(TimeWindows.of(timedelta(minutes=1)))
assert_type(minutes, WindowedKStream[str, Order])
assert_type(minutes.count(), KTable[Windowed[str], int])
assert_type(by_key.windowed_by(SlidingWindows.of(5)).count(store="near"), KTable[Windowed[str], int])
assert_type(numbers_by_key.windowed_by(TimeWindows.of(5)).reduce(lambda a, b: a + b), KTable[Windowed[str], int])
assert_type(
    by_key.windowed_by(SessionWindows.of(5)).aggregate(
        lambda: 0.0, lambda key, order, total: total + order.amount, merger=lambda key, left, right: left + right
    ),
    KTable[Windowed[str], float],
)
assert_type(minutes.count().to_stream(), KStream[Windowed[str], int])
assert_type(minutes.count().to_stream(lambda key, count: key.window.start), KStream[int, int])
minutes.count().to_stream().to("counts", key=serde.windowed(serde.STRING, 60_000), value=serde.LONG)


# ----------------------------------------------------------------------------------------------------------- cogroups
def add_order(key: str, order: Order, total: float) -> float:
    return total + order.amount


def add_number(key: str, number: int, total: float) -> float:
    return total + number


both = by_key.cogroup(add_order).cogroup(numbers_by_key, add_number)
assert_type(both, CogroupedKStream[str, float])
assert_type(both.aggregate(lambda: 0.0, value=serde.DOUBLE), KTable[str, float])
assert_type(both.windowed_by(TimeWindows.of(5)), WindowedCogroupedKStream[str, float])
assert_type(both.windowed_by(TimeWindows.of(5)).aggregate(lambda: 0.0), KTable[Windowed[str], float])

# ---------------------------------------------------------------------------------------------------- grouped tables
table = orders.to_table()
by_product = table.group_by(lambda key, order: (order.product, order.amount), key=serde.STRING, value=serde.DOUBLE)
assert_type(by_product, KGroupedTable[str, float])
assert_type(by_product.count(), KTable[str, int])
assert_type(by_product.reduce(lambda a, b: a + b, lambda a, b: a - b), KTable[str, float])
assert_type(by_product.aggregate(lambda: 0, lambda k, v, n: n + 1, lambda k, v, n: n - 1), KTable[str, int])
