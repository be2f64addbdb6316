"""`headrace groups`: list and describe consumer groups, as `kafka-consumer-groups` does, and move them to a mirror."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.options import AsJson, log_at, takes_log
from headrace.cli.output import CommandError, print_names, print_note, print_rows
from headrace.connect.mirror import find_offsets
from headrace.log import Log
from headrace.log.protocol import Group
from headrace.model.ids import TopicPartition
from headrace.secrets import mask_secrets

app = typer.Typer(help="List and describe consumer groups, and move them to a mirror.", no_args_is_help=True)
COLUMNS = ["group", "topic", "partition", "current_offset", "log_end_offset", "lag", "consumer_id"]


@app.command("list")
@takes_log()
def list_groups(log: Log, as_json: AsJson = False) -> None:
    """List the names of the groups."""
    print_names(sorted(log.groups()), as_json=as_json)


@app.command()
@takes_log()
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


@app.command()
@takes_log()
def translate(
    log: Log,
    group: Annotated[str, typer.Option("--group", help="The group.")],
    topic: Annotated[str, typer.Option("--topic", help="The topic that the group has read, in the log --from.")],
    origin: Annotated[str, typer.Option("--from", help="The log that the group has read.")],
    origin_config: Annotated[
        Path | None, typer.Option("--from-config", help="A .properties file with client settings for --from.")
    ] = None,
    copy: Annotated[str | None, typer.Option("--to-topic", help="The copy, if it has another name.")] = None,
    to_group: Annotated[str | None, typer.Option("--to-group", help="The group here, if it has another name.")] = None,
    mirror: Annotated[
        str | None,
        typer.Option("--mirror", help="The name of the source or sink that fills the copy, if not the topic's."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let a group that has read a topic of another log go on in its copy, where it was."""
    copy, to_group = copy or topic, to_group or group
    with closing(log_at(origin, config=origin_config)) as there:
        committed = {at.partition: offset for at, offset in there.committed(group).items() if at.topic == topic}
    if not committed:
        raise CommandError(f"the group {group!r} has no offsets of {topic!r} in {mask_secrets(origin)}")
    found = find_offsets(log, copy, committed, mirror or topic)
    if not dry_run:
        log.commit(to_group, {TopicPartition(copy, at): offset for at, offset in found.items()})
    rows = [
        {"group": to_group, "topic": copy, "partition": at, "offset_there": committed[at], "offset": found[at]}
        for at in sorted(found)
    ]
    print_rows(rows, ["group", "topic", "partition", "offset_there", "offset"], as_json=as_json)
    if dry_run:
        print_note("Nothing was changed: this was a dry run.")


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
