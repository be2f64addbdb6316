"""Mistakes in streams, tables and joins that pyright flags."""

from __future__ import annotations

from dataclasses import dataclass

from headrace import JoinWindows, KStream, KTable, Materialized, Processor, Record, StreamsBuilder, TimeWindows, serde


@dataclass
class Order:
    customer: str | None
    product: str
    amount: float


class Lengths(Processor[str, str, str, int]):
    def process(self, record: Record[str, str]) -> None: ...


builder = StreamsBuilder()
orders = builder.stream("orders", key=serde.STRING, value=serde.json_of(Order))
payments = builder.stream("payments", key=serde.STRING, value=serde.DOUBLE)
by_number = builder.stream("by-number", key=serde.LONG, value=serde.DOUBLE)
customers = builder.table("customers", key=serde.STRING, value=serde.STRING)
invoices = builder.table("invoices", key=serde.LONG, value=serde.json_of(Order))
products = builder.global_table("products", key=serde.STRING, value=serde.LONG)
WINDOWS = JoinWindows.of(60_000)

# names and options
orders.mapValues(lambda order: order.amount)  # error: Cannot access attribute "mapValues"
orders.map_values(lambda order: order.amuont)  # error: Cannot access attribute "amuont"
orders.map_values(lambda key, order: key.amount)  # error: Cannot access attribute "amount"
orders.filter(lambda order: order.amount > 1, named="big")  # error: No overloads for "filter"
invoices.join(customers, lambda a, b: a, foreign_key=lambda order: order.customer)  # error: No overloads for "join"
orders.group_by_key().count("counts")  # error: Expected 0 positional arguments
orders.to("t", serde.STRING, serde.LONG)  # error: No overloads for "to"
builder.build(optimise=True)  # error: No parameter named "optimise"

# functions
orders.map_values(lambda: 1)  # error: No overloads for "map_values"
orders.map_values(lambda key, order, context: 1)  # error: No overloads for "map_values"
orders.map(lambda key, order: order.amount)  # error: No overloads for "map"
orders.flat_map_values(lambda order: order.amount)  # error: No overloads for "flat_map_values"
orders.group_by_key().reduce(lambda a, b: a.amount + b.amount)  # error: Argument of type
orders.group_by_key().aggregate(lambda: 0, lambda key, order, count: str(count))  # error: Argument of type
payments.group_by_key().aggregate(lambda: 0.0, lambda payment, total: total + payment)  # error: Argument of type

# serdes
builder.stream("t", value=str)  # error: Argument of type "type[str]"
builder.stream("t", value="string")  # error: Argument of type
orders.map_values(lambda order: order.amount).to("amounts", value=serde.STRING)  # error: No overloads for "to"
orders.group_by_key(key=serde.LONG)  # error: Argument of type "Serde[int]"
orders.group_by(lambda order: order.amount, key=serde.STRING)  # error: No overloads for "group_by"
orders.group_by_key().count(store=Materialized("counts", value=serde.STRING))  # error: Argument of type
orders.to_table(store=Materialized("orders", value=serde.LONG))  # error: Argument of type

# joins
orders.join(payments, lambda order, payment: payment)  # error: No overloads for "join"
orders.join(payments, lambda order, payment: payment, WINDOWS)  # error: No overloads for "join"
orders.join(by_number, lambda order, payment: payment, windows=WINDOWS)  # error: No overloads for "join"
orders.join(payments, lambda order, payment: payment.amount, windows=WINDOWS)  # error: Cannot access attribute "amount"
orders.join(payments, lambda order, payment: payment, windows=TimeWindows.of(5))  # error: No overloads for "join"
orders.join(customers, lambda order, name: name, windows=WINDOWS)  # error: No overloads for "join"
orders.left_join(customers, lambda order, name: name.upper())  # error: "upper" is not a known attribute of "None"
orders.outer_join(payments, lambda order, payment: order.amount, windows=WINDOWS)  # error: "amount" is not a known
orders.outer_join(customers, lambda order, name: name, windows=WINDOWS)  # error: No overloads for "outer_join"
orders.join(products, lambda order, price: price)  # error: No overloads for "join"
orders.join(products, lambda order, price: price, on=lambda order: order.amount)  # error: No overloads for "join"
invoices.join(customers, lambda order, name: name)  # error: "KTable[str, str]" is not assignable to "KTable[int, str]"
invoices.join(customers, lambda order, name: name, on=lambda order: order.amount)  # error: No overloads for "join"
invoices.outer_join(customers, lambda a, b: a, on=lambda order: order.customer)  # error: No parameter named "on"

# results
wrong_key: KStream[int, Order] = orders.filter(lambda order: order.amount > 1)  # error: is not assignable
wrong_value: KTable[str, str] = orders.group_by_key().count()  # error: is not assignable
windowed: KTable[str, int] = orders.group_by_key().windowed_by(TimeWindows.of(5)).count()  # error: is not assignable
orders.process(Lengths)  # error: No overloads for "process"
