"""Dead letters: records that failed, with what their headers say about why, and where they came from.

`headrace dead-letters`: records that failed, listed, and sent again to where they came from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from typing import Annotated, Any, NamedTuple

import typer

from headrace.cli.options import AsJson, LogAddress, Servers, log_at
from headrace.cli.printing import say, show
from headrace.cli.text_formats import in_json
from headrace.log.protocol import Log, LogRow, Records, Topic
from headrace.model.ids import TopicPartition
from headrace.model.record import Headers

CAUSE = "__streams.errors."


class DeadLetter(NamedTuple):
    """A record of the dead letter topic. `headers` are the record's own; `cause` has the others, by their last word."""

    at: TopicPartition
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers
    cause: Mapping[str, str]

    @property
    def origin(self) -> TopicPartition | None:
        """The partition that it came from; None: it came from none, or the headers do not tell."""
        topic, partition = self.cause.get("topic"), self.cause.get("partition", "")
        return TopicPartition(topic, int(partition)) if topic and partition.isdecimal() else None

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON and tables."""
        offset = self.cause.get("offset", "")
        return {
            "partition": self.at.partition,
            "offset": self.offset,
            "timestamp": self.timestamp,
            "topic": self.cause.get("topic") or None,
            "from_partition": self.origin.partition if self.origin else None,
            "from_offset": int(offset) if offset.isdecimal() else None,
            "exception": self.cause.get("exception"),
            "message": self.cause.get("message"),
            "stacktrace": self.cause.get("stacktrace"),
            "headers": [[name, in_json(value)] for name, value in self.headers],
            "key": in_json(self.key),
            "value": in_json(self.value),
        }


def letter_of(at: TopicPartition, row: LogRow) -> DeadLetter:
    """
    >>> raw = (("h", b"1"), ("__streams.errors.topic", b"orders"), ("__streams.errors.partition", b"2"))
    >>> letter = letter_of(TopicPartition("dead", 0), (7, b"k", b"v", 10, raw))
    >>> letter.headers, letter.origin
    ((('h', b'1'),), TopicPartition(topic='orders', partition=2))
    """
    offset, key, value, timestamp, headers = row
    cause = {name[len(CAUSE) :]: (raw or b"").decode(errors="replace") for name, raw in headers if _is_cause(name)}
    own = tuple((name, raw) for name, raw in headers if not _is_cause(name))
    return DeadLetter(at, offset, key, value, timestamp, own, cause)


def letters_in(log: Log, topic: str, starts: Mapping[TopicPartition, int]) -> Iterator[DeadLetter]:
    """Those that are there now, partition by partition, each from its start if it has one."""
    log.topic(topic)
    for at, extent in sorted(log.extents([topic]).items()):
        start = min(max(starts.get(at, 0), extent.earliest), extent.end)
        for chunk in log.read(at, start, extent.end):
            for row in chunk.rows():
                yield letter_of(at, row)


def _is_cause(name: str) -> bool:
    return name.startswith(CAUSE)


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


def _row(letter: DeadLetter, known: Mapping[str, Topic]) -> dict[str, Any]:
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


def _send(log: Log, letters: Iterable[DeadLetter]) -> None:
    """All of them at once, in their order, with the times and headers that they had."""
    rows = defaultdict[TopicPartition, list[Any]](list)
    for letter in letters:
        if letter.origin is not None:
            rows[letter.origin].append((letter.key, letter.value, letter.timestamp, letter.headers))
    if rows:
        log.append([(at, Records.of(some)) for at, some in rows.items()])
