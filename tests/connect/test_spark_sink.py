"""The writer behind `to_spark`, on a real Spark session: staged and local parts, schemas, rejected records, errors."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from headrace import Record, StreamsBuilder, serde
from headrace.checkpoint.storage import open_storage
from headrace.connect import SinkBatch, SinkContext, SinkPart, SparkSink
from headrace.errors import ConfigError, RecordsRejectedError, SinkUnavailableError
from headrace.spark.session import session
from headrace.testing import TopologyTestDriver

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Any:
    return session()


@dataclass
class Order:
    amount: float
    tags: list[str]
    note: str | None = None


def batch(number: int, *values: Any, part: str = "0_0") -> SinkBatch:
    records = [Record(f"k{place}", value, 1000 * place) for place, value in enumerate(values)]
    return SinkBatch(number, (SinkPart(part, 0, records, [(place,) for place in range(len(records))]),))


class Writers:
    """The writer of a slot, which has no session, and that of the driver."""

    def __init__(self, sink: SparkSink, place: Path, spark: Any) -> None:
        self.storage = open_storage(place)
        common: Any = {"application": "shop", "sink": "orders", "checkpoint": "c0ffee", "storage": self.storage}
        self.slot = sink.open(SinkContext(**common))
        self.driver = sink.open(SinkContext(**common, spark=spark))


def rows_of(frame: Any) -> list[dict[str, Any]]:
    return sorted((row.asDict() for row in frame.collect()), key=repr)


def test_parts_that_slots_have_staged_and_parts_of_the_driver_are_one_frame(spark, tmp_path):
    seen: list[Any] = []

    def write(frame: Any, number: int) -> None:
        seen.append((number, frame.rdd.getNumPartitions(), frame.schema.simpleString(), rows_of(frame)))

    writers = Writers(SparkSink(write, schema=Order, key="id", timestamp="at"), tmp_path, spark)
    staged = [writers.slot.write(batch(7, Order(1.5, ["a"]))), writers.slot.write(batch(7, Order(2.5, [], "x")))]
    assert len(writers.storage.names("staged/orders/")) == 2
    writers.slot.write(batch(6, Order(0.5, [])))  # what a crash has left
    writers.driver.commit(7, staged)
    writers.driver.commit(8, [writers.driver.write(batch(8, Order(3.5, ["b"])))])
    at = datetime.fromtimestamp(0, UTC).astimezone().replace(tzinfo=None)
    schema = "struct<id:string,amount:double,tags:array<string>,note:string,at:timestamp>"
    first = {"id": "k0", "amount": 1.5, "tags": ["a"], "note": None, "at": at}
    assert seen[0] == (7, 2, schema, [first, {**first, "amount": 2.5, "tags": [], "note": "x"}])
    assert (seen[1][0], *seen[1][2:]) == (8, schema, [{**first, "amount": 3.5, "tags": ["b"]}])
    assert writers.storage.names("staged/") == []


def test_without_a_schema_the_columns_are_those_of_the_values(spark, tmp_path):
    seen: list[Any] = []
    writers = Writers(SparkSink(lambda frame, number: seen.extend(rows_of(frame))), tmp_path, spark)
    parts = [writers.slot.write(batch(1, {"n": 1})), writers.slot.write(batch(1, {"n": 2.5, "city": "Rome"}))]
    writers.driver.commit(1, parts)
    assert seen == [{"n": 1.0, "city": None}, {"n": 2.5, "city": "Rome"}]


def test_records_that_do_not_fit_the_schema_are_rejected(spark, tmp_path):
    writers = Writers(SparkSink(lambda frame, number: None, schema={"n": int}), tmp_path, spark)
    for writer in (writers.slot, writers.driver):
        with pytest.raises(RecordsRejectedError) as raised:
            writer.write(batch(1, {"n": 1}, {"n": "many"}))
        assert [record.key for record, _ in raised.value.records] == ["k1"]


def test_a_target_that_is_away_is_asked_again_and_a_mistake_is_not(spark, tmp_path):
    def away(frame: Any, number: int) -> None:
        options = {"url": "jdbc:none://127.0.0.1:1/x", "dbtable": "t", "driver": "java.lang.String"}
        frame.write.format("jdbc").options(**options).mode("append").save()

    def mistake(frame: Any, number: int) -> None:
        frame.select("no_such_column").collect()

    def own(frame: Any, number: int) -> None:
        raise KeyError("mine")

    for function, error in ((away, SinkUnavailableError), (mistake, AnalysisException), (own, KeyError)):
        writers = Writers(SparkSink(function), tmp_path, spark)
        with pytest.raises(error):
            writers.driver.commit(1, [writers.driver.write(batch(1, {"n": 1}))])


def test_a_driver_shows_what_the_function_would_get():
    builder = StreamsBuilder()
    stream = builder.stream("orders", key=serde.STRING, value=serde.JSON)
    stream.to_spark(lambda frame, number: frame.write.saveAsTable("orders"), key="id")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("orders", key=serde.STRING, value=serde.JSON).pipe("a", {"n": 1}, timestamp=5)
        assert driver.sink_records("spark") == [Record("a", {"n": 1}, 5)]
    with pytest.raises(ConfigError, match=r"a function of \(frame, batch\)"):
        stream.to_spark("orders")  # pyright: ignore[reportArgumentType]
