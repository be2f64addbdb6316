"""Stock statistics: the lowest ask, the number of trades and the average ask of every stock, over five seconds.

The windows are five seconds long and a new one begins every second, so that each trade counts in five of them. The
results are kept in a store that can be queried, and written to a topic with every trade.
"""

from collections.abc import Iterator
from random import Random

from msgspec import Struct

from examples.events import START, Event, Topics
from headrace import StreamsBuilder, TimeWindows, Topology, serde

APPLICATION = "stockstat"
TRADES, STATISTICS, STORE = "stocks", "stockstats-output", "trade-aggregates"
WINDOWS = TimeWindows.of(5_000, advance=1_000)


class Trade(Struct, frozen=True):
    type: str  # ASK
    ticker: str
    price: float
    size: int


def encode_trade(trade: Trade) -> bytes:
    return f"{trade.type},{trade.ticker},{trade.price},{trade.size}".encode()


def decode_trade(raw: bytes) -> Trade:
    kind, ticker, price, size = raw.decode().split(",")
    return Trade(kind, ticker, float(price), int(size))


class Statistics(Struct, frozen=True):
    minimum: float = 0.0
    trades: int = 0
    total: float = 0.0
    average: float = 0.0


TRADE = serde.serde_of(encode_trade, decode_trade, name="trade", immutable=True)
WINDOWED_TICKER = serde.windowed(serde.STRING, WINDOWS.size)
STATISTICS_VALUE = serde.json_of(Statistics)
TOPICS: Topics = {TRADES: (serde.STRING, TRADE)}
OUTPUTS: Topics = {STATISTICS: (WINDOWED_TICKER, STATISTICS_VALUE)}


def add_trade(_ticker: str, trade: Trade, so_far: Statistics) -> Statistics:
    trades, total = so_far.trades + 1, so_far.total + trade.price
    minimum = min(so_far.minimum, trade.price) if so_far.trades else trade.price
    return Statistics(minimum, trades, total, total / trades)


def build() -> Topology:
    builder = StreamsBuilder()
    (
        builder.stream(TRADES, key=serde.STRING, value=TRADE)
        .group_by_key()
        .windowed_by(WINDOWS)
        .aggregate(Statistics, add_trade, store=STORE, value=STATISTICS_VALUE)
        .to_stream()
        .to(STATISTICS)
    )
    return builder.build()


TICKERS = ("MMM", "ABT", "ABBV", "ACN", "ATVI", "AYI", "ADBE", "AAP", "AES", "AET")


def events(random: Random) -> Iterator[Event]:
    """Twenty trades a second of ten stocks, whose prices wander."""
    now, prices = START, {ticker: random.uniform(50, 150) for ticker in TICKERS}
    while True:
        ticker = random.choice(TICKERS)
        prices[ticker] = max(1.0, prices[ticker] + random.gauss(0, 0.5))
        yield Event(TRADES, ticker, Trade("ASK", ticker, round(prices[ticker], 2), random.randint(1, 100)), now)
        now += 50
