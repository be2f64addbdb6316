"""Without a serde on a source, an aggregate or a sink, the error names the operator that lacks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace import JoinWindows, Processor, ProcessorContext, StreamsBuilder, StreamsError, TimeWindows, serde
from headrace.testing import TopologyTestDriver

TEXT: dict[str, Any] = {"key": serde.STRING, "value": serde.STRING}


def error_of(build: Callable[[StreamsBuilder], object], config: dict[str, Any] | None = None) -> str:
    builder = StreamsBuilder()
    build(builder)
    with TopologyTestDriver(builder.build(), config) as driver, pytest.raises(StreamsError) as caught:
        driver.input_topic("in", **TEXT).pipe("k", "v")
    return str(caught.value)


def test_a_function_that_gets_bytes_names_the_source() -> None:
    message = error_of(
        lambda builder: builder.stream("in", key=serde.STRING, name="read").map_values(str.upper).to("out", **TEXT)
    )
    assert message.endswith("The values of read are bytes, because it has no value= serde")


def test_a_sink_that_gets_bytes_names_the_source() -> None:
    message = error_of(lambda builder: builder.stream("in", name="read").to("out", **TEXT))
    assert "The keys of read are bytes, because it has no key= serde." in message
    assert "The values of read are bytes, because it has no value= serde." in message
    assert "Check the serdes" not in message


def test_a_joiner_that_gets_bytes_from_a_table_names_the_source_of_the_table() -> None:
    def build(builder: StreamsBuilder) -> None:
        table = builder.table("rows", key=serde.STRING, name="rows")
        builder.stream("in", **TEXT).join(table, lambda value, row: value + row).to("out", **TEXT)

    builder = StreamsBuilder()
    build(builder)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("rows", **TEXT).pipe("k", "row")
        with pytest.raises(StreamsError) as caught:
            driver.input_topic("in", **TEXT).pipe("k", "v")
    assert "The values of rows-source are bytes, because it has no value= serde" in str(caught.value)


def test_an_aggregate_without_a_serde_is_named_instead_of_the_sink() -> None:
    def total(builder: StreamsBuilder) -> None:
        grouped = builder.stream("in", **TEXT).group_by_key()
        totals = grouped.aggregate(lambda: 0, lambda key, value, total: total + 1, name="total")
        totals.to_stream().filter(lambda total: total > 0).to("out", name="write")

    def collect(builder: StreamsBuilder) -> None:
        windows = builder.stream("in", **TEXT).group_by_key().windowed_by(TimeWindows.of(10))
        lists = windows.aggregate(list, lambda key, value, found: [*found, value], name="collect")
        lists.to_stream().to("out", name="write")

    assert error_of(total).endswith(
        "total has no value= serde for its int, nor has write: give it one, and both have it."
    )
    assert "collect has no value= serde for its list, nor has write" in error_of(collect)


def test_a_sink_without_a_serde_is_named_with_what_makes_its_values() -> None:
    message = error_of(
        lambda builder: builder.stream("in", **TEXT).map_values(len, name="length").to("out", name="write")
    )
    assert message.endswith("write has no value= serde for the int that length makes: to(…, value=…).")


def test_a_repartition_without_a_serde_names_the_operator_that_makes_the_keys() -> None:
    message = error_of(
        lambda builder: (
            builder.stream("in", **TEXT).select_key(lambda key, value: 5, name="five").group_by_key().count()
        )
    )
    assert "five makes keys of the type int that go through the internal topic" in message
    assert "give one to the group_by, join or repartition below it" in message


def test_default_serdes_are_serdes() -> None:
    message = error_of(
        lambda builder: builder.stream("in", key=serde.STRING).map_values(lambda value: 1 // 0).to("out"),
        {"default.value.serde": serde.BYTES},
    )
    assert "serde" not in message


def test_an_error_that_has_nothing_to_do_with_bytes_gets_no_hint() -> None:
    def build(builder: StreamsBuilder) -> None:
        other = builder.stream("other")
        stream = builder.stream("in", **TEXT).map_values(lambda value: 1 // 0)
        stream.join(other, lambda a, b: a, windows=JoinWindows.of(1), value=serde.LONG).to("out", value=serde.LONG)

    assert "no value= serde" not in error_of(build)


class FailsInInit(Processor[str, str, str, str]):
    def init(self, context: ProcessorContext) -> None:
        {}["WALL_CLOCK_TIME"]

    def process(self, record: Any) -> None: ...


def test_an_error_in_init_keeps_its_type_and_names_the_operator() -> None:
    builder = StreamsBuilder()
    builder.stream("in").process(FailsInInit, name="fails")
    with pytest.raises(StreamsError, match="fails: init of FailsInInit failed: KeyError: 'WALL_CLOCK_TIME'"):
        TopologyTestDriver(builder.build())
