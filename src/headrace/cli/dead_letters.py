"""`headrace dead-letters`: list the records that failed, and replay them to the partitions that they came from.

The headers of a dead letter say where the record came from, and which error it caused. Records that operators drop have
the same headers, in the topic of `dropped.records.topic.name`, with the reason instead of an exception.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Annotated, Any, NamedTuple

import typer

from headrace.cli.options import AsJson, takes_log
from headrace.cli.output import print_note, print_rows
from headrace.cli.text_formats import to_json
from headrace.html import shorten
from headrace.log.protocol import Log, LogRow, Records, Topic
from headrace.model.ids import TopicPartition
from headrace.model.record import Headers

ERROR_HEADER = "__streams.errors."  # prefix


class DeadLetter(NamedTuple):
    """A record of a dead letter topic. `headers` are the record's own; `error` has the error headers."""

    at: TopicPartition
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers
    error: Mapping[str, str]  # by the last word of a header's name

    @property
    def origin(self) -> TopicPartition | None:
        """The partition that the record came from; None if the headers do not name one."""
        topic, partition = self.error.get("topic"), self.error.get("partition", "")
        return TopicPartition(topic, int(partition)) if topic and partition.isdecimal() else None

    def as_dict(self) -> dict[str, Any]:
        """Return the dead letter as plain data, for JSON and tables."""
        offset = self.error.get("offset", "")
        return {
            "partition": self.at.partition,
            "offset": self.offset,
            "timestamp": self.timestamp,
            "topic": self.error.get("topic") or None,
            "from_partition": self.origin.partition if self.origin else None,
            "from_offset": int(offset) if offset.isdecimal() else None,
            "exception": self.error.get("exception"),
            "message": self.error.get("message"),
            "stacktrace": self.error.get("stacktrace"),
            "headers": [[name, to_json(value)] for name, value in self.headers],
            "key": to_json(self.key),
            "value": to_json(self.value),
        }


def parse_dead_letter(at: TopicPartition, row: LogRow) -> DeadLetter:
    """Separate the error headers of a record from its own.

    >>> raw = (("h", b"1"), ("__streams.errors.topic", b"orders"), ("__streams.errors.partition", b"2"))
    >>> letter = parse_dead_letter(TopicPartition("dead", 0), (7, b"k", b"v", 10, raw))
    >>> letter.headers, letter.origin
    ((('h', b'1'),), TopicPartition(topic='orders', partition=2))
    """
    offset, key, value, timestamp, headers = row
    error = {
        name[len(ERROR_HEADER) :]: (raw or b"").decode(errors="replace")
        for name, raw in headers
        if _is_error_header(name)
    }
    own = tuple((name, raw) for name, raw in headers if not _is_error_header(name))
    return DeadLetter(at, offset, key, value, timestamp, own, error)


def read_dead_letters(log: Log, topic: str, starts: Mapping[TopicPartition, int]) -> Iterator[DeadLetter]:
    """Read the dead letters of a topic, partition by partition, each from its start if it has one."""
    log.topic(topic)
    for at, extent in sorted(log.extents([topic]).items()):
        start = min(max(starts.get(at, 0), extent.earliest), extent.end)
        for chunk in log.read(at, start, extent.end):
            for row in chunk.rows():
                yield parse_dead_letter(at, row)


def _is_error_header(name: str) -> bool:
    return name.startswith(ERROR_HEADER)


GROUP = "headrace-dead-letters"  # its committed offsets are those of the replayed records
BATCH = 500  # dead letters that are sent together: a kill sends at most so many twice

app = typer.Typer(help="List dead letters, and replay them.", no_args_is_help=True)
Name = Annotated[str, typer.Option("--topic", help="The dead letter topic.")]
Most = Annotated[int | None, typer.Option("--max-messages", min=0, help="Read at most so many.")]


