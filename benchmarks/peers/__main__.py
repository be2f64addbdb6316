"""Headrace beside its peers: one command sets everything up, measures, prints one table, writes it to results.md.

    python -m benchmarks.peers [--workload W5] [--system headrace] [--cores 2] [--scale 0.01] [--json FILE] [--resume]

Without a choice everything is measured, which takes more than an hour, and the section "peers" of benchmarks/results.md
is written. What was chosen goes to a section of its own, if --section names one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import KafkaException
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.peers.cells import CORES, LATENCIES, WORKLOADS, Cell, Ledger, cells
from benchmarks.peers.goals import goals
from benchmarks.peers.latency import latency
from benchmarks.peers.measure import throughput
from benchmarks.peers.outcome import Outcome
from benchmarks.peers.results import markdown, markdown_of_choice
from benchmarks.peers.room import prepare
from benchmarks.peers.systems import BUILD, SYSTEMS
from benchmarks.peers.table import notes, table
from benchmarks.peers.workload import Workload
from benchmarks.peers.workloads import workload
from benchmarks.report import write_section
from headrace.testing import KafkaBroker

BROKER_JVM = ("-Xmx1g", "-XX:+UseG1GC", "-Djava.awt.headless=true")  # as it comes, not as for short tests


class Bench:
    """What measurements have in common: the broker, the commands of systems that are set up, the current workload."""

    def __init__(self, bootstrap: str, scale: float) -> None:
        self._bootstrap, self._scale = bootstrap, scale
        self._commands: dict[str, list[str] | str] = {}
        self._workload: Workload | None = None

    def measure(self, cell: Cell, say: Callable[[str], None]) -> Outcome:
        name, system_name, cores = cell
        system = SYSTEMS[system_name]
        if reason := system.impossible.get(name):
            return Outcome(*cell, problem=f"cannot: {reason}")
        say("is set up")
        command = self._command(system_name)
        if isinstance(command, str):
            return Outcome(*cell, problem=f"failed: could not be set up: {command}")
        try:
            if name in LATENCIES:
                return latency(self._bootstrap, command, system, name, self._scale, cores, say)
            return throughput(self._bootstrap, command, system, self._given(name), cores, say)
        except KafkaException as error:
            return Outcome(*cell, problem=f"failed: the broker: {error.args[0].str()}")

    def _command(self, system: str) -> list[str] | str:
        if system not in self._commands:
            try:
                self._commands[system] = SYSTEMS[system].set_up()
            except RuntimeError as error:
                self._commands[system] = str(error)
        return self._commands[system]

    def _given(self, name: str) -> Workload:
        if self._workload is None or self._workload.name != name:
            self._workload = workload(name, self._scale)
        return self._workload


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", default=[], choices=WORKLOADS)
    parser.add_argument("--system", action="append", default=[], choices=list(SYSTEMS))
    parser.add_argument("--cores", action="append", default=[], type=int, choices=CORES)
    parser.add_argument("--scale", type=float, default=1.0, help="a share of the records, for a trial")
    parser.add_argument("--json", type=Path, default=BUILD / "outcomes.jsonl", help="where outcomes are kept")
    parser.add_argument("--section", help="the section of results.md that gets what was chosen: kafka_streams")
    parser.add_argument("--resume", action="store_true", help="what is in the file already is not measured again")
    return parser.parse_args()


def measure_all(chosen: list[Cell], ledger: Ledger, scale: float, console: Console) -> None:
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    BUILD.mkdir(parents=True, exist_ok=True)
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("the broker starts", total=len(chosen))
        with (
            TemporaryDirectory(dir=BUILD, prefix="broker-") as folder,
            KafkaBroker(folder, java_options=BROKER_JVM) as broker,
        ):
            prepare(broker.bootstrap)
            bench = Bench(broker.bootstrap, scale)
            for cell in chosen:
                name = f"{cell[0]} {SYSTEMS[cell[1]].title}{', one core' if cell[2] == 1 else ''}"
                if cell not in ledger.outcomes:
                    outcome = bench.measure(
                        cell, lambda what, name=name: progress.update(task, description=f"{name} {what}")
                    )
                    ledger.add(outcome)
                    progress.console.print(f"{name}: {told(outcome)}", highlight=False)
                progress.advance(task)


def told(outcome: Outcome) -> str:
    if outcome.problem:
        return f"{outcome.problem}" + (f" ({outcome.log})" if outcome.log else "")
    if outcome.latency:
        p50, p99, p999 = outcome.latency
        start = f"first output after {outcome.start_up or 0:.1f} s"
        return f"p50 {p50:,.0f} ms, p99 {p99:,.0f} ms, p99.9 {p999:,.0f} ms, {start}"
    speed, cpu = outcome.speed or 0, outcome.cpu_per_million or 0
    return f"{speed:,.0f} records/s, {cpu:,.2f} CPU s per million, start-up {outcome.start_up or 0:.1f} s"


def main() -> None:
    given, console = options(), Console()
    if not console.is_terminal:
        console.width = 120  # in a file or a pipe
    ledger = Ledger(given.json, given.scale, resume=given.resume)
    chosen = list(cells(given.workload, given.system, given.cores))
    measure_all(chosen, ledger, given.scale, console)
    console.print(table(ledger.outcomes, given.scale))
    for note in notes(ledger.outcomes):
        console.print(f"- {note}", highlight=False)
    for goal in goals(ledger.outcomes):
        bound = f"{'≤' if goal.at_most else '≥'} {goal.wanted:g}"
        console.print(
            f"[{'green' if goal.is_met else 'red'}]{goal.text}: {goal.reached:.2f} ({bound})[/]", highlight=False
        )
    if given.scale == 1 and not (given.workload or given.system or given.cores):
        write_section("peers", markdown(ledger.outcomes, given.scale))
    elif given.section:
        write_section(given.section, markdown_of_choice(ledger.outcomes, given.scale, sys.argv[1:]))


if __name__ == "__main__":
    main()
