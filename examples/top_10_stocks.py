"""Top 10 stocks: which ten stocks gained most today?

Two phases. The gain or loss of the day is computed per symbol, in as many tasks as there are partitions. No one of
them sees all stocks; so the gains, of which there are far fewer than trades, go on to a topic with one partition, and
one task there keeps the list. The list is a table under the symbols: a stock that falls out is deleted from it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from random import Random

from examples.events import START, Event, Topics
from headrace import DailyWindows, ProcessorContext, Record, Stores, StreamsBuilder, Topology, Windowed, serde

APPLICATION = "top-10-stocks"
TRADES, TOP = "trades", "top-10-stocks"
GAINS_STORE, TOP_STORE = "gains", "top-10"
DAYS = DailyWindows.of("America/New_York")
LENGTH = 10


@dataclass(frozen=True)
class Trade:
    price: float


@dataclass(frozen=True)
class Day:
    first: float = 0.0  # 0: there was no trade yet
    last: float = 0.0


@dataclass(frozen=True)
class Gain:
    day: int  # when it began
    percent: float


@dataclass(frozen=True)
class Place:
    rank: int
    percent: float


TRADE = serde.json_of(Trade)
DAY = serde.json_of(Day)
GAIN = serde.json_of(Gain)
PLACE = serde.json_of(Place)
TOPICS: Topics = {TRADES: (serde.STRING, TRADE)}
OUTPUTS: Topics = {TOP: (serde.STRING, PLACE)}


def add_trade(_symbol: str, trade: Trade, day: Day) -> Day:
    return Day(day.first or trade.price, trade.price)


def gain_of_the_day(symbol: Windowed, day: Day) -> tuple[str, Gain]:
    return symbol.key, Gain(symbol.window.start, round(100 * (day.last - day.first) / day.first, 2))


def best_of(gains: Iterable[tuple[str, Gain]]) -> dict[str, Place]:
    """The best stocks of the latest day; of equal ones the first by name."""
    gains = list(gains)
    today = max(gain.day for _, gain in gains)
    best = nsmallest(LENGTH, ((-gain.percent, symbol) for symbol, gain in gains if gain.day == today))
    return {symbol: Place(rank, -loss) for rank, (loss, symbol) in enumerate(best, start=1)}


class TopTen:
    """Keeps the gains of all stocks, and tells what changes in the list of the best."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.gains, self.listed = context.store(GAINS_STORE), context.store(TOP_STORE)

    def process(self, record: Record) -> None:
        known = self.gains.get(record.key)
        if known is not None and known.day > record.value.day:
            return  # yesterday's news
        self.gains.put(record.key, record.value)
        listed, best = dict(self.listed.all()), best_of(self.gains.all())
        for symbol in [*(symbol for symbol in listed if symbol not in best), *best]:
            place = best.get(symbol)
            if place != listed.get(symbol):
                self.listed.put(symbol, place)
                self.context.forward(record.with_key(symbol).with_value(place))


def build() -> Topology:
    builder = StreamsBuilder()
    builder.add_store(Stores.key_value(GAINS_STORE, key=serde.STRING, value=GAIN))
    builder.add_store(Stores.key_value(TOP_STORE, key=serde.STRING, value=PLACE))
    (
        builder.stream(TRADES, key=serde.STRING, value=TRADE)
        .group_by_key()
        .windowed_by(DAYS)
        .aggregate(Day, add_trade, store="days", value=DAY)
        .to_stream()
        .map(gain_of_the_day)
        .repartition(name="gains-of-all", partitions=1, key=serde.STRING, value=GAIN)
        .process(TopTen, GAINS_STORE, TOP_STORE)
        .to(TOP, key=serde.STRING, value=PLACE)
    )
    return builder.build()


SYMBOLS = [f"{letter}{letter}{other}" for letter in "ABCDE" for other in "WXYZ"]


def events(random: Random) -> Iterator[Event]:
    """A trade every two minutes or so, of twenty stocks."""
    now, prices = START, dict.fromkeys(SYMBOLS, 100.0)
    while True:
        symbol = random.choice(SYMBOLS)
        prices[symbol] *= random.gauss(1, 0.02)
        yield Event(TRADES, symbol, Trade(round(prices[symbol], 2)), now)
        now += random.randint(1, 240_000)
