"""Records as lines, by the properties of Kafka's console consumer.

`headrace consume`: what `kafka-console-consumer` does.
"""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import chain
from types import FrameType
from typing import Annotated, Any

import orjson
import typer

from headrace.cli.options import AsJson, LogAddress, Servers, log_at
from headrace.cli.printing import Failed, WrongUsage, hush, pairs, say
from headrace.cli.text_formats import Form, form_of, in_json
from headrace.clients import Consumer, ConsumerRecord
from headrace.log import Log
from headrace.model.ids import TopicPartition

KNOWN = {
    "print.timestamp": "false",
    "print.partition": "false",
    "print.offset": "false",
    "print.headers": "false",
    "print.key": "false",
    "print.value": "true",
    "key.separator": "\t",
    "line.separator": "\n",
    "headers.separator": ",",
    "null.literal": "null",
    "key.deserializer": None,
    "value.deserializer": None,
}


class LineWriter:
    """A record as one line: timestamp, partition, offset, headers, key, value, as far as they are asked for."""

    def __init__(self, properties: Mapping[str, str], key: Form, value: Form, time_types: Mapping[str, str]) -> None:
        unknown = sorted(properties.keys() - KNOWN.keys())
        if unknown:
            raise WrongUsage(f"there is no property {unknown[0]!r}: known are {', '.join(KNOWN)}")
        given = {name: str(text) for name, text in {**KNOWN, **properties}.items()}
        self._prints = {name[6:] for name, text in given.items() if name[:6] == "print." and text.lower() == "true"}
        self._separator, self._end = _raw(given["key.separator"]), _raw(given["line.separator"])
        self._headers_separator, self._null = _raw(given["headers.separator"]), _raw(given["null.literal"])
        self._key, self._value, self._time_types = key, value, time_types

    def write(self, record: ConsumerRecord) -> bytes:
        """The line, with its end."""
        parts: list[bytes] = []
        if "timestamp" in self._prints:
            parts.append(f"{self._time_types.get(record.topic, 'CreateTime')}:{record.timestamp}".encode())
        if "partition" in self._prints:
            parts.append(f"Partition:{record.partition}".encode())
        if "offset" in self._prints:
            parts.append(f"Offset:{record.offset}".encode())
        if "headers" in self._prints:
            shown = [name.encode() + b":" + (self._null if raw is None else raw) for name, raw in record.headers]
            parts.append(self._headers_separator.join(shown) or b"NO_HEADERS")
        if "key" in self._prints:
            parts.append(self._shown(self._key, record.key, record, "key"))
        if "value" in self._prints:
            parts.append(self._shown(self._value, record.value, record, "value"))
        return self._separator.join(parts) + self._end

    def write_json(self, record: ConsumerRecord) -> bytes:
        """All of the record as one line of JSON."""
        return orjson.dumps({
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "headers": [[name, in_json(value)] for name, value in record.headers],
            "key": in_json(_decoded(self._key, record.key, record, "key")),
            "value": in_json(_decoded(self._value, record.value, record, "value")),
        }) + b"\n"  # fmt: skip

    def _shown(self, form: Form, raw: bytes | None, record: ConsumerRecord, what: str) -> bytes:
        value = _decoded(form, raw, record, what)
        return self._null if value is None else form.show(value)


def _decoded(form: Form, raw: bytes | None, record: ConsumerRecord, what: str) -> Any:
    if raw is None:
        return None
    try:
        return form.serde.decode(raw)
    except Exception as error:
        place = f"offset {record.offset} of {record.topic}-{record.partition}"
        raise Failed(
            f"the {what} at {place} is no {form.serde.name}: {error}; --{what}-deserializer says what it is, and "
            "--skip-message-on-error goes on"
        ) from error


def _raw(text: str) -> bytes:
    return text.replace("\\t", "\t").replace("\\n", "\n").encode(errors="surrogateescape")


_POLL = 200  # ms: how soon a signal is heard

Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        "--formatter-property",
        help="print.key, print.value, print.timestamp, print.partition, print.offset, print.headers, key.separator, "
        "headers.separator, line.separator, null.literal: Kafka's, as key=value.",
    ),
]


