"""Which measurements there are, in which order, and the file that keeps what they gave."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.peers.latency import CELLS as LATENCIES
from benchmarks.peers.outcome import Outcome
from benchmarks.peers.systems import SYSTEMS
from benchmarks.peers.workloads import NAMES

Cell = tuple[str, str, int]  # workload, system, cores
WORKLOADS = [*NAMES, *LATENCIES]
CORES = 1, 2
ONE_CORE = "W5"  # what one core and two are compared on


def cells(workloads: Sequence[str], systems: Sequence[str], cores: Sequence[int]) -> Iterator[Cell]:
    """Of a workload one system after another, so that they meet the same machine."""
    for workload in workloads or sorted(WORKLOADS, key=lambda name: (name.startswith("S"), name in LATENCIES)):
        for number in cores or ((2, 1) if workload == ONE_CORE else (2,)):
            some = [SYSTEMS[name] for name in systems or SYSTEMS]
            yield from ((workload, system.name, number) for system in some if system.is_measured_on(workload))


class Ledger:
    """A line of JSON for every outcome, written when it is there: a run that was interrupted can go on."""

    def __init__(self, path: Path, scale: float, *, resume: bool) -> None:
        self._path, self._scale = path, scale
        self.outcomes: dict[Cell, Outcome] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if not resume:
            path.write_text("", encoding="utf-8")
        elif path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                it = json.loads(line)
                if it.pop("scale") == scale:
                    self._keep(Outcome(**it))

    def _keep(self, outcome: Outcome) -> None:
        self.outcomes[outcome.cell] = outcome

    def add(self, outcome: Outcome) -> None:
        self._keep(outcome)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"scale": self._scale, **outcome.as_json()}) + "\n")
