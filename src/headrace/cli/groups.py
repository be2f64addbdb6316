"""`headrace groups`: what `kafka-consumer-groups` does."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

import typer

from headrace.cli.options import AsJson, LogAddress, Servers, log_at
from headrace.cli.printing import Failed, show, show_json
from headrace.log import Log
from headrace.log.protocol import Group

app = typer.Typer(help="List consumer groups, and see how far they are.", no_args_is_help=True)
COLUMNS = ["group", "topic", "partition", "current_offset", "log_end_offset", "lag", "consumer_id"]


@app.command("list")
def list_groups(log: LogAddress = None, bootstrap_server: Servers = None, as_json: AsJson = False) -> None:
    """The names of the groups."""
    with closing(log_at(log, bootstrap_server)) as opened:
        names = sorted(opened.groups())
    if as_json:
        show_json(names)
    else:
        typer.echo("".join(f"{name}\n" for name in names), nl=False)


@app.command()
def describe(
    group: Annotated[str | None, typer.Option("--group", help="One group; without it, all.")] = None,
    log: LogAddress = None,
    bootstrap_server: Servers = None,
    as_json: AsJson = False,
) -> None:
    """Where groups are, how far behind, and who reads."""
    with closing(log_at(log, bootstrap_server)) as opened:
        known = opened.groups()
        if group is not None and group not in known:
            raise Failed(f"there is no group {group!r} (there are: {', '.join(sorted(known)) or 'none'})")
        rows = [row for name in ([group] if group else sorted(known)) for row in rows_of(known[name], opened)]
    show(rows, COLUMNS, as_json=as_json)


def rows_of(group: Group, log: Log) -> list[dict[str, Any]]:
    """A row for each partition that the group has read or reads."""
    readers = {at: member for member, held in group.members.items() for at in held}
    places = sorted({*group.committed, *readers})
    extents = log.extents(sorted({at.topic for at in places}))
    return [
        {
            "group": group.name,
            "topic": at.topic,
            "partition": at.partition,
            "current_offset": group.committed.get(at),
            "log_end_offset": extents[at].end,
            "lag": max(0, extents[at].end - group.committed[at]) if at in group.committed else None,
            "consumer_id": readers.get(at),
        }
        for at in places
    ]
