"""Order filter: only the orders of more than five pieces go on."""

from collections.abc import Iterator
from random import Random

from msgspec import Struct

from examples.events import START, Event, Topics
from headrace import StreamsBuilder, Topology, serde

APPLICATION = "order-filter-example"
ORDERS, FILTERED = "orders", "filtered-orders"
MINIMUM = 5


class Order(Struct, frozen=True):
    product: str
    quantity: int
    customer: str


ORDER = serde.json_of(Order)
TOPICS: Topics = {ORDERS: (serde.STRING, ORDER)}
OUTPUTS: Topics = {FILTERED: (serde.STRING, ORDER)}


def is_large(order: Order) -> bool:
    return order.quantity > MINIMUM


def build() -> Topology:
    builder = StreamsBuilder()
    orders = builder.stream(ORDERS, key=serde.STRING, value=ORDER)
    orders.filter(is_large).to(FILTERED, key=serde.STRING, value=ORDER)
    return builder.build()


PRODUCTS = ("lamp", "desk", "chair", "shelf", "bulb")


def events(random: Random) -> Iterator[Event]:
    """Orders of one to ten pieces, some 50 ms apart, under the number of the order."""
    now, number = START, 0
    while True:
        order = Order(random.choice(PRODUCTS), random.randint(1, 10), f"customer-{random.randint(1, 20)}")
        yield Event(ORDERS, f"order-{number}", order, now)
        now, number = now + random.randint(1, 100), number + 1
