"""Read, process, write: payments in many currencies become payments in euros.

`in_euros` is the whole job. `run_by_hand` is the loop that one would write oneself: read, process, write, commit. After
a crash between the last two steps, payments are written twice. `build` says the same in the DSL, which brings along
what the loop has to see to, and what it lacks: each payment comes out once, also after a crash.

The loop by hand, in as many processes as there are partitions: python -m examples.read_process_write file:DIRECTORY
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from examples.events import START, Event, Topics
from headrace import Consumer, Producer, StreamsBuilder, Topology, serde

APPLICATION = "read-process-write"
PAYMENTS, IN_EUROS = "payments", "payments-in-euros"
GROUP = "read-process-write-by-hand"
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


def run_by_hand(log: str, output: str = IN_EUROS, *, idle: int = 1_000) -> int:
    """Runs until nothing came for `idle` ms; gives how many payments were read. Members of the group share the work."""
    read = 0
    with (
        Consumer(
            log, GROUP, key=serde.STRING, value=PAYMENT, auto_offset_reset="earliest", auto_commit=False
        ) as consumer,
        Producer(log, key=serde.STRING, value=PAYMENT) as producer,
    ):
        consumer.subscribe(PAYMENTS)
        while payments := consumer.poll(idle):
            for record in payments:
                payment = in_euros(record.value)
                if payment is not None:
                    producer.send(output, record.key, payment, timestamp=record.timestamp, headers=record.headers)
            producer.flush()
            consumer.commit()
            read += len(payments)
    return read


def events(random: Random) -> Iterator[Event]:
    """Payments of fifty customers; a few are in shells, which nobody takes."""
    now = START
    while True:
        payment = Payment(random.randint(1, 100_000), random.choice([*EUROS_FOR, "SHELLS"]))
        yield Event(PAYMENTS, f"customer-{random.randint(1, 50)}", payment, now)
        now += random.randint(1, 100)


if __name__ == "__main__":
    print(run_by_hand(sys.argv[1]), "payments")
