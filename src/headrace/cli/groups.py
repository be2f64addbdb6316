"""`headrace groups`: list and describe consumer groups, as `kafka-consumer-groups` does."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli.options import AsJson, takes_log
from headrace.cli.output import CommandError, print_names, print_rows
from headrace.log import Log
from headrace.log.protocol import Group

app = typer.Typer(help="List and describe consumer groups.", no_args_is_help=True)
COLUMNS = ["group", "topic", "partition", "current_offset", "log_end_offset", "lag", "consumer_id"]


@app.command("list")
@takes_log
def list_groups(log: Log, as_json: AsJson = False) -> None:
    """List the names of the groups."""
    print_names(sorted(log.groups()), as_json=as_json)


@app.command()
@takes_log
def describe(
    log: Log,
    group: Annotated[str | None, typer.Option("--group", help="Describe this group only.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the offsets, the lag and the members of groups, by partition."""
    known = log.groups()
    if group is not None and group not in known:
        raise CommandError(f"there is no group {group!r} (there are: {', '.join(sorted(known)) or 'none'})")
    rows = [row for name in ([group] if group else sorted(known)) for row in describe_group(known[name], log)]
    print_rows(rows, COLUMNS, as_json=as_json)


def describe_group(group: Group, log: Log) -> list[dict[str, Any]]:
    """Return a row for each partition that the group has committed or reads."""
    readers = {at: member for member, held in group.members.items() for at in held}
    partitions = sorted({*group.committed, *readers})
    extents = log.extents(sorted({at.topic for at in partitions}))
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
        for at in partitions
    ]