@app.command("list")
@takes_log()
def list_dead_letters(log: Log, topic: Name, max_messages: Most = None, as_json: AsJson = False) -> None:
    """List dead letters: where they came from, why they failed, and their keys and values.

    Dropped records are listed, too, if --topic names the topic of dropped.records.topic.name.
    """
    known, done = log.topics(), log.committed(GROUP)
    rows: list[dict[str, Any]] = [
        {
            **letter.as_dict(),
            "replayed": letter.offset < done.get(letter.at, 0) and not _find_problem(letter.origin, known),
        }
        for letter in islice(read_dead_letters(log, topic, {}), max_messages)
    ]
    if not as_json:
        rows = [{**row, "message": (row["message"] or "").partition("\n")[0]} for row in rows]
        rows = [{**row, **_shorten(row)} for row in rows]
    columns = ["partition", "offset", "topic", "from_partition", "from_offset", "exception", "message", "key", "value",
               "replayed"]  # fmt: skip
    print_rows(rows, columns, as_json=as_json)


@app.command()
@takes_log()
def replay(
    log: Log,
    topic: Name,
    max_messages: Most = None,
    again: Annotated[bool, typer.Option("--again", help="Replay those that were replayed before, too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent, and send nothing.")] = False,
    as_json: AsJson = False,
) -> int:
    """Send each dead letter once to the partition that it came from. Exit with 1 if some cannot be sent.

    The whole topology reads it again. Only the operator that failed had left the record out: an aggregate, a join or a
    sink in another branch that had processed it counts it a second time.
    """
    rows: list[dict[str, Any]] = []
    known = log.topics()
    letters = islice(read_dead_letters(log, topic, {} if again else log.committed(GROUP)), max_messages)
    while some := list(islice(letters, BATCH)):
        results = [_make_row(letter, known) for letter in some]
        if not dry_run:
            _send(log, [letter for letter, row in zip(some, results, strict=True) if row["problem"] is None])
            log.commit(GROUP, {letter.at: letter.offset + 1 for letter in some})
        rows += results
    shown = rows if as_json else [{**row, **_shorten(row)} for row in rows]
    print_rows(shown, ["partition", "offset", "to_topic", "to_partition", "key", "value", "problem"], as_json=as_json)
    left = sum(row["problem"] is not None for row in rows)
    print_note(f"{len(rows) - left} {'would be' if dry_run else 'were'} sent, {left} cannot be.")
    if len(rows) > left:
        print_note("Branches of the topology that had processed them the first time process them again.")
    return int(left > 0)


def _shorten(row: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the key and the value for a column of a table."""
    return {part: None if row[part] is None else shorten(row[part], 60) for part in ("key", "value")}


def _make_row(letter: DeadLetter, known: Mapping[str, Topic]) -> dict[str, Any]:
    to = letter.origin
    return {
        "partition": letter.at.partition,
        "offset": letter.offset,
        "to_topic": to.topic if to else None,
        "to_partition": to.partition if to else None,
        "key": to_json(letter.key),
        "value": to_json(letter.value),
        "exception": letter.error.get("exception"),
        "problem": _find_problem(to, known),
    }


def _find_problem(to: TopicPartition | None, known: Mapping[str, Topic]) -> str | None:
    """Return why a dead letter cannot be sent, or None."""
    if to is None:
        return "its headers name no partition that it came from"
    if to.topic not in known:  # it is internal to the application, or was deleted
        return f"the log has no topic {to.topic!r}: it is internal to the application, or was deleted"
    if to.partition >= known[to.topic].partitions:
        return f"{to.topic!r} has only {known[to.topic].partitions} partitions"
    return None


def _send(log: Log, letters: Iterable[DeadLetter]) -> None:
    """Append dead letters in one write, in their order, with their timestamps and headers."""
    rows = defaultdict[TopicPartition, list[Any]](list)
    for letter in letters:
        if letter.origin is not None:
            rows[letter.origin].append((letter.key, letter.value, letter.timestamp, letter.headers))
    if rows:
        log.append([(at, Records.from_rows(some)) for at, some in rows.items()])
