"""`headrace dead-letters`: records that failed, listed, and sent again to where they came from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from itertools import islice
from typing import Annotated, Any

import typer

from headrace.cli.letters import Letter, letters_in
from headrace.cli.options import AsJson, LogAddress, Servers, log_at
from headrace.cli.printing import say, show
from headrace.log.protocol import Log, Records, Topic
from headrace.model.ids import TopicPartition

GROUP = "headrace-dead-letters"  # it has read what was replayed
AT_ONCE = 500  # letters that are sent together: if it is killed, at most so many are sent twice

app = typer.Typer(help="List dead letters, and send them again.", no_args_is_help=True)
Name = Annotated[str, typer.Option("--topic", help="The topic that has them.")]
Most = Annotated[int | None, typer.Option("--max-messages", min=0, help="So many at most.")]


@app.command("list")
def list_letters(
    topic: Name,
    max_messages: Most = None,
    log: LogAddress = None,
    bootstrap_server: Servers = None,
    as_json: AsJson = False,
) -> None:
    """Show dead letters: where they came from, and why they failed."""
    with closing(log_at(log, bootstrap_server)) as opened:
        rows = [letter.as_dict() for letter in islice(letters_in(opened, topic, {}), max_messages)]
    if not as_json:
        rows = [{**row, "message": (row["message"] or "").partition("\n")[0]} for row in rows]
    columns = ["partition", "offset", "topic", "from_partition", "from_offset", "exception", "message"]
    show(rows, columns, as_json=as_json)


@app.command()
def replay(
    topic: Name,
    max_messages: Most = None,
    again: Annotated[bool, typer.Option("--again", help="Those that were replayed before, too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent, and send nothing.")] = False,
    log: LogAddress = None,
    bootstrap_server: Servers = None,
    as_json: AsJson = False,
) -> int:
    """Send dead letters to the partitions that they came from, each once; 1 if some cannot be."""
    rows: list[dict[str, Any]] = []
    with closing(log_at(log, bootstrap_server)) as opened:
        known = opened.topics()
        letters = islice(letters_in(opened, topic, {} if again else opened.committed(GROUP)), max_messages)
        while some := list(islice(letters, AT_ONCE)):
            told = [_row(letter, known) for letter in some]
            if not dry_run:
                _send(opened, [letter for letter, row in zip(some, told, strict=True) if row["problem"] is None])
                opened.commit(GROUP, {letter.at: letter.offset + 1 for letter in some})
            rows += told
    show(rows, ["partition", "offset", "to_topic", "to_partition", "problem"], as_json=as_json)
    left = sum(row["problem"] is not None for row in rows)
    say(f"{len(rows) - left} {'would be' if dry_run else 'were'} sent, {left} cannot be.")
    return int(left > 0)


def _row(letter: Letter, known: Mapping[str, Topic]) -> dict[str, Any]:
    to = letter.origin
    return {
        "partition": letter.at.partition,
        "offset": letter.offset,
        "to_topic": to.topic if to else None,
        "to_partition": to.partition if to else None,
        "problem": _problem(to, known),
    }


def _problem(to: TopicPartition | None, known: Mapping[str, Topic]) -> str | None:
    """Why a letter cannot be sent; None if it can."""
    if to is None:
        return "its headers name no partition that it came from"
    if to.topic not in known:  # one inside the application, or it was deleted
        return f"the log has no topic {to.topic!r}"
    if to.partition >= known[to.topic].partitions:
        return f"{to.topic!r} has only {known[to.topic].partitions} partitions"
    return None


def _send(log: Log, letters: Iterable[Letter]) -> None:
    """All of them at once, in their order, with the times and headers that they had."""
    rows = defaultdict[TopicPartition, list[Any]](list)
    for letter in letters:
        if letter.origin is not None:
            rows[letter.origin].append((letter.key, letter.value, letter.timestamp, letter.headers))
    if rows:
        log.append([(at, Records.of(some)) for at, some in rows.items()])
