"""Join by hand: two streams joined and summed up with the Processor API, and the same program in the DSL.

    Source1 (topic1) ──┐
                       ├──▶ Join ──▶ Aggregate ──▶ Sink (topic3)
    Source2 (topic2) ──┘

Join keeps the records of both sides in window stores and pairs those of a key that are at most ten seconds apart;
Aggregate keeps the sum of the products of all pairs of a key. `build` wires this by hand; `build_with_dsl` says it in
six lines. Both give the same records, with the same timestamps.
"""

from collections.abc import Iterator
from random import Random

from examples.events import START, Event, Topics
from headrace import (
    JoinWindows,
    Materialized,
    ProcessorContext,
    Record,
    Stores,
    StreamsBuilder,
    Topology,
    ValueAndTimestamp,
    serde,
)

APPLICATION = "join-by-hand"
LEFT, RIGHT, SUMS, STORE = "topic1", "topic2", "topic3", "sums"
DIFFERENCE = 10_000
TOPICS: Topics = {LEFT: (serde.STRING, serde.LONG), RIGHT: (serde.STRING, serde.LONG)}
OUTPUTS: Topics = {SUMS: (serde.STRING, serde.LONG)}


class Join:
    """Pairs each record with those of the other topic that are close in time."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.left, self.right = context.store("left"), context.store("right")

    def process(self, record: Record) -> None:
        if record.key is None or record.value is None:
            return
        metadata = self.context.record_metadata
        from_left = metadata is not None and metadata.topic == LEFT
        mine, others = (self.left, self.right) if from_left else (self.right, self.left)
        mine.put(record.key, record.value, record.timestamp)
        first, last = max(0, record.timestamp - DIFFERENCE), record.timestamp + DIFFERENCE
        for timestamp, other in others.fetch(record.key, first, last):
            pair = Record(record.key, record.value * other, max(record.timestamp, timestamp))
            self.context.forward(pair)


class Aggregate:
    """Adds the values up by key."""

    def init(self, context: ProcessorContext) -> None:
        self.context, self.sums = context, context.store(STORE)

    def process(self, record: Record) -> None:
        total, timestamp = self.sums.get(record.key) or ValueAndTimestamp(0, 0)
        total, timestamp = total + record.value, max(timestamp, record.timestamp)
        self.sums.put(record.key, ValueAndTimestamp(total, timestamp))
        self.context.forward(Record(record.key, total, timestamp))


def build() -> Topology:
    topology = (
        Topology()
        .add_source("Source1", LEFT, key=serde.STRING, value=serde.LONG)
        .add_source("Source2", RIGHT, key=serde.STRING, value=serde.LONG)
        .add_processor("Join", Join, "Source1", "Source2")
        .add_processor("Aggregate", Aggregate, "Join")
        .add_sink("Sink", SUMS, "Aggregate", key=serde.STRING, value=serde.LONG)
        .add_store(Stores.timestamped_key_value(STORE, key=serde.STRING, value=serde.LONG), "Aggregate")
    )
    for side in ("left", "right"):
        kept = Stores.window(
            side, 2 * DIFFERENCE, 2 * DIFFERENCE, key=serde.STRING, value=serde.LONG, retain_duplicates=True
        )
        topology.add_store(kept, "Join")
    return topology


def build_with_dsl() -> Topology:
    builder = StreamsBuilder()
    left = builder.stream(LEFT, key=serde.STRING, value=serde.LONG)
    right = builder.stream(RIGHT, key=serde.STRING, value=serde.LONG)
    products = left.join(right, lambda a, b: a * b, windows=JoinWindows.of(DIFFERENCE))
    every_sum = Materialized(STORE, caching=False)  # with caching, of several pairs at once only the last sum comes out
    sums = products.group_by_key(value=serde.LONG).reduce(lambda total, product: total + product, store=every_sum)
    sums.to_stream().to(SUMS, key=serde.STRING, value=serde.LONG)
    return builder.build()


def events(random: Random) -> Iterator[Event]:
    """Numbers under five keys, on both topics, up to two seconds out of order."""
    now = START
    while True:
        now += random.randint(100, 3_000)
        topic, key = random.choice((LEFT, RIGHT)), random.choice("abcde")
        yield Event(topic, key, random.randint(1, 9), now - random.randint(0, 2_000))
