"""Customer service: one reservation event, and every system does its part of it at once.

A hotel's reservation becomes a confirmation for the guest, a charge for the card and a receipt for the books, each on
its own topic. From the same events, and from the calls that guests make, a table is kept with all that the desk needs
to know about a guest. Whoever answers the phone sees the reservation that was made seconds ago.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from examples.events import START, Event, Topics
from headrace import StreamsBuilder, Topology, serde

APPLICATION = "customer-service"
RESERVATIONS, CALLS = "reservations", "calls"
CONFIRMATIONS, CHARGES, RECEIPTS, GUESTS = "confirmations", "card-charges", "receipts", "guests"
STORE = "desk"


@dataclass(frozen=True)
class Reservation:
    number: int
    hotel: str
    nights: int
    price: int  # of a night
    card: str


@dataclass(frozen=True)
class Charge:
    card: str
    amount: int


@dataclass(frozen=True)
class Receipt:
    reservation: int
    amount: int


@dataclass(frozen=True)
class Guest:
    """What the desk sees."""

    reservations: tuple[int, ...] = ()  # the last five
    spent: int = 0
    next_hotel: str = ""
    calls: int = 0
    last_call: str = ""


RESERVATION = serde.json_of(Reservation)
CHARGE = serde.json_of(Charge)
RECEIPT = serde.json_of(Receipt)
GUEST = serde.json_of(Guest)
TOPICS: Topics = {RESERVATIONS: (serde.STRING, RESERVATION), CALLS: (serde.STRING, serde.STRING)}
OUTPUTS: Topics = {
    CONFIRMATIONS: (serde.STRING, serde.STRING),
    CHARGES: (serde.STRING, CHARGE),
    RECEIPTS: (serde.STRING, RECEIPT),
    GUESTS: (serde.STRING, GUEST),
}


def amount_of(reservation: Reservation) -> int:
    return reservation.nights * reservation.price


def confirmation_of(guest: str, reservation: Reservation) -> str:
    return f"Dear {guest}, {reservation.hotel} expects you for {reservation.nights} nights (no. {reservation.number})."


def charge_of(reservation: Reservation) -> Charge:
    return Charge(reservation.card, amount_of(reservation))


def receipt_of(reservation: Reservation) -> Receipt:
    return Receipt(reservation.number, amount_of(reservation))


def add_reservation(_name: str, reservation: Reservation, guest: Guest) -> Guest:
    numbers = (*guest.reservations, reservation.number)[-5:]
    spent = guest.spent + amount_of(reservation)
    return replace(guest, reservations=numbers, spent=spent, next_hotel=reservation.hotel)


def add_call(_name: str, subject: str, guest: Guest) -> Guest:
    return replace(guest, calls=guest.calls + 1, last_call=subject)


def build() -> Topology:
    builder = StreamsBuilder()
    reservations = builder.stream(RESERVATIONS, key=serde.STRING, value=RESERVATION)
    calls = builder.stream(CALLS, key=serde.STRING, value=serde.STRING)
    reservations.map_values(confirmation_of).to(CONFIRMATIONS, value=serde.STRING)
    reservations.map_values(charge_of).to(CHARGES, value=CHARGE)
    reservations.map_values(receipt_of).to(RECEIPTS, value=RECEIPT)
    (
        reservations.group_by_key()
        .cogroup(add_reservation)
        .cogroup(calls.group_by_key(), add_call)
        .aggregate(Guest, store=STORE, value=GUEST)
        .to_stream()
        .to(GUESTS)
    )
    return builder.build()


HOTELS = ("Bellevue", "Seeblick", "Miramar")
SUBJECTS = ("wants an invoice", "arrives late", "asks for a cot")


def events(random: Random) -> Iterator[Event]:
    """Thirty guests reserve rooms, and call."""
    now, number = START, 0
    while True:
        guest = random.randint(1, 30)
        if random.random() < 0.6:
            number += 1
            stay = Reservation(number, random.choice(HOTELS), random.randint(1, 7), 100, f"card-{guest}")
            yield Event(RESERVATIONS, f"guest-{guest}", stay, now)
        else:
            yield Event(CALLS, f"guest-{guest}", random.choice(SUBJECTS), now)
        now += random.randint(1, 1_000)
