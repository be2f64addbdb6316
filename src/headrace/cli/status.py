"""`headrace status`, `headrace top` and `headrace drops`: the status of an application, read from its checkpoint.

Its slots are in the heartbeat that a running application writes every five seconds, so no server has to be reached.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from headrace.checkpoint.ledger import manifest_numbers, read_ledger
from headrace.cli.options import AsJson, Checkpoint, Program, find_checkpoint, load, open_checkpoint, open_follower
from headrace.cli.output import CommandError, make_table, print_json, print_note, print_rows, stdout
from headrace.query.drops import describe_drops, explain_reason
from headrace.spark.application_state import ended_by_signals
from headrace.web import ApplicationView

Last = Annotated[bool, typer.Option("--last", help="The last dropped records of each reason, with their operators.")]


def status(checkpoint: Checkpoint = "", topology: Program = None, as_json: AsJson = False) -> int:
    """Show the status of an application. Exit with 1 if it is not healthy."""
    view = _open_view(checkpoint, topology)
    current = view.status()
    if as_json:
        print_json(current)
    else:
        stdout().print(_render(view))
    return int(not current["healthy"])


def top(
    checkpoint: Checkpoint = "",
    topology: Program = None,
    interval: Annotated[float, typer.Option(help="Refresh every so many seconds.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show the status once, and exit.")] = False,
) -> None:
    """Watch the status of an application in the terminal, until Ctrl-C."""
    view = _open_view(checkpoint, topology)
    if once:
        stdout().print(_render(view))
        return
    with ended_by_signals() as stop, Live(_render(view), console=stdout(), auto_refresh=False) as live:
        while not stop.wait(interval):
            view.follower.refresh()
            live.update(_render(view), refresh=True)


def drops(checkpoint: Checkpoint = "", topology: Program = None, last: Last = False, as_json: AsJson = False) -> None:
    """Show how many records the application has dropped since it first ran, by reason, or the last ones of each.

    One record may be dropped by several operators, and by one operator for several windows: each of them counts.
    """
    place = find_checkpoint(checkpoint, None if topology is None else load(topology))
    storage = open_checkpoint(place)
    numbers = manifest_numbers(storage)
    if not numbers:
        raise CommandError(f"there is no checkpoint in {place}")
    ledger = read_ledger(storage, numbers[-1])
    if last:
        columns = ["reason", "operator", "topic", "partition", "offset", "key", "timestamp", "stream_time", "why"]
        print_rows(describe_drops(ledger.drops), columns, as_json=as_json)
    else:
        counts = sorted(ledger.dropped.items())
        rows = [{"reason": reason, "records": count, "why": explain_reason(reason)} for reason, count in counts]
        print_rows(rows, ["reason", "records", "why"], as_json=as_json)
    print_note(f"After batch {ledger.number}: {sum(ledger.dropped.values())} records in all.")


def _open_view(checkpoint: str, topology: str | None) -> ApplicationView:
    follower = open_follower(checkpoint, topology)
    follower.refresh()
    return ApplicationView(follower=follower)


def _render(view: ApplicationView) -> Group:
    status = view.status()
    title = f"{status['application']}  {status['state']}  batch {status['batch']}, delivered {status['delivered']}"
    stores = view.follower.snapshot.summarize_stores()
    parts: list[Any] = [
        Text(title, "bold"), Text(status["verdict"]), Text(""), make_table(stores, ["name", "kind", "entries"])
    ]  # fmt: skip
    rates = [{"topic": topic, "records_per_second": f"{rate:.1f}"} for topic, rate in sorted(status["rates"].items())]
    dropped = [{"dropped": reason, "records": count} for reason, count in sorted(status["dropped"].items())]
    slots = [
        {
            "slot": slot["slot"],
            "host": slot["host"],
            "process": slot["process"],
            "tasks": " ".join(slot["tasks"]) or None,
            "standbys": " ".join(map(_render_standby, slot["standbys"].items())) or None,
        }
        for slot in status["slots"]
    ]
    if slots:
        moved = f"{status['moves']} tasks have moved to another slot since the start."
        parts += [Text(""), make_table(slots, [*slots[0]]), Text(moved)]
    if waiting := status["queued_slots"]:
        parts.append(Text(f"{waiting} {'slot waits' if waiting == 1 else 'slots wait'} for a core of Spark."))
    for rows in (status["sources"], status["sinks"], rates, dropped):
        if rows:
            parts += [Text(""), make_table(rows, [*rows[0]])]
    return Group(*parts)


def _render_standby(standby: tuple[str, int]) -> str:
    task, behind = standby
    return f"{task} ({behind} behind)" if behind else task
