"""Types of processors and stores in the DSL."""

from __future__ import annotations

from typing import Any, assert_type

from headrace import (
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    FixedKeyRecord,
    KeyValueStore,
    KStream,
    Processor,
    ProcessorContext,
    Record,
    SessionStore,
    Stores,
    StreamsBuilder,
    ValueAndTimestamp,
    VersionedRecord,
    VersionedStore,
    WindowStore,
    serde,
)

totals = Stores.key_value("totals", key=serde.STRING, value=serde.LONG)
latest = Stores.timestamped_key_value("latest", key=serde.STRING, value=serde.STRING)
visits = Stores.window("visits", 60_000, 10_000, key=serde.STRING, value=serde.LONG)
sessions = Stores.session("sessions", 60_000, key=serde.STRING, value=serde.LONG)
prices = Stores.versioned("prices", 60_000, key=serde.STRING, value=serde.DOUBLE)


class Sum(Processor[str, int, str, float]):
    def init(self, context: ProcessorContext[str, float]) -> None:
        self.context = context
        self.totals = context.store(totals)
        assert_type(self.totals, KeyValueStore[str, int])
        assert_type(context.store(latest), KeyValueStore[str, ValueAndTimestamp[str]])
        assert_type(context.store(visits), WindowStore[str, int])
        assert_type(context.store(sessions), SessionStore[str, int])
        assert_type(context.store(prices), VersionedStore[str, float])
        assert_type(context.store(prices).get("tea"), VersionedRecord[float] | None)

    def process(self, record: Record[str, int]) -> None:
        total = (self.totals.get(record.key) or 0) + record.value
        assert_type(total, int)
        assert_type(record.with_value(total / 100), Record[str, float])
        self.context.forward(record.with_value(total / 100))


class Length(FixedKeyProcessor[str, str, int]):
    def init(self, context: FixedKeyProcessorContext[str, int]) -> None:
        self.context = context

    def process(self, record: FixedKeyRecord[str, str]) -> None:
        self.context.forward(record.with_value(len(record.value)))


class Untyped:
    """A processor that says nothing about its types, and has no `close`."""

    def init(self, context: Any) -> None:
        self.context = context

    def process(self, record: Any) -> None:
        self.context.forward(record)


builder = StreamsBuilder().add_store(totals)
numbers = builder.stream("numbers", key=serde.STRING, value=serde.LONG)
texts = builder.stream("texts", key=serde.STRING, value=serde.STRING)
assert_type(numbers.process(Sum, "totals"), KStream[str, float])
assert_type(numbers.process(lambda: Sum(), "totals"), KStream[str, float])  # noqa: PLW0108
assert_type(texts.process_values(Length), KStream[str, int])
assert_type(texts.process(Untyped), KStream[Any, Any])
assert_type(texts.process_values(Untyped), KStream[str, Any])
