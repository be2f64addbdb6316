"""Value at risk: what may each portfolio lose in a day, with 95 % certainty, and is that more than it may?

Positions are joined with the price and the volatility of what they hold (a foreign-key join), and summed up per
portfolio: a new price changes all portfolios that hold the stock. Losses of different stocks are taken as independent,
so that their variances add up. When a portfolio passes its limit an order to rebalance goes out, one for each time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt
from random import Random

from examples.events import START, Event, Topics
from headrace import FixedKeyProcessorContext, FixedKeyRecord, Materialized, Stores, StreamsBuilder, Topology, serde

APPLICATION = "value-at-risk"
POSITIONS, PRICES, LIMITS = "positions", "prices", "risk-limits"
RISKS, REBALANCE = "value-at-risk", "rebalancing-orders"
PERCENT_OF_DEVIATION = 165  # 1.65 standard deviations: 95 % of days are better


@dataclass(frozen=True)
class Position:
    portfolio: str
    symbol: str
    pieces: int


@dataclass(frozen=True)
class Price:
    price: int  # dollars
    volatility: int  # per mille a day


@dataclass(frozen=True)
class Exposure:
    portfolio: str
    value: int
    deviation: int  # dollars a day


@dataclass(frozen=True)
class Risk:
    value: int = 0
    variance: int = 0
    at_risk: int = 0


@dataclass(frozen=True)
class Rebalance:
    at_risk: int
    limit: int
    sell_percent: int


POSITION = serde.json_of(Position)
PRICE = serde.json_of(Price)
EXPOSURE = serde.json_of(Exposure)
RISK = serde.json_of(Risk)
ORDER = serde.json_of(Rebalance)
TOPICS: Topics = {
    POSITIONS: (serde.STRING, POSITION),
    PRICES: (serde.STRING, PRICE),
    LIMITS: (serde.STRING, serde.LONG),
}
OUTPUTS: Topics = {RISKS: (serde.STRING, RISK), REBALANCE: (serde.STRING, ORDER)}


def exposure_of(position: Position, price: Price) -> Exposure:
    value = position.pieces * price.price
    return Exposure(position.portfolio, value, value * price.volatility // 1000)


def symbol_of(position: Position) -> str:
    return position.symbol


def under_portfolio(_position: str, exposure: Exposure) -> tuple[str, Exposure]:
    return exposure.portfolio, exposure


def risk_of(value: int, variance: int) -> Risk:
    return Risk(value, variance, isqrt(variance) * PERCENT_OF_DEVIATION // 100)


def add(_portfolio: str, exposure: Exposure, risk: Risk) -> Risk:
    return risk_of(risk.value + exposure.value, risk.variance + exposure.deviation**2)


def subtract(_portfolio: str, exposure: Exposure, risk: Risk) -> Risk:
    return risk_of(risk.value - exposure.value, risk.variance - exposure.deviation**2)


def to_rebalance(risk: Risk, limit: int) -> Rebalance:
    """What to sell so that the risk is at the limit again; nothing below it."""
    share = 0 if risk.at_risk <= limit else 100 - 100 * limit // risk.at_risk
    return Rebalance(risk.at_risk, limit, share)


class OncePerBreach:
    """Lets an order through when the limit is passed, and no other until the risk was below it again."""

    def init(self, context: FixedKeyProcessorContext) -> None:
        self.context, self.above = context, context.store("above-limit")

    def process(self, record: FixedKeyRecord) -> None:
        is_above = record.value is not None and record.value.sell_percent > 0
        if is_above and not self.above.get(record.key):
            self.context.forward(record)
        self.above.put(record.key, is_above)


def build() -> Topology:
    builder = StreamsBuilder()
    builder.add_store(Stores.key_value("above-limit", key=serde.STRING, value=serde.BOOLEAN))
    positions = builder.table(POSITIONS, key=serde.STRING, value=POSITION)
    prices = builder.table(PRICES, key=serde.STRING, value=PRICE)
    limits = builder.table(LIMITS, key=serde.STRING, value=serde.LONG)
    risks = (
        positions.join(prices, exposure_of, on=symbol_of, store=Materialized(value=EXPOSURE))
        .group_by(under_portfolio, key=serde.STRING, value=EXPOSURE)
        .aggregate(Risk, add, subtract, store="risks", value=RISK)
    )
    risks.to_stream().to(RISKS)
    orders = risks.join(limits, to_rebalance).to_stream().process_values(OncePerBreach, "above-limit")
    orders.to(REBALANCE, key=serde.STRING, value=ORDER)
    return builder.build()


def events(random: Random) -> Iterator[Event]:
    """Limits, then prices that wander, and positions that are opened, changed and closed."""
    now, prices = START, {symbol: random.randint(50, 150) for symbol in ("ACME", "BOLT", "CORK", "DUNE", "ECHO")}
    for portfolio in ("growth", "income", "mixed"):
        yield Event(LIMITS, portfolio, random.randint(2_000, 4_000), now)
    while True:
        now += random.randint(1, 500)
        symbol = random.choice(list(prices))
        if random.random() < 0.4:
            prices[symbol] = max(10, prices[symbol] + random.randint(-5, 5))
            yield Event(PRICES, symbol, Price(prices[symbol], random.randint(5, 40)), now)
        else:
            portfolio = random.choice(("growth", "income", "mixed"))
            position = Position(portfolio, symbol, random.randint(1, 600))
            yield Event(POSITIONS, f"{portfolio}/{symbol}", None if random.random() < 0.1 else position, now)
