"""Top products: which products bring in most, of the orders that somebody has clicked on?

From database to database. Orders are rows that change: they are inserted, corrected, cancelled. Clicks are events, in
Avro where there is a schema registry. An order joins the number of its clicks; the amounts are added up by product, and
taken away again when an order changes; one task keeps the list of the best.

By themselves both come from topics. With SHOP_DATABASE, the address of a PostgreSQL server, orders are captured from
its table `orders`, and the list is kept in its table `top_products`; with SHOP_LAKE in a Delta table there, too.

    CREATE TABLE orders (id bigint PRIMARY KEY, product text NOT NULL, cents bigint NOT NULL);
"""

import os
from collections.abc import Iterator
from random import Random

from msgspec import Struct

from examples.events import START, Event, Topics
from headrace import KTable, Materialized, StreamsBuilder, Topology, serde
from headrace.connect import DeltaSink, PostgresChanges, PostgresSink

APPLICATION = "top-products"
ORDERS, CLICKS, TOP = "orders", "clicks", "top-products"
LENGTH = 3


class Order(Struct, frozen=True):
    id: int
    product: str
    cents: int


class Click(Struct, frozen=True):
    page: str


class Totals(Struct, frozen=True):
    orders: int = 0
    clicks: int = 0
    cents: int = 0

    def plus(self, other: "Totals", sign: int = 1) -> "Totals":
        return Totals(
            self.orders + sign * other.orders, self.clicks + sign * other.clicks, self.cents + sign * other.cents
        )


class Product(Struct, frozen=True):
    name: str
    totals: Totals


class Place(Struct, frozen=True):
    product: str
    orders: int
    clicks: int
    cents: int


Products = dict[str, Totals]
ID, ORDER = serde.JSON, serde.json_of(Order)
# Records that say the name of their schema, so that any reader finds it; JSON where there is no registry.
CLICK = serde.avro(Click, subject="record") if os.environ.get("HEADRACE_SCHEMA_REGISTRY_URL") else serde.json_of(Click)
TOTALS, PLACE = serde.json_of(Totals), serde.json_of(Place)
PRODUCT, PRODUCTS = serde.json_of(Product), serde.json_of(Products)
TOPICS: Topics = {ORDERS: (ID, ORDER), CLICKS: (ID, CLICK)}
OUTPUTS: Topics = {TOP: (serde.LONG, PLACE)}
COLUMNS = {"rank": int, "product": str, "orders": int, "clicks": int, "cents": int}


def put(_key: str, product: Product, products: Products) -> Products:
    return {**products, product.name: product.totals}


def remove(_key: str, product: Product, products: Products) -> Products:
    return {name: totals for name, totals in products.items() if name != product.name}


def places(_key: str, products: Products) -> list[tuple[int, Place | None]]:
    """The best products under their ranks, of equal ones the first by name. A rank without a product has no value."""
    some = [(name, totals) for name, totals in products.items() if totals.orders]
    some.sort(key=lambda pair: (-pair[1].cents, pair[0]))
    best = [Place(name, totals.orders, totals.clicks, totals.cents) for name, totals in some[:LENGTH]]
    return list(enumerate([*best, *[None] * (LENGTH - len(best))], start=1))


def build() -> Topology:
    database, lake = os.environ.get("SHOP_DATABASE"), os.environ.get("SHOP_LAKE")
    builder = StreamsBuilder()
    orders: KTable[int, Order]
    if database:
        orders = builder.table(source=PostgresChanges(database, ORDERS), key=ID, value=ORDER, partitions=2)
    else:
        orders = builder.table(ORDERS, key=ID, value=ORDER)
    clicks = builder.stream(CLICKS, key=ID, value=CLICK).group_by_key().count(store="clicks-of-orders")
    # In a store of its own: so what is taken away from a product is what was added, also if both sides change at once.
    kept = Materialized[int, Product]("clicked-orders", key=ID, value=PRODUCT)
    clicked = orders.join(clicks, lambda order, n: Product(order.product, Totals(1, n, order.cents)), store=kept)
    totals = clicked.group_by(lambda _, it: (it.name, it.totals), key=serde.STRING, value=TOTALS).aggregate(
        Totals,
        lambda _, added, totals: totals.plus(added),
        lambda _, gone, totals: totals.plus(gone, -1),
        store="totals-of-products", value=TOTALS,
    )  # fmt: skip
    products = totals.group_by(
        lambda name, totals: ("all", Product(name, totals)), key=serde.STRING, value=PRODUCT
    ).aggregate(dict, put, remove, store="products", value=PRODUCTS)
    top = products.to_stream().flat_map(places)
    top.to(TOP, key=serde.LONG, value=PLACE)
    if database:
        top.sink(PostgresSink(database, "top_products", key="rank", mode="upsert", create=COLUMNS), name="database")
    if lake:
        top.sink(DeltaSink(lake, key="rank", mode="upsert", create=COLUMNS), name="lake")
    return builder.build()


PRODUCT_NAMES = ["tea", "coffee", "cocoa", "mate", "chai", "water"]


def events(random: Random) -> Iterator[Event]:
    """Orders, some of which change or are cancelled, and clicks on them."""
    now, number, orders = START, 0, dict[int, Order]()
    while True:
        chance = random.random()
        if chance < 0.3 or not orders:
            number += 1
            orders[number] = Order(number, random.choice(PRODUCT_NAMES), random.randint(1, 50) * 100)
            yield Event(ORDERS, number, orders[number], now)
        elif chance < 0.4:
            changed = random.choice([*orders])
            orders[changed] = Order(changed, random.choice(PRODUCT_NAMES), random.randint(1, 50) * 100)
            yield Event(ORDERS, changed, orders[changed], now)
        elif chance < 0.45:
            gone = random.choice([*orders])
            del orders[gone]
            yield Event(ORDERS, gone, None, now)
        else:
            yield Event(CLICKS, random.choice([*orders]), Click(f"/page/{random.randint(1, 9)}"), now)
        now += random.randint(1, 1_000)
