"""The one table: a row for every measurement."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from benchmarks.peers.cells import LATENCIES, Cell
from benchmarks.peers.goals import Outcomes, times, wanted
from benchmarks.peers.outcome import Outcome
from benchmarks.peers.systems import SYSTEMS
from benchmarks.peers.workloads import workload

COLUMNS = (
    "",
    "records/s",
    "MB/s",
    "CPU s/M",
    "start s",
    "p50 ms",
    "p99",
    "p99.9",
    "times this",
    "goal",
)


def title_of(name: str, cores: int, scale: float) -> str:
    if name in LATENCIES:
        return LATENCIES[name].title
    prefix = "" if name.startswith("S") else f"{name} "
    return f"{prefix}{workload(name, scale).title}" + (", one core" if cores == 1 else "")


def sections(outcomes: Outcomes, scale: float) -> Iterator[tuple[str, list[tuple[Outcome, list[str]]]]]:
    """The title of each workload, and its rows."""
    groups: dict[tuple[str, int], list[Outcome]] = {}
    for outcome in outcomes.values():
        groups.setdefault((outcome.workload, outcome.cores), []).append(outcome)
    for (name, cores), some in groups.items():
        yield title_of(name, cores, scale), [(outcome, row(outcomes, outcome)) for outcome in some]


def row(outcomes: Outcomes, outcome: Outcome) -> list[str]:
    name = SYSTEMS[outcome.system].title
    if outcome.problem:
        word = {"cannot": "\N{EN DASH}", "wrong": "wrong"}.get(outcome.problem.partition(":")[0], "failed")
        return [name, word, *[""] * (len(COLUMNS) - 2)]
    at_least = "≥ " if outcome.is_limited else ""
    ratio, goal = times(outcomes, outcome.cell), wanted(outcome.cell)
    p50, p99, p999 = [f"{it:,.0f}" for it in outcome.latency] if outcome.latency else ["", "", ""]
    return [
        name,
        at_least + _shown(outcome.speed, ",.0f" if outcome.speed >= 10 else ".1f") if outcome.speed else "",
        _shown(outcome.megabytes_a_second, ",.1f"),
        _shown(outcome.cpu_per_million, ",.2f"),
        _shown(outcome.start_up, ".1f"),
        p50,
        p99,
        p999,
        _shown(ratio, ".2f"),
        "" if goal is None else f"{'≤' if outcome.workload in LATENCIES else '≥'} {goal:g}",
    ]


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def notes(outcomes: Outcomes) -> Iterator[str]:
    """What the table has no room for."""
    for outcome in outcomes.values():
        if outcome.problem:
            yield f"{outcome.workload}, {SYSTEMS[outcome.system].title}: {outcome.problem}"
        elif outcome.is_limited:
            where = f"{outcome.workload}, {SYSTEMS[outcome.system].title}{', one core' if outcome.cores == 1 else ''}"
            yield f"{where}: ended after {outcome.seconds:,.0f} seconds, {outcome.records:,} records done"


def is_met(outcomes: Outcomes, cell: Cell) -> bool | None:
    reached, target = times(outcomes, cell), wanted(cell)
    if reached is None or target is None:
        return None
    return reached <= target if cell[0] in LATENCIES else reached >= target


def table(outcomes: Outcomes, scale: float) -> Table:
    caption = (
        "CPU s/M: CPU seconds of a million records, of all processes but the broker. Times this: how often Headrace's "
        "records/s are those of this row, or its p50 this one's."
    )
    made = Table(title="Beside the peers, on Kafka, exactly once where they can", caption=caption)
    for i, column in enumerate(COLUMNS):
        made.add_column(column, justify="right" if i else "left", no_wrap=True)
    for title, rows in sections(outcomes, scale):
        made.add_row(f"[bold]{title}[/]", end_section=False)
        for i, (outcome, cells) in enumerate(rows):
            colour = {True: "green", False: "red", None: "default"}[is_met(outcomes, outcome.cell)]
            shown = [f"  {cells[0]}", *cells[1:8], f"[{colour}]{cells[8]}[/]", cells[9]]
            made.add_row(*shown, end_section=i == len(rows) - 1)
    return made
