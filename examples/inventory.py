"""Inventory: an order is good if what is in the warehouse, less what is reserved already, is enough for it.

The warehouse is a table. A processor keeps, beside it, what has been reserved of each product; it answers each order
with a reservation or a rejection, and reserves in the same step, so that no piece is promised twice. The stores
`warehouse` and `reserved` can be queried at any time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from examples.events import START, Event, Topics
from headrace import ProcessorContext, Record, Stores, StreamsBuilder, Topology, serde

APPLICATION = "inventory"
ORDERS, WAREHOUSE, VALIDATIONS = "orders", "warehouse-inventory", "order-validations"


@dataclass(frozen=True)
class Order:
    id: str
    product: str
    quantity: int


@dataclass(frozen=True)
class OrderAndStock:
    order: Order
    stock: int


@dataclass(frozen=True)
class Validation:
    result: str  # reserved or rejected
    product: str
    quantity: int


ORDER = serde.json_of(Order)
VALIDATION = serde.json_of(Validation)
TOPICS: Topics = {ORDERS: (serde.STRING, ORDER), WAREHOUSE: (serde.STRING, serde.LONG)}
OUTPUTS: Topics = {VALIDATIONS: (serde.STRING, VALIDATION)}


def product_of(order: Order) -> str:
    return order.product


def with_stock(order: Order, stock: int | None) -> OrderAndStock:
    return OrderAndStock(order, stock or 0)


class Reserve:
    """Answers orders, one product after the other."""

    def init(self, context: ProcessorContext) -> None:
        self.context, self.reserved = context, context.store("reserved")

    def process(self, record: Record) -> None:
        order, stock = record.value.order, record.value.stock
        reserved = self.reserved.get(order.product) or 0
        enough = reserved + order.quantity <= stock
        if enough:
            self.reserved.put(order.product, reserved + order.quantity)
        answer = Validation("reserved" if enough else "rejected", order.product, order.quantity)
        self.context.forward(record.with_key(order.id).with_value(answer))


def build() -> Topology:
    builder = StreamsBuilder()
    builder.add_store(Stores.key_value("reserved", key=serde.STRING, value=serde.LONG))
    warehouse = builder.table(WAREHOUSE, key=serde.STRING, value=serde.LONG, store="warehouse")
    (
        builder.stream(ORDERS, key=serde.STRING, value=ORDER)
        .select_key(product_of)
        .left_join(warehouse, with_stock, key=serde.STRING, value=ORDER)
        .process(Reserve, "reserved")
        .to(VALIDATIONS, key=serde.STRING, value=VALIDATION)
    )
    return builder.build()


PRODUCTS = ("lamp", "desk", "chair", "shelf", "bulb")


def events(random: Random) -> Iterator[Event]:
    """Orders, and now and then a delivery to the warehouse; the topic says how many pieces ever came."""
    now, number, stock = START, 0, dict.fromkeys(PRODUCTS, 0)
    while True:
        product = random.choice(PRODUCTS)
        if random.random() < 0.1:
            stock[product] += random.randint(5, 40)
            yield Event(WAREHOUSE, product, stock[product], now)
        else:
            order = Order(f"order-{number}", product, random.randint(1, 5))
            yield Event(ORDERS, order.id, order, now)
            number += 1
        now += random.randint(1, 100)
