"""Read, process, write: payments in many currencies become payments in euros.

`in_euros` is the whole job. `build` runs it in the DSL, which brings along what a program of one's own has to see to:
which partitions to read, where it had got to, and that each payment comes out once, also after a crash.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from examples.events import START, Event, Topics
from headrace import StreamsBuilder, Topology, serde

APPLICATION = "read-process-write"
PAYMENTS, IN_EUROS = "payments", "payments-in-euros"
EUROS_FOR = {"EUR": 100, "USD": 92, "GBP": 117, "CHF": 104}  # a hundred of the currency


@dataclass(frozen=True)
class Payment:
    amount: int  # cents
    currency: str


PAYMENT = serde.json_of(Payment)
TOPICS: Topics = {PAYMENTS: (serde.STRING, PAYMENT)}
OUTPUTS: Topics = {IN_EUROS: (serde.STRING, PAYMENT)}


def in_euros(payment: Payment) -> Payment | None:
    """The payment in euros; None for a currency that is not known."""
    rate = EUROS_FOR.get(payment.currency)
    return None if rate is None else Payment(payment.amount * rate // 100, "EUR")


def is_known(payment: Payment | None) -> bool:
    return payment is not None


def build() -> Topology:
    builder = StreamsBuilder()
    payments = builder.stream(PAYMENTS, key=serde.STRING, value=PAYMENT)
    payments.map_values(in_euros).filter(is_known).to(IN_EUROS, key=serde.STRING, value=PAYMENT)
    return builder.build()


def events(random: Random) -> Iterator[Event]:
    """Payments of fifty customers; a few are in shells, which nobody takes."""
    now = START
    while True:
        payment = Payment(random.randint(1, 100_000), random.choice([*EUROS_FOR, "SHELLS"]))
        yield Event(PAYMENTS, f"customer-{random.randint(1, 50)}", payment, now)
        now += random.randint(1, 100)
