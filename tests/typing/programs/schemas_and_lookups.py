"""Types of serdes with schemas, and of functions of many values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from google.protobuf.wrappers_pb2 import StringValue

from headrace import KStream, StreamsBuilder, serde


@dataclass
class Order:
    product: str
    amount: float


assert_type(serde.avro(Order), serde.Serde[Order])
assert_type(serde.json_schema(Order, subject="record"), serde.Serde[Order])
assert_type(serde.protobuf(StringValue), serde.Serde[StringValue])
assert_type(serde.protobuf(), serde.Serde[dict[str, Any]])
assert_type(serde.avro(schema="{}"), serde.Serde[Any])


def mistakes() -> None:
    serde.avro(Order, subject="topics")  # error: No overloads
    orders.map_values_async(find_count, retries=2)  # error: No overloads


orders = StreamsBuilder().stream("orders", key=serde.STRING, value=serde.avro(Order))
assert_type(orders, KStream[str, Order])


def amounts(found: list[Order]) -> list[float]:
    return [order.amount for order in found]


async def find_count(product: str) -> int:
    return len(product)


async def find_name(order: Order) -> str:
    return order.product


def label(order: Order, count: int) -> bytes:
    return b"%d" % count


assert_type(orders.map_values_batch(amounts), KStream[str, float])
assert_type(orders.map_values_async(find_name), KStream[str, str])
assert_type(
    orders.map_values_async(find_count, on=lambda order: order.product, joiner=label, cache=1000), KStream[str, bytes]
)
