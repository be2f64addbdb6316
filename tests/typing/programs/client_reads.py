"""Types of stores, queries, clients and the test driver's topics, as the client of an application sees them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, assert_type

from headrace import (
    Admin,
    Application,
    Consumer,
    ConsumerRecord,
    KeyQuery,
    MultiVersionedKeyQuery,
    PrefixQuery,
    Producer,
    Query,
    QueryResult,
    RangeQuery,
    ReadOnlyKeyValueStore,
    ReadOnlySessionStore,
    ReadOnlyVersionedStore,
    ReadOnlyWindowStore,
    Record,
    SessionKeyQuery,
    Stores,
    TaskId,
    TimestampedKeyQuery,
    TimestampedRangeQuery,
    Topology,
    ValueAndTimestamp,
    VersionedKeyQuery,
    VersionedRecord,
    Windowed,
    WindowKeyQuery,
    WindowRangeQuery,
    serde,
)
from headrace.clients.admin import TopicDescription
from headrace.clients.producer import Delivery
from headrace.query.client import Client
from headrace.testing import TestInputTopic, TestOutputTopic, TopologyTestDriver

COUNTS = Stores.key_value("counts", key=serde.STRING, value=serde.LONG)
VISITS = Stores.window("visits", 60_000, 10_000, key=serde.STRING, value=serde.LONG)
SESSIONS = Stores.session("sessions", 60_000, key=serde.STRING, value=serde.LONG)
PRICES = Stores.versioned("prices", 60_000, key=serde.STRING, value=serde.DOUBLE)


# ----------------------------------------------------------------------------------------------------------- stores
def stores(app: Application) -> None:
    assert_type(app.store(COUNTS), ReadOnlyKeyValueStore[str, int])
    assert_type(app.store(VISITS), ReadOnlyWindowStore[str, int])
    assert_type(app.store(SESSIONS), ReadOnlySessionStore[str, int])
    assert_type(app.store(PRICES), ReadOnlyVersionedStore[str, float])
    assert_type(app.store("counts"), Any)
    assert_type(app.store(COUNTS).get("hello"), int | None)
    assert_type(app.store(VISITS).fetch("hello", 0, 5), Iterator[tuple[int, int]])
    assert_type(app.store(PRICES).get("tea"), VersionedRecord[float] | None)
    assert_type(app.metadata_for_key(COUNTS, "hello"), TaskId)
    app.store(COUNTS).put("hello", 1)  # error: Cannot access attribute "put"
    app.store(COUNTS).get(5)  # error: "Literal[5]" is not assignable to "str"
    app.store(VISITS).get("hello")  # error: Cannot access attribute "get"


# ---------------------------------------------------------------------------------------------------------- queries
def queries(app: Application) -> None:
    assert_type(KeyQuery("hello"), KeyQuery[str, Any])
    assert_type(app.query("counts", KeyQuery[str, int]("hello")), QueryResult[int | None])
    assert_type(app.query(COUNTS, KeyQuery[str, int].with_key("hello")).result, int | None)
    assert_type(app.query("counts", TimestampedKeyQuery[str, int]("a")).result, ValueAndTimestamp[int] | None)
    assert_type(app.query("counts", RangeQuery[str, int]("a", "b")).result, Iterator[tuple[str, int]])
    assert_type(
        app.query("counts", TimestampedRangeQuery[str, int]("a")).result, Iterator[tuple[str, ValueAndTimestamp[int]]]
    )
    assert_type(app.query("counts", PrefixQuery[str, int]("a")).result, Iterator[tuple[str, int]])
    assert_type(app.query("visits", WindowKeyQuery[str, int]("a", 0, 5)).result, Iterator[tuple[int, int]])
    assert_type(app.query("visits", WindowRangeQuery[str, int](0, 5)).result, Iterator[tuple[Windowed[str], int]])
    assert_type(app.query("sessions", SessionKeyQuery[str, int]("a")).result, Iterator[tuple[Windowed[str], int]])
    assert_type(app.query("prices", VersionedKeyQuery[str, float]("a").as_of(5)).result, VersionedRecord[float] | None)
    assert_type(app.query("prices", MultiVersionedKeyQuery[str, float]("a")).result, Iterator[VersionedRecord[float]])
    KeyQuery[str, int](5)  # error: "Literal[5]" is not assignable to "str"
    app.query("counts", "hello")  # error: "Literal['hello']" is not assignable to "Query
    app.query("counts", KeyQuery[str, int]("a")).result + 1  # error: Operator "+" not supported for "None"
    app.query("counts", KeyQuery("a"), atleast=3)  # error: No parameter named "atleast"


def with_any_query(app: Application, query: Query[int | None]) -> int:
    return app.query("counts", query).result or 0


# ---------------------------------------------------------------------------------------------------------- clients
def consumers(log: str) -> None:
    assert_type(Consumer(log), Consumer[bytes, bytes])
    words = Consumer(log, "group", key=serde.STRING, value=serde.LONG)
    assert_type(words, Consumer[str, int])
    assert_type(words.poll(timedelta(seconds=1)), list[ConsumerRecord[str, int]])
    for record in words:
        assert_type(record.key, str)
        assert_type(record.value, int)
    words.poll(1.5)  # error: "float" is not assignable to "int"
    Consumer(log, auto_offset_reset="first")  # error: "Literal['first']" is not assignable to type "Reset"


def producers(log: str) -> None:
    assert_type(Producer(log), Producer[bytes, bytes])
    words = Producer(log, key=serde.STRING, value=serde.LONG)
    assert_type(words, Producer[str, int])
    assert_type(words.send("words", "hello", 1), Delivery)
    assert_type(words.send("words", 5, 1, key_serde=serde.LONG), Delivery)
    words.send("words", "hello", "one", value_serde=serde.STRING)
    words.flush(timedelta(seconds=1))
    words.send("words", "hello", "one")  # error: "Literal['one']" is not assignable to "int"
    words.flush("soon")  # error: "Literal['soon']" cannot be assigned


def admins(log: str) -> None:
    assert_type(Admin(log).topics(), list[str])
    assert_type(Admin(log).describe("words"), TopicDescription)
    Client("http://127.0.0.1:8089", timeout=0.5)  # error: "float" is not assignable to "int"


# ------------------------------------------------------------------------------------------------------ test driver
def drive(topology: Topology) -> None:
    driver = TopologyTestDriver(topology)
    words = driver.input_topic("words", key=serde.STRING, value=serde.LONG)
    counts = driver.output_topic("counts", key=serde.STRING, value=serde.LONG)
    assert_type(words, TestInputTopic[str, int])
    assert_type(counts, TestOutputTopic[str, int])
    assert_type(counts.read_record(), Record[str, int])
    assert_type(counts.read_key_values(), list[tuple[str, int]])
    assert_type(counts.read_table(), dict[str, int])
    assert_type(counts.size, int)
    assert_type(counts.is_empty, bool)
    assert_type(driver.output_topic("counts"), TestOutputTopic[Any, Any])
    words.pipe("hello", 1)
    counts.read_table()["hello"].upper()  # error: Cannot access attribute "upper" for class "int"
    words.pipe("hello", "one")  # error: "Literal['one']" cannot be assigned to parameter "value" of type "int | None"
    driver.input_topic("words", advance=0.5)  # error: "float" is not assignable to "int"
