"""Runs the simulation: `python -m tests.simulation --seed 0 --runs 1000`, or `make test-simulation SEED= RUNS=`.

Seeds are run in as many processes as there are cores. A failure is made smaller, and printed with the command that
repeats it; `--trace` shows everything that happened.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.simulation.faults import KINDS
from tests.simulation.programs import FAMILIES
from tests.simulation.scheduler import Scheduler
from tests.simulation.shrinking import report
from tests.simulation.world import Limits, Outcome, simulate


def run_seeds(first: int, count: int, limits: Limits | None = None) -> tuple[list[Outcome], list[str]]:
    """Runs seeds in this process. Returns their outcomes, and the reports of those that fail."""
    logging.disable(logging.CRITICAL)  # faults make the classes under test write warnings
    outcomes: list[Outcome] = []
    failures: list[str] = []
    try:
        for seed in range(first, first + count):
            try:
                outcomes.append(simulate(seed, limits))
            except Exception as error:  # noqa: BLE001 - every error is one that a run has found
                failures.append(report(seed, error, limits))
    finally:
        logging.disable(logging.NOTSET)
    return outcomes, failures


def say(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def run_all(first: int, runs: int, limits: Limits) -> int:
    began, block = time.monotonic(), 25
    starts = range(first, first + runs, block)
    sizes = [min(block, first + runs - start) for start in starts]
    outcomes: list[Outcome] = []
    failures: list[str] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for some, failed in pool.map(partial(run_seeds, limits=limits), starts, sizes):
            outcomes += some
            failures += failed
            for failure in failed:
                say(failure)
    faults = sum((Counter(outcome.faults) for outcome in outcomes), Counter[str]())
    say(f"{runs} seeds from {first} on, {len(failures)} failed, in {time.monotonic() - began:.0f} s")
    say(f"  {sum(o.batches for o in outcomes)} batches, {sum(o.records for o in outcomes)} records compared")
    say(f"  {sum(o.takeovers for o in outcomes)} starts of an owner, {sum(o.seconds for o in outcomes) / 3600:.0f} h")
    happened = sum((Counter(outcome.happened) for outcome in outcomes), Counter[str]())
    say(f"  {', '.join(f'{what} {number}' for what, number in sorted(happened.items()))}")
    say(f"  {faults.total()} faults: {', '.join(f'{kind} {faults[kind]}' for kind in KINDS)}")
    return 1 if failures else 0


def show(seed: int, limits: Limits) -> int:
    """Runs one seed, and prints everything that happens."""
    notes = Scheduler.note

    def note(self: Scheduler, what: str) -> None:
        say(f"{self.now:.6f} {what}")
        notes(self, what)

    Scheduler.note = note
    simulate(seed, limits)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--runs", type=int, default=1000, help="how many seeds")
    parser.add_argument("--trace", action="store_true", help="run one seed and show what happens")
    parser.add_argument("--family", choices=FAMILIES, help="of the programs; without it the seed decides")
    parser.add_argument("--faults", type=int, default=Limits().faults)
    parser.add_argument("--records", type=int)
    parser.add_argument("--instances", type=int)
    parser.add_argument("--slots", type=int)
    parser.add_argument("--leave-out", default="", help="statements of the topology, one after the other")
    parser.add_argument("--without", default="", help="kinds of faults that do not happen")
    given = parser.parse_args()
    statements = tuple(int(some) for some in given.leave_out.split(",") if some)
    without = frozenset(kind for kind in given.without.split(",") if kind)
    limits = Limits(given.records, given.faults, without, given.instances, given.slots, statements, given.family)
    return show(given.seed, limits) if given.trace else run_all(given.seed, given.runs, limits)


if __name__ == "__main__":
    sys.exit(main())
