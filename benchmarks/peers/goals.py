"""How Headrace stands beside the others, and what it is to reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from benchmarks.peers.cells import LATENCIES, Cell
from benchmarks.peers.outcome import Outcome
from benchmarks.peers.systems import BARE, FAUST, HEADRACE, KAFKA_STREAMS, QUIX
from benchmarks.peers.workloads import NAMES

Outcomes = Mapping[Cell, Outcome]
# Times the records a second of another, on the workloads with a W.
TIMES = {KAFKA_STREAMS: {"W1": 5.0, "W2": 3.0, "W4": 1.5, "W5": 3.4}, QUIX: {"W4": 3.0}, FAUST: {}}
USUALLY = {KAFKA_STREAMS: 2.0, QUIX: 5.0, FAUST: 50.0}
# Times the p50 and the p99 of Kafka Streams as it comes, at most.
P50 = {"latency": 0.5, "latency-1": 0.4, "latency-2": 0.35}
P99 = {"latency": 0.6}
START = 6.0  # seconds from the start to the first output


class Goal(NamedTuple):
    text: str
    reached: float
    wanted: float
    at_most: bool = False

    @property
    def is_met(self) -> bool:
        return self.reached <= self.wanted if self.at_most else self.reached >= self.wanted


def times(outcomes: Outcomes, cell: Cell) -> float | None:
    """How often Headrace's speed is that of this cell; of latency, how often its p50 is this one's."""
    workload, _, cores = cell
    ours, theirs = outcomes.get((workload, HEADRACE, cores)), outcomes.get(cell)
    if ours is None or theirs is None:
        return None
    if ours.latency and theirs.latency:
        return ours.latency[0] / theirs.latency[0]
    return ours.speed / theirs.speed if ours.speed and theirs.speed else None


def wanted(cell: Cell) -> float | None:
    """The goal for `times`: at least so much; of latency, at most."""
    workload, system, cores = cell
    if workload in LATENCIES:
        return P50[workload] if system == KAFKA_STREAMS else None
    if workload.startswith("S") or cores == 1 or system not in TIMES:
        return None
    return TIMES[system].get(workload, USUALLY[system])


def goals(outcomes: Outcomes) -> Iterator[Goal]:
    for cell in outcomes:
        reached, target = times(outcomes, cell), wanted(cell)
        if reached is not None and target is not None:
            is_latency = cell[0] in LATENCIES
            what = f"{LATENCIES[cell[0]].title}: p50" if is_latency else f"{cell[0]}: records/s"
            yield Goal(f"{what}, times {cell[1]}'s", reached, target, at_most=is_latency)
    for workload, target in P99.items():
        ours, theirs = (outcomes.get((workload, system, 2)) for system in (HEADRACE, KAFKA_STREAMS))
        if ours is not None and theirs is not None and ours.latency and theirs.latency:
            what = f"{LATENCIES[workload].title}: p99, times {KAFKA_STREAMS}'s"
            yield Goal(what, ours.latency[1] / theirs.latency[1], target, at_most=True)
    for workload in LATENCIES:
        ours = outcomes.get((workload, HEADRACE, 2))
        if ours is not None and ours.start_up is not None and not ours.problem:
            yield Goal(
                f"{LATENCIES[workload].title}: start to first output, seconds", ours.start_up, START, at_most=True
            )
    for workload in NAMES[:5]:
        cpu = _cpu(outcomes, workload, KAFKA_STREAMS)
        if cpu is not None:
            yield Goal(f"{workload}: CPU of a record, times {KAFKA_STREAMS}'s", cpu, 1.0, at_most=True)
    limit = _cpu(outcomes, "W5", BARE)
    if limit is not None:
        yield Goal("W5: records a CPU second, times the bare loop's", 1 / limit, 0.5)


def _cpu(outcomes: Outcomes, workload: str, system: str) -> float | None:
    """How often Headrace's CPU time of a record is that of another."""
    ours, theirs = outcomes.get((workload, HEADRACE, 2)), outcomes.get((workload, system, 2))
    if ours is None or theirs is None or not ours.cpu_per_million or not theirs.cpu_per_million:
        return None
    return ours.cpu_per_million / theirs.cpu_per_million