def consume(
    topic: Annotated[str | None, typer.Option(help="The topic to read.")] = None,
    include: Annotated[str | None, typer.Option(help="Read all topics that match this regular expression.")] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Begin with the earliest record.")] = False,
    partition: Annotated[int | None, typer.Option(help="Read only this partition.")] = None,
    offset: Annotated[str, typer.Option(help="Where to begin in --partition: earliest, latest or a number.")] = "",
    group: Annotated[str | None, typer.Option(help="Go on where this group is, and commit for it.")] = None,
    max_messages: Annotated[int | None, typer.Option(min=0, help="End after so many records.")] = None,
    timeout_ms: Annotated[int | None, typer.Option(min=0, help="End when none came for so long.")] = None,
    properties: Properties = None,
    key_deserializer: Annotated[str | None, typer.Option(help="string, long, json …, or Kafka's class.")] = None,
    value_deserializer: Annotated[str | None, typer.Option(help="string, long, json …, or Kafka's class.")] = None,
    skip_message_on_error: Annotated[
        bool, typer.Option("--skip-message-on-error", help="Leave out what fails.")
    ] = False,
    as_json: AsJson = False,
    log: LogAddress = None,
    bootstrap_server: Servers = None,
) -> None:
    """Show the records of topics, one a line, until it is interrupted."""
    given = pairs(properties or [], "--property")
    key = form_of(key_deserializer or given.get("key.deserializer", "bytes"))
    value = form_of(value_deserializer or given.get("value.deserializer", "bytes"))
    with closing(log_at(log, bootstrap_server)) as opened:
        names = _topics(opened, topic, include)
        writer = LineWriter(given, key, value, {n: opened.topic(n).config["message.timestamp.type"] for n in names})
        write = writer.write_json if as_json else writer.write
        places = _places(opened, names, partition, offset, from_beginning=from_beginning)
        limit = 500 if max_messages is None else max(1, min(500, max_messages))
        reset = "earliest" if from_beginning else "latest"
        with Consumer(opened, group, auto_offset_reset=reset, max_poll_records=limit) as consumer:
            if places is None:
                consumer.subscribe(*names)
            else:
                consumer.assign(*places)
                for at, start in places.items():
                    consumer.seek(at, start)
            shown = _show(_records(consumer, max_messages, timeout_ms), write, skips=skip_message_on_error)
    say(f"Processed a total of {shown} messages")


def _topics(log: Log, topic: str | None, include: str | None) -> list[str]:
    if (topic is None) == (include is None):
        raise WrongUsage("which topic? Give --topic NAME, or --include REGEX")
    if topic is not None:
        return [log.topic(topic).name]
    try:
        pattern = re.compile(include or "")
    except re.error as error:
        raise WrongUsage(f"--include {include!r} is no regular expression: {error}") from None
    found = [name for name in sorted(log.topics()) if pattern.fullmatch(name)]
    if not found:
        raise Failed(f"no topic matches {include!r}: `headrace topics list` shows them")
    return found


def _places(
    log: Log, names: list[str], partition: int | None, offset: str, *, from_beginning: bool
) -> dict[TopicPartition, int] | None:
    """Where to begin in the one partition that is asked for; None: all of them."""
    if partition is None:
        if offset:
            raise WrongUsage("--offset needs --partition: the offsets of partitions have nothing to do with each other")
        return None
    if len(names) > 1:
        raise WrongUsage("--partition needs --topic")
    if offset and from_beginning:
        raise WrongUsage("--offset and --from-beginning contradict each other: give one")
    at, extents = TopicPartition(names[0], partition), log.extents(names)
    if at not in extents:
        raise Failed(f"the topic {names[0]!r} has no partition {partition}: it has {len(extents)}, counted from 0")
    start = offset or ("earliest" if from_beginning else "latest")
    if start in ("earliest", "latest"):
        return {at: extents[at].earliest if start == "earliest" else extents[at].end}
    if not start.isdecimal():
        raise WrongUsage(f"--offset is earliest, latest or a number, not {start!r}")
    return {at: int(start)}


def _records(consumer: Consumer, most: int | None, timeout: int | None) -> Iterator[list[ConsumerRecord]]:
    """Records until there are enough, none came for too long, or a signal came; the rest stays unread."""
    stopped: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.append(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    left, heard = most, time.monotonic()
    try:
        while not stopped and left != 0:
            records = consumer.poll(_POLL if timeout is None else min(_POLL, timeout))
            if records:
                heard = time.monotonic()
            elif timeout is not None and (time.monotonic() - heard) * 1000 >= timeout:
                return
            now = records if left is None else records[:left]
            for record in reversed(records[len(now) :]):
                consumer.seek(TopicPartition(record.topic, record.partition), record.offset)
            left = None if left is None else left - len(now)
            yield now
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(records: Iterator[list[ConsumerRecord]], write: Callable[[ConsumerRecord], bytes], *, skips: bool) -> int:
    """Writes lines as the records come; says how many."""
    shown, output = 0, sys.stdout.buffer
    try:
        for record in chain.from_iterable(_flushing(records)):
            try:
                output.write(write(record))
            except Failed as error:
                if not skips:
                    raise
                say(f"{error.message}; skipped")
            else:
                shown += 1
    except BrokenPipeError:  # whoever reads has enough
        hush()
    return shown


def _flushing(records: Iterator[list[ConsumerRecord]]) -> Iterator[list[ConsumerRecord]]:
    """The same; what one poll gave is out before the next one."""
    for some in records:
        yield some
        sys.stdout.buffer.flush()
