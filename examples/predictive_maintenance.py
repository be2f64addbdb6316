"""Predictive maintenance: order the spare part before the machine breaks, and order it once.

Every machine reports its vibration. The limit for its model is in a global table. A part is ordered when the limit is
reached, or when the trend of the last readings says that it will be within a day. What has been ordered is in the same
store as the readings, so that the next reading, or a restart, orders nothing twice; a repair ends the order.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from statistics import linear_regression

from examples.events import START, Event, Topics
from headrace import ProcessorContext, Record, Stores, StreamsBuilder, Topology, serde

APPLICATION = "predictive-maintenance"
TELEMETRY, REPAIRS, LIMITS, ORDERS = "telemetry", "repairs", "limits", "spare-part-orders"
HOUR = 3_600_000
AHEAD = 24 * HOUR
READINGS = 12  # that the trend is taken of


@dataclass(frozen=True)
class Reading:
    model: str
    vibration: float


@dataclass(frozen=True)
class Repair:
    part: str


@dataclass(frozen=True)
class Limit:
    vibration: float
    part: str


@dataclass(frozen=True)
class Machine:
    times: tuple[int, ...] = ()
    vibrations: tuple[float, ...] = ()
    orders: int = 0
    waiting: bool = False  # for a part that has been ordered


@dataclass(frozen=True)
class PartOrder:
    number: int
    part: str
    reason: str


READING = serde.json_of(Reading)
REPAIR = serde.json_of(Repair)
LIMIT = serde.json_of(Limit)
MACHINE = serde.json_of(Machine)
PART_ORDER = serde.json_of(PartOrder)
TOPICS: Topics = {
    TELEMETRY: (serde.STRING, READING),
    REPAIRS: (serde.STRING, REPAIR),
    LIMITS: (serde.STRING, LIMIT),
}
OUTPUTS: Topics = {ORDERS: (serde.STRING, PART_ORDER)}


def with_reading(machine: Machine, time: int, vibration: float) -> Machine:
    times = (*machine.times, time)[-READINGS:]
    return replace(machine, times=times, vibrations=(*machine.vibrations, vibration)[-READINGS:])


def reason_to_order(machine: Machine, limit: Limit) -> str | None:
    if machine.vibrations[-1] >= limit.vibration:
        return "limit reached"
    if len(machine.times) == READINGS and all(earlier < later for earlier, later in pairwise(machine.times)):
        trend = linear_regression(machine.times, machine.vibrations)
        if trend.slope * (machine.times[-1] + AHEAD) + trend.intercept >= limit.vibration:
            return "limit expected"
    return None


class Maintain:
    """Watches the machines, one by one."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.machines, self.limits = context.store("machines"), context.store("limits")

    def process(self, record: Record) -> None:
        machine = self.machines.get(record.key) or Machine()
        if isinstance(record.value, Repair):
            self.machines.put(record.key, Machine(orders=machine.orders))
            return
        machine = with_reading(machine, record.timestamp, record.value.vibration)
        limit = self.limits.get(record.value.model)
        if limit is not None and not machine.waiting:
            reason = reason_to_order(machine, limit.value)
            if reason is not None:
                machine = replace(machine, orders=machine.orders + 1, waiting=True)
                self.context.forward(record.with_value(PartOrder(machine.orders, limit.value.part, reason)))
        self.machines.put(record.key, machine)


def build() -> Topology:
    builder = StreamsBuilder()
    builder.global_table(LIMITS, key=serde.STRING, value=LIMIT, store="limits")
    builder.add_store(Stores.key_value("machines", key=serde.STRING, value=MACHINE))
    telemetry = builder.stream(TELEMETRY, key=serde.STRING, value=READING)
    repairs = builder.stream(REPAIRS, key=serde.STRING, value=REPAIR)
    telemetry.merge(repairs).process(Maintain, "machines").to(ORDERS, key=serde.STRING, value=PART_ORDER)
    return builder.build()


def events(random: Random) -> Iterator[Event]:
    """Six machines report every hour and wear out, each at its own pace; a worn one is repaired some days later."""
    yield Event(LIMITS, "press", Limit(8.0, "bearing"), START)
    yield Event(LIMITS, "lathe", Limit(5.0, "spindle"), START)
    now, wear = START, {f"machine-{n}": random.uniform(1, 4) for n in range(1, 7)}
    while True:
        for machine, worn in wear.items():
            now += HOUR // len(wear)
            model, part, limit = ("press", "bearing", 8.0) if machine < "machine-4" else ("lathe", "spindle", 5.0)
            if worn > limit - 0.5 and random.random() < 0.05:
                wear[machine] = 1.0
                yield Event(REPAIRS, machine, Repair(part), now)
            else:
                wear[machine] = worn + random.uniform(0, 0.15)
                yield Event(TELEMETRY, machine, Reading(model, round(worn, 2)), now)
