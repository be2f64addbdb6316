"""How Headrace stands beside the others, and what it is to reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from benchmarks.peers.cells import LATENCY, Cell
from benchmarks.peers.outcome import Outcome
from benchmarks.peers.systems import BARE, FAUST, HEADRACE, KAFKA_STREAMS, QUIX
from benchmarks.peers.workloads import NAMES

Outcomes = Mapping[Cell, Outcome]
# Times the records a second of another, on the workloads with a W.
TIMES = {KAFKA_STREAMS: {"W4": 1.0}, QUIX: {"W4": 3.0}, FAUST: {}}
USUALLY = {KAFKA_STREAMS: 2.0, QUIX: 5.0, FAUST: 50.0}


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
    if workload == LATENCY:
        return 2.0 if system == KAFKA_STREAMS else None
    if workload.startswith("S") or cores == 1 or system not in TIMES:
        return None
    return TIMES[system].get(workload, USUALLY[system])


def goals(outcomes: Outcomes) -> Iterator[Goal]:
    for cell in outcomes:
        reached, target = times(outcomes, cell), wanted(cell)
        if reached is not None and target is not None:
            what = "p50 of the latency" if cell[0] == LATENCY else f"{cell[0]}: records/s"
            yield Goal(f"{what}, times {cell[1]}'s", reached, target, at_most=cell[0] == LATENCY)
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
