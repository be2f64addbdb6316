"""Order enrichment: each order gets its customer from another service, and a risk from a model, many at a time."""

import asyncio
from collections.abc import Iterator
from random import Random

from msgspec import Struct

from examples.events import START, Event, Topics
from headrace import StreamsBuilder, Topology, serde

APPLICATION = "order-enrichment"
ORDERS, ENRICHED = "orders", "enriched-orders"


class Order(Struct, frozen=True):
    customer: int
    amount: float


class Customer(Struct, frozen=True):
    name: str
    country: str


class EnrichedOrder(Struct, frozen=True):
    order: Order
    customer: Customer
    risk: float = 0.0


ORDER, ENRICHED_ORDER = serde.json_of(Order), serde.json_of(EnrichedOrder)
TOPICS: Topics = {ORDERS: (serde.STRING, ORDER)}
OUTPUTS: Topics = {ENRICHED: (serde.STRING, ENRICHED_ORDER)}
COUNTRIES = ("AT", "BR", "CL")


async def find_customer(number: int) -> Customer:
    """Stands for a request to another service: `await client.get(f"/customers/{number}")`."""
    await asyncio.sleep(0.001)
    return Customer(f"customer-{number}", COUNTRIES[number % len(COUNTRIES)])


def estimate_risks(orders: list[EnrichedOrder]) -> list[EnrichedOrder]:
    """Stands for a model, which takes many rows at once: `model.predict(rows)`."""
    weights = {"AT": 0.1, "BR": 0.2, "CL": 0.3}
    return [
        EnrichedOrder(o.order, o.customer, min(1.0, o.order.amount * weights[o.customer.country] / 100)) for o in orders
    ]


def build() -> Topology:
    builder = StreamsBuilder()
    (
        builder.stream(ORDERS, key=serde.STRING, value=ORDER)
        .map_values_async(
            find_customer, on=lambda order: order.customer, joiner=EnrichedOrder, capacity=50, retry=2, cache=60_000
        )
        .map_values_batch(estimate_risks, max_records=500)
        .to(ENRICHED, key=serde.STRING, value=ENRICHED_ORDER)
    )
    return builder.build()


def events(random: Random) -> Iterator[Event]:
    """Orders of twenty customers, some 50 ms apart, under the number of the order."""
    now, number = START, 0
    while True:
        order = Order(random.randint(1, 20), random.randint(100, 50_000) / 100)
        yield Event(ORDERS, f"order-{number}", order, now)
        now, number = now + random.randint(1, 100), number + 1
