"""Account: the balance is what all events of an account, in their order, come to.

Deposits and spendings are facts; nothing is ever taken back. A mistake is corrected by a further event, a cancellation.
Whoever spends more than there is pays an overdraft fee, so the order of the events matters: the same events in another
order may cost a fee, and a cancellation later on gives the money back, but not the fee.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from examples.events import START, Event, Topics
from headrace import StreamsBuilder, Topology, serde

APPLICATION = "account"
ENTRIES, ACCOUNTS, STORE = "account-entries", "accounts", "accounts"
OVERDRAFT_FEE = 25
CANCELLABLE = 20  # entries of an account
DEPOSIT, SPENDING, CANCELLATION = "deposit", "spending", "cancellation"


@dataclass(frozen=True)
class Entry:
    id: str
    kind: str
    amount: int = 0
    cancels: str = ""  # the id of another entry


@dataclass(frozen=True)
class Account:
    balance: int = 0
    fees: int = 0
    amounts: dict[str, int] = field(default_factory=dict)  # by id, of the latest entries: those can be cancelled


ENTRY = serde.json_of(Entry)
ACCOUNT = serde.json_of(Account)
TOPICS: Topics = {ENTRIES: (serde.STRING, ENTRY)}
OUTPUTS: Topics = {ACCOUNTS: (serde.STRING, ACCOUNT)}


def book(_number: str, entry: Entry, account: Account) -> Account:
    if entry.kind == CANCELLATION:
        amounts = {id: amount for id, amount in account.amounts.items() if id != entry.cancels}
        return Account(account.balance - account.amounts.get(entry.cancels, 0), account.fees, amounts)
    amount = entry.amount if entry.kind == DEPOSIT else -entry.amount
    balance = account.balance + amount
    amounts = dict([*account.amounts.items(), (entry.id, amount)][-CANCELLABLE:])
    if entry.kind == SPENDING and balance < 0:
        return Account(balance - OVERDRAFT_FEE, account.fees + OVERDRAFT_FEE, amounts)
    return Account(balance, account.fees, amounts)


def build() -> Topology:
    builder = StreamsBuilder()
    (
        builder.stream(ENTRIES, key=serde.STRING, value=ENTRY)
        .group_by_key()
        .aggregate(Account, book, store=STORE, value=ACCOUNT)
        .to_stream()
        .to(ACCOUNTS)
    )
    return builder.build()


def events(random: Random) -> Iterator[Event]:
    """Deposits and spendings on five accounts; one event in ten cancels one of the latest of its account."""
    now, number, latest = START, 0, {f"account-{n}": list[str]() for n in range(1, 6)}
    while True:
        number, now = number + 1, now + random.randint(1, 60_000)
        account, ids = random.choice(list(latest.items()))
        if ids and random.random() < 0.1:
            entry = Entry(f"e{number}", CANCELLATION, cancels=ids.pop())
        else:
            entry = Entry(f"e{number}", random.choice((DEPOSIT, SPENDING)), random.randint(1, 200))
            ids[:] = [*ids, entry.id][-CANCELLABLE:]
        yield Event(ENTRIES, account, entry, now)
