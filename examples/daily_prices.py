"""Daily prices: the lowest and the highest price of a stock on each day, and the moving average of its last ten trades.

A day is one of New York: it has 23 or 25 hours when the clocks change. What comes up to an hour late still counts for
its day.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from random import Random

from examples.events import START, Event, Topics
from headrace import DailyWindows, StreamsBuilder, Topology, serde

APPLICATION = "daily-prices"
TRADES, PRICES, STORE = "trades", "daily-prices", "prices-by-day"
DAYS = DailyWindows.of("America/New_York", grace=timedelta(hours=1))
AVERAGED = 10  # trades in the moving average


@dataclass(frozen=True)
class Trade:
    price: float
    size: int


@dataclass(frozen=True)
class DailyPrices:
    minimum: float
    maximum: float
    moving_average: float
    latest: tuple[float, ...]  # the prices that the average is of


TRADE = serde.json_of(Trade)
DAILY = serde.json_of(DailyPrices)
TOPICS: Topics = {TRADES: (serde.STRING, TRADE)}
OUTPUTS: Topics = {PRICES: (serde.windowed(serde.STRING, DAYS), DAILY)}


def no_prices() -> DailyPrices:
    return DailyPrices(float("inf"), float("-inf"), 0.0, ())


def add_price(_symbol: str, trade: Trade, day: DailyPrices) -> DailyPrices:
    latest = (*day.latest, trade.price)[-AVERAGED:]
    return DailyPrices(min(day.minimum, trade.price), max(day.maximum, trade.price), sum(latest) / len(latest), latest)


def build() -> Topology:
    builder = StreamsBuilder()
    (
        builder.stream(TRADES, key=serde.STRING, value=TRADE)
        .group_by_key()
        .windowed_by(DAYS)
        .aggregate(no_prices, add_price, store=STORE, value=DAILY)
        .to_stream()
        .to(PRICES)
    )
    return builder.build()


SYMBOLS = ("ACME", "BOLT", "CORK", "DUNE")


def events(random: Random) -> Iterator[Event]:
    """A trade every five minutes or so: some hundred trades of four stocks a day."""
    now, prices = START, {symbol: random.uniform(50, 150) for symbol in SYMBOLS}
    while True:
        symbol = random.choice(SYMBOLS)
        prices[symbol] = max(1.0, prices[symbol] * random.gauss(1, 0.01))
        yield Event(TRADES, symbol, Trade(round(prices[symbol], 2), random.randint(1, 500)), now)
        now += random.randint(1, 600_000)
