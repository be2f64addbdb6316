"""Types of tables and of all kinds of joins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from headrace import (
    Buffer,
    JoinWindows,
    KStream,
    KTable,
    Materialized,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Windowed,
    serde,
)


@dataclass
class Order:
    customer: str | None
    product: str
    amount: float


@dataclass
class Customer:
    name: str
    town: str


builder = StreamsBuilder()
orders = builder.stream("orders", key=serde.STRING, value=serde.json_of(Order))
payments = builder.stream("payments", key=serde.STRING, value=serde.DOUBLE)
order_table = builder.table("order-table", key=serde.LONG, value=serde.json_of(Order))
shipments = builder.table("shipments", key=serde.LONG, value=serde.STRING)
customers = builder.table(
    "customers", key=serde.STRING, value=serde.json_of(Customer), store=Materialized("c", history=500)
)
products = builder.global_table("products", key=serde.STRING, value=serde.LONG)
WINDOWS = JoinWindows.of(60_000)

# ------------------------------------------------------------------------------------------------------------- tables
assert_type(customers.filter(lambda customer: customer.town == "Paris", store="parisians"), KTable[str, Customer])
assert_type(customers.filter_not(lambda key, customer: customer.name == key), KTable[str, Customer])
assert_type(customers.map_values(lambda customer: customer.town), KTable[str, str])
assert_type(order_table.map_values(lambda key, order: order.customer), KTable[int, str])  # None deletes the row
assert_type(order_table.map_values(lambda o: o.amount, store=Materialized("m", value=serde.DOUBLE)), KTable[int, float])
assert_type(customers.to_stream(), KStream[str, Customer])
assert_type(customers.to_stream(lambda customer: customer.town), KStream[str, Customer])
assert_type(order_table.to_stream(lambda key, order: order.product), KStream[str, Order])
counts = orders.group_by_key().windowed_by(TimeWindows.of(5)).count()
assert_type(counts.suppress(Suppressed.until_window_closes(Buffer.unbounded())), KTable[Windowed[str], int])


class Town:
    def transform(self, key: str, customer: Customer) -> str:
        return customer.town


assert_type(customers.transform_values(Town), KTable[str, str])
assert_type(customers.queryable_store_name, str | None)


# ------------------------------------------------------------------------------------------------ stream with stream
def paid(order: Order, payment: float) -> bool:
    return payment >= order.amount


def paid_by(key: str, order: Order, payment: float | None) -> str | None:
    return key if payment else None


def either(order: Order | None, payment: float | None) -> float:
    return payment or (order.amount if order else 0)


assert_type(orders.join(payments, paid, windows=WINDOWS), KStream[str, bool])
assert_type(orders.join(payments, lambda o, p: (o.product, p), windows=WINDOWS), KStream[str, tuple[str, float]])
assert_type(orders.join(payments, lambda k, o, p: (k, p), windows=WINDOWS), KStream[str, tuple[str, float]])
assert_type(orders.left_join(payments, lambda o, p: p, windows=WINDOWS), KStream[str, float | None])
assert_type(orders.left_join(payments, paid_by, windows=WINDOWS), KStream[str, str | None])
assert_type(orders.outer_join(payments, either, windows=WINDOWS, store="both"), KStream[str, float])
assert_type(
    orders.outer_join(payments, lambda k, o, p: (o, p), windows=WINDOWS),
    KStream[str, tuple[Order | None, float | None]],
)
orders.join(payments, paid, windows=WINDOWS, key=serde.STRING, value=serde.json_of(Order), other_value=serde.DOUBLE)

# ------------------------------------------------------------------------------------------------- stream with table
assert_type(
    orders.join(customers, lambda order, customer: (order.amount, customer.town)), KStream[str, tuple[float, str]]
)
assert_type(orders.join(customers, lambda key, order, customer: customer, grace=100), KStream[str, Customer])
assert_type(orders.left_join(customers, lambda order, customer: customer), KStream[str, Customer | None])
assert_type(
    orders.left_join(customers, lambda key, order, customer: customer and customer.town), KStream[str, str | None]
)

# ------------------------------------------------------------------------------------------ stream with global table
assert_type(orders.join(products, lambda order, price: price, on=lambda order: order.product), KStream[str, int])
assert_type(orders.join(products, lambda k, order, price: price, on=lambda key, order: key), KStream[str, int])
assert_type(orders.left_join(products, lambda order, price: price, on=lambda o: o.customer), KStream[str, int | None])
assert_type(orders.left_join(products, lambda k, o, price: k, on=lambda key, o: o.customer), KStream[str, str])

# -------------------------------------------------------------------------------------------------- table with table
assert_type(order_table.join(shipments, lambda order, shipment: order.product + shipment), KTable[int, str])
assert_type(
    order_table.left_join(shipments, lambda order, shipment: (order.amount, shipment)),
    KTable[int, tuple[float, str | None]],
)
assert_type(
    order_table.outer_join(shipments, lambda order, shipment: (order, shipment)),
    KTable[int, tuple[Order | None, str | None]],
)

# -------------------------------------------------------------------------------------------------------- foreign key
assert_type(
    order_table.join(customers, lambda order, customer: customer.town, on=lambda order: order.customer),
    KTable[int, str],
)
assert_type(
    order_table.join(customers, lambda order, customer: order, on=lambda key, order: order.customer), KTable[int, Order]
)
assert_type(
    order_table.left_join(customers, lambda order, customer: (order, customer), on=lambda order: order.customer),
    KTable[int, tuple[Order, Customer | None]],
)

# -------------------------------------------------------------------------------------------------- without any types
raw: KStream = builder.stream("raw")
assert_type(raw.join(customers, lambda value, customer: customer.town), KStream[Any, str])
assert_type(raw.join(raw, lambda left, right: 1, windows=WINDOWS), KStream[Any, int])
assert_type(raw.group_by_key().count(), KTable[Any, int])
