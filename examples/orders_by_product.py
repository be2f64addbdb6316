"""Orders by product: three tables, joined, and kept right whatever changes in any of them.

Orders name a product and a customer. Two foreign-key joins make each order complete, with the name of the product and
of the customer in it. The orders are summed up per product, and a join of two tables under the same key puts the sums
beside the products. A new price, a customer's new name, an order taken back, a product no longer sold: each is one
record in one topic, and all that follows from it comes out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from examples.events import START, Event, Topics
from headrace import Materialized, StreamsBuilder, Topology, serde

APPLICATION = "orders-by-product"
ORDERS, PRODUCTS, CUSTOMERS = "orders", "products", "customers"
COMPLETE, SALES = "complete-orders", "product-sales"


@dataclass(frozen=True)
class Order:
    product: str
    customer: str
    quantity: int


@dataclass(frozen=True)
class Product:
    name: str
    price: int  # cents


@dataclass(frozen=True)
class Customer:
    name: str


@dataclass(frozen=True)
class CompleteOrder:
    order: Order
    product: Product
    customer: Customer | None = None  # None: not known, or not any more


@dataclass(frozen=True)
class Sales:
    product: Product | None = None
    orders: int = 0
    pieces: int = 0
    amount: int = 0


ORDER = serde.json_of(Order)
PRODUCT = serde.json_of(Product)
CUSTOMER = serde.json_of(Customer)
COMPLETE_ORDER = serde.json_of(CompleteOrder)
SALES_VALUE = serde.json_of(Sales)
TOPICS: Topics = {
    ORDERS: (serde.STRING, ORDER),
    PRODUCTS: (serde.STRING, PRODUCT),
    CUSTOMERS: (serde.STRING, CUSTOMER),
}
OUTPUTS: Topics = {COMPLETE: (serde.STRING, COMPLETE_ORDER), SALES: (serde.STRING, SALES_VALUE)}


def product_of(order: Order) -> str:
    return order.product


def customer_of(complete: CompleteOrder) -> str:
    return complete.order.customer


def with_customer(complete: CompleteOrder, customer: Customer | None) -> CompleteOrder:
    return replace(complete, customer=customer)


def under_product(_number: str, complete: CompleteOrder) -> tuple[str, CompleteOrder]:
    return complete.order.product, complete


def add(_product: str, complete: CompleteOrder, sales: Sales) -> Sales:
    pieces = complete.order.quantity
    return Sales(None, sales.orders + 1, sales.pieces + pieces, sales.amount + pieces * complete.product.price)


def subtract(_product: str, complete: CompleteOrder, sales: Sales) -> Sales:
    pieces = complete.order.quantity
    return Sales(None, sales.orders - 1, sales.pieces - pieces, sales.amount - pieces * complete.product.price)


def sales_of(product: Product, sales: Sales | None) -> Sales:
    return replace(sales or Sales(), product=product)


def build() -> Topology:
    builder = StreamsBuilder()
    orders = builder.table(ORDERS, key=serde.STRING, value=ORDER)
    products = builder.table(PRODUCTS, key=serde.STRING, value=PRODUCT)
    customers = builder.table(CUSTOMERS, key=serde.STRING, value=CUSTOMER)
    with_product = orders.join(products, CompleteOrder, on=product_of, store=Materialized(value=COMPLETE_ORDER))
    kept = Materialized("complete-orders", value=COMPLETE_ORDER)
    complete = with_product.left_join(customers, with_customer, on=customer_of, store=kept)
    complete.to_stream().to(COMPLETE, key=serde.STRING, value=COMPLETE_ORDER)
    sums = complete.group_by(under_product, key=serde.STRING, value=COMPLETE_ORDER).aggregate(
        Sales, add, subtract, store="sums", value=SALES_VALUE
    )
    sales = products.left_join(sums, sales_of, store=Materialized("sales", value=SALES_VALUE))
    sales.to_stream().to(SALES, key=serde.STRING, value=SALES_VALUE)
    return builder.build()


def events(random: Random) -> Iterator[Event]:
    """Mostly orders, new or changed; now and then a product or a customer; one in ten is a deletion."""
    now = START
    while True:
        product, customer = f"p{random.randint(1, 8)}", f"c{random.randint(1, 12)}"
        [topic] = random.choices((PRODUCTS, CUSTOMERS, ORDERS), weights=(1, 1, 8))
        if topic == PRODUCTS:
            key, value = product, Product(f"product {product}", random.randint(100, 9_999))
        elif topic == CUSTOMERS:
            key, value = customer, Customer(f"customer {random.randint(1, 99)}")
        else:
            key, value = f"o{random.randint(1, 60)}", Order(product, customer, random.randint(1, 5))
        yield Event(topic, key, None if random.random() < 0.1 else value, now)
        now += random.randint(1, 200)
