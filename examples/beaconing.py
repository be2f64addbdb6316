"""Beaconing: which hosts call home at regular intervals?

Malware on a host asks its master for orders every few minutes, while people come and go as they please. For every pair
of hosts the program keeps how far apart its connections were, on average and in variance; a punctuator looks through
the pairs every minute of stream time and reports those that are too regular, each once. Pairs that have been silent
for two hours are forgotten.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import sqrt
from random import Random

from examples.events import START, Event, Topics
from headrace import ProcessorContext, Punctuation, Record, Stores, Topology, serde

APPLICATION = "beaconing"
CONNECTIONS, BEACONS, STORE = "connections", "beacons", "pairs"
MINUTE, HOUR = 60_000, 3_600_000
ENOUGH = 10  # intervals before a pair is judged
REGULAR = 0.1  # the standard deviation of the intervals, as a part of their mean


@dataclass(frozen=True)
class Pair:
    last: int
    intervals: int = 0
    mean: float = 0.0
    squares: float = 0.0  # the sum of the squared distances from the mean
    reported: bool = False


@dataclass(frozen=True)
class Beacon:
    period: float  # seconds
    jitter: float
    connections: int


PAIR = serde.json_of(Pair)
BEACON = serde.json_of(Beacon)
TOPICS: Topics = {CONNECTIONS: (serde.STRING, serde.LONG)}  # "host > host", bytes sent
OUTPUTS: Topics = {BEACONS: (serde.STRING, BEACON)}


def with_connection(pair: Pair, time: int) -> Pair:
    """One interval more, by Welford's method: mean and variance without a list of all intervals."""
    interval = time - pair.last
    count = pair.intervals + 1
    mean = pair.mean + (interval - pair.mean) / count
    squares = pair.squares + (interval - pair.mean) * (interval - mean)
    return replace(pair, last=time, intervals=count, mean=mean, squares=squares)


def jitter_of(pair: Pair) -> float:
    return sqrt(pair.squares / pair.intervals) / pair.mean


class Watch:
    """Keeps the rhythm of every pair, and reports the regular ones."""

    def init(self, context: ProcessorContext) -> None:
        self.context, self.pairs = context, context.store(STORE)
        context.schedule(MINUTE, Punctuation.STREAM_TIME, self.look)

    def process(self, record: Record) -> None:
        pair = self.pairs.get(record.key)
        if pair is None:
            self.pairs.put(record.key, Pair(record.timestamp))
        elif record.timestamp > pair.last:
            self.pairs.put(record.key, with_connection(pair, record.timestamp))

    def look(self, now: int) -> None:
        for hosts, pair in list(self.pairs.all()):
            if pair.last <= now - 2 * HOUR:
                self.pairs.delete(hosts)
            elif not pair.reported and pair.intervals >= ENOUGH and jitter_of(pair) <= REGULAR:
                beacon = Beacon(round(pair.mean / 1000, 1), round(jitter_of(pair), 3), pair.intervals + 1)
                self.context.forward(Record(hosts, beacon, now))
                self.pairs.put(hosts, replace(pair, reported=True))


def build() -> Topology:
    return (
        Topology()
        .add_source("connections", CONNECTIONS, key=serde.STRING, value=serde.LONG)
        .add_processor("watch", Watch, "connections")
        .add_store(Stores.key_value(STORE, key=serde.STRING, value=PAIR), "watch")
        .add_sink("beacons", BEACONS, "watch", key=serde.STRING, value=BEACON)
    )


def events(random: Random) -> Iterator[Event]:
    """Ten hosts talk to three sites at random; two of them also call home, every five and every seven minutes."""
    now, next_call = START, {"10.0.0.3": START, "10.0.0.8": START}
    period = {"10.0.0.3": 5 * MINUTE, "10.0.0.8": 7 * MINUTE}
    while True:
        now += random.randint(1_000, MINUTE)
        for host, due in next_call.items():
            if due <= now:
                yield Event(CONNECTIONS, f"{host} > home.example", 64, due)
                next_call[host] = due + period[host] + random.randint(-5_000, 5_000)
        pair = f"10.0.0.{random.randint(1, 10)} > site-{random.randint(1, 3)}.example"
        yield Event(CONNECTIONS, pair, random.randint(200, 9_000), now)
