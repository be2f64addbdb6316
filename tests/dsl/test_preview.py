"""`stream.preview(records)` and `table.preview(records)`: a part of a topology on sample data."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import (
    JoinWindows,
    KStream,
    Processor,
    ProcessorContext,
    Record,
    Stores,
    StreamsBuilder,
    TimeWindows,
    serde,
)

Orders = KStream[str, int]


@pytest.fixture
def builder() -> StreamsBuilder:
    return StreamsBuilder()


@pytest.fixture
def orders(builder: StreamsBuilder) -> Orders:
    return builder.stream("orders", key=serde.STRING, value=serde.LONG)


def pairs(records: list[Record[Any, Any]]) -> list[tuple[Any, Any]]:
    return [(record.key, record.value) for record in records]


def test_records_pairs_and_values_are_samples(orders: Orders) -> None:
    found = orders.preview([Record("a", 1, 7, (("h", b"x"),)), ("b", 2), 3])
    assert found == [Record("b", 2, 0), Record(None, 3, 0), Record("a", 1, 7, (("h", b"x"),))]  # by timestamp


def test_other_branches_do_not_run(orders: Orders) -> None:
    seen: list[int] = []
    orders.foreach(seen.append)
    large = orders.filter(lambda amount: amount > 10)
    large.foreach(seen.append)
    assert pairs(large.preview([("a", 5), ("b", 20)])) == [("b", 20)]
    assert seen == []


def test_a_repartition_and_a_count_are_part_of_it(orders: Orders) -> None:
    table = orders.group_by(lambda key, amount: amount % 2, key=serde.LONG, value=serde.LONG).count()
    assert pairs(table.preview([1, 2, 3])) == [(1, 1), (0, 1), (1, 2)]
    assert pairs(table.to_stream().map_values(str).preview([1, 2, 3])) == [(1, "1"), (0, "1"), (1, "2")]


def test_a_branch_is_previewed_alone(orders: Orders) -> None:
    branches = orders.split(name="by-").branch(lambda amount: amount > 10, name="large").default_branch(name="small")
    assert pairs(branches["by-large"].preview([5, 20])) == [(None, 20)]
    assert pairs(branches["by-small"].preview([5, 20])) == [(None, 5)]


def test_joins_take_samples_by_topic(builder: StreamsBuilder, orders: Orders) -> None:
    names = builder.table("names", key=serde.STRING, value=serde.STRING)
    other = builder.stream("payments", key=serde.STRING, value=serde.LONG)
    named = orders.join(names, lambda amount, name: f"{name} {amount}")
    assert pairs(named.preview({"names": [("a", "Ada")], "orders": [("a", 1), ("b", 2)]})) == [("a", "Ada 1")]
    paid = orders.join(other, lambda amount, payment: payment - amount, windows=JoinWindows.of(10))
    assert pairs(
        paid.preview({"orders": [Record("a", 1, 5)], "payments": [Record("a", 3, 9), Record("a", 4, 99)]})
    ) == [("a", 2)]
    with pytest.raises(TypeError, match=r"depends on 2 topics: give a dict .*'orders': \[…\], 'names': \[…\]"):
        named.preview([("a", 1)])


def test_foreign_keys_and_global_tables_are_part_of_it(builder: StreamsBuilder, orders: Orders) -> None:
    left = builder.table("left", key=serde.STRING, value=serde.STRING)
    right = builder.table("right", key=serde.STRING, value=serde.STRING)
    joined = left.join(right, lambda a, b: f"{a}+{b}", on=lambda value: value[0])
    assert pairs(joined.preview({"right": [("x", "X")], "left": [("1", "x1"), ("2", "y2")]})) == [("1", "x1+X")]
    rates = builder.global_table("rates", key=serde.STRING, value=serde.LONG)
    converted = orders.join(rates, lambda amount, rate: amount * rate, on=lambda key, amount: key)
    assert pairs(converted.preview({"rates": [("a", 3)], "orders": [("a", 2)]})) == [("a", 6)]


class AddStored(Processor[str, int, str, int]):
    def init(self, context: ProcessorContext) -> None:
        self.context, self.store = context, context.store("stored")

    def process(self, record: Record[str, int]) -> None:
        self.context.forward(record.with_value(record.value + (self.store.get(record.key) or 0)))


class Store(Processor[str, int, str, int]):
    def init(self, context: ProcessorContext) -> None:
        self.store = context.store("stored")

    def process(self, record: Record[str, int]) -> None:
        self.store.put(record.key, record.value)


def test_what_fills_a_store_that_a_processor_reads_is_part_of_it(builder: StreamsBuilder, orders: Orders) -> None:
    builder.add_store(Stores.key_value("stored", key=serde.STRING, value=serde.LONG))
    builder.stream("bases", key=serde.STRING, value=serde.LONG).process(Store, "stored")
    found = orders.process(AddStored, "stored").preview({"bases": [("a", 100)], "orders": [("a", 1)]})
    assert pairs(found) == [("a", 101)]


def test_dropped_records_are_counted_and_shown(orders: Orders) -> None:
    windows = orders.group_by_key().windowed_by(TimeWindows.of(10))
    found = windows.count().preview([Record("a", 1, 100), 5])
    assert (len(found), dict(found.dropped)) == (1, {"null key": 1})
    assert "dropped: 1 (null key)" in repr(found)


def test_the_table_is_shown_and_html_is_escaped(builder: StreamsBuilder) -> None:
    found = builder.stream("in", key=serde.STRING, value=serde.STRING).preview([("<b>", "<script>alert(1)</script>")])
    assert repr(found) == "key  value                      timestamp\n<b>  <script>alert(1)</script>  0"
    html = found._repr_html_()
    assert "<script>" not in html
    assert "<b>" not in html
    assert "&lt;script&gt;" in html


def test_settings_apply_and_the_builder_is_as_before(builder: StreamsBuilder) -> None:
    stream = builder.stream("in")
    assert pairs(
        stream.preview([("k", "v")], config={"default.key.serde": serde.STRING, "default.value.serde": serde.STRING})
    ) == [("k", "v")]
    before = str(builder.build().describe())
    stream.preview([])
    assert str(builder.build().describe()) == before
