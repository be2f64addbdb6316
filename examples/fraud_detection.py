"""Fraud detection: alerts for cards that are used too often, or for too much, within one minute.

The windows slide: for every transaction there is one that ends with it, so that no minute goes unseen. What is too
often and too much is said by rules, one for each kind of card, in a global table: every task has it whole, and whoever
writes to its topic changes the rules while the program runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from examples.events import START, Event, Topics
from headrace import SlidingWindows, StreamsBuilder, Topology, Windowed, serde, timestamps

APPLICATION = "fraud-detection"
TRANSACTIONS, RULES, ALERTS = "card-transactions", "fraud-rules", "fraud-alerts"
WINDOWS = SlidingWindows.of(60_000, grace=10_000)


@dataclass(frozen=True)
class Transaction:
    kind: str  # of card
    amount: int
    time: int


@dataclass(frozen=True)
class Rule:
    most_transactions: int
    highest_amount: int


@dataclass(frozen=True)
class Spending:
    kind: str = ""
    transactions: int = 0
    amount: int = 0
    last: int = 0  # the time of the latest transaction


@dataclass(frozen=True)
class Alert:
    reasons: tuple[str, ...]
    transactions: int
    amount: int
    time: int


TRANSACTION = serde.json_of(Transaction)
RULE = serde.json_of(Rule)
SPENDING = serde.json_of(Spending)
ALERT = serde.json_of(Alert)
TOPICS: Topics = {TRANSACTIONS: (serde.STRING, TRANSACTION), RULES: (serde.STRING, RULE)}
OUTPUTS: Topics = {ALERTS: (serde.STRING, ALERT)}


def add_transaction(_card: str, new: Transaction, so_far: Spending) -> Spending:
    return Spending(new.kind, so_far.transactions + 1, so_far.amount + new.amount, max(so_far.last, new.time))


def ends_with_a_transaction(card: Windowed, spending: Spending) -> bool:
    """One transaction changes several windows that overlap; this one has the whole minute before it."""
    return card.window.end == spending.last


def kind_of_card(_card: Windowed, spending: Spending) -> str:
    return spending.kind


def judge(spending: Spending, rule: Rule) -> Alert:
    too_many = spending.transactions > rule.most_transactions
    too_much = spending.amount > rule.highest_amount
    reasons = [reason for reason, holds in (("too many", too_many), ("too much", too_much)) if holds]
    return Alert(tuple(reasons), spending.transactions, spending.amount, spending.last)


def has_reasons(alert: Alert) -> bool:
    return bool(alert.reasons)


def build() -> Topology:
    builder = StreamsBuilder()
    rules = builder.global_table(RULES, key=serde.STRING, value=RULE, store="rules")
    (
        builder.stream(TRANSACTIONS, key=serde.STRING, value=TRANSACTION, timestamp=timestamps.field("time"))
        .group_by_key()
        .windowed_by(WINDOWS)
        .aggregate(Spending, add_transaction, store="spending", value=SPENDING)
        .to_stream()
        .filter(ends_with_a_transaction)
        .join(rules, judge, on=kind_of_card)
        .filter(has_reasons)
        .select_key(lambda card, alert: card.key)
        .to(ALERTS, key=serde.STRING, value=ALERT)
    )
    return builder.build()


def events(random: Random) -> Iterator[Event]:
    """The rules, then transactions of forty cards. Now and then a card is stolen, or a rule becomes stricter."""
    yield Event(RULES, "standard", Rule(4, 50_000), START)
    yield Event(RULES, "gold", Rule(8, 500_000), START)
    now = START
    while True:
        card = random.randint(1, 40)
        kind = "gold" if card % 4 == 0 else "standard"
        for _ in range(10 if random.random() < 0.02 else 1):
            now += random.randint(100, 2_000)
            yield Event(TRANSACTIONS, f"card-{card}", Transaction(kind, random.randint(100, 20_000), now), now)
        if random.random() < 0.002:
            yield Event(RULES, "standard", Rule(random.randint(3, 5), 50_000), now)
