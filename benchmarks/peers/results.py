"""The section of the peers in results.md: the table, the goals, how it was measured, and with which settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.peers.goals import Outcomes, goals
from benchmarks.peers.systems import SYSTEMS
from benchmarks.peers.table import COLUMNS, notes, sections
from benchmarks.peers.workloads import NAMES, workload
from benchmarks.report import describe_run
from headrace.testing.broker import VERSION

METHOD = """\
One system after another works on a backlog of the same records in four partitions, on one machine with the broker
(Kafka {version}, one node, 1 GB, as it comes). The backlog is written in one transaction before the system starts.
When the system has started and has written its first output, the transaction is committed while all processes of the
system are stopped for a second, so that the whole backlog appears at once. The time ends when the last output can be
read by a consumer of what is committed. Every output is compared with what the generator of the data knows to be
right; "wrong" stands where it is not. On W3 the number of results may differ by one in a thousand, because systems read
two topics in the order of time only as far as their records have arrived.

- **records/s**: records of the backlog, of W1 its lines. "≥": the system was stopped after three minutes, Faust after
  one, and what its group had committed by then is counted.
- **CPU s/M**: CPU seconds of a million records, of all processes of the system, without the broker,
  while it worked on the backlog.
- **start s**: from the start of its processes until its first output can be read.
- **latency**: a producer sends 1,000 records a second, a consumer reads what is committed; from when a record is due
  until its output is read, 30 seconds after 30 that are not counted: those that a JVM takes to warm up. With one
  repartition it is a word count with a word in every line; with two the counts are grouped and counted again.
  Kafka Streams with `commit.interval.ms=10` is a further row; goals are about Kafka Streams as it comes.
- **times this**: how often Headrace's records/s are those of the row, or its p50 that of the row.
- **one core**: all processes of the system on one core, with one thread; the broker may use both.
"""


def markdown(outcomes: Outcomes, scale: float) -> str:
    """The section of a run of everything."""
    return "\n".join([*_figures("Beside the peers", "make bench", outcomes, scale), *_method()]) + "\n"


def markdown_of_choice(outcomes: Outcomes, scale: float, arguments: Sequence[str]) -> str:
    """The section of a run of some systems; how they are measured stands in the section of all."""
    first, *others = [SYSTEMS[name].title for name in dict.fromkeys(system for _, system, _ in outcomes)]
    title = f"{first} beside {', '.join(others)}" if others else first
    command = " ".join(["python -m benchmarks.peers", *arguments])
    return "\n".join(_figures(title, command, outcomes, scale)) + "\n"


def _figures(title: str, command: str, outcomes: Outcomes, scale: float) -> Iterator[str]:
    yield f"# {title}"
    yield ""
    yield describe_run(command)
    yield ""
    if scale != 1:
        yield f"A trial with {scale:g} of the records: these figures say nothing."
        yield ""
    yield "| " + " | ".join(COLUMNS) + " |"
    yield "|---|" + "---:|" * (len(COLUMNS) - 1)
    for name, rows in sections(outcomes, scale):
        yield f"| **{name}** |" + " |" * (len(COLUMNS) - 1)
        yield from ("| " + " | ".join(cells) + " |" for _, cells in rows)
    yield ""
    measured = {name for name, _, _ in outcomes}
    yield from (f"- {name}: {workload(name, scale).detail}" for name in NAMES if name in measured)
    yield from (f"- {note}" for note in notes(outcomes))
    yield from ("", "## Goals", "", "| Headrace's | is | goal | |", "|---|---:|---:|---|")
    for goal in goals(outcomes):
        bound = f"{'≤' if goal.at_most else '≥'} {goal.wanted:g}"
        yield f"| {goal.text} | {goal.reached:.2f} | {bound} | {'reached' if goal.is_met else '**missed**'} |"


def _method() -> Iterator[str]:
    yield from ("", "## How it is measured", "", METHOD.format(version=VERSION), "## Settings", "")
    yield from (f"- **{system.title}**: {system.settings}." for system in SYSTEMS.values())
