"""`headrace consume`: print the records of topics as lines, as `kafka-console-consumer` does."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from types import FrameType
from typing import Annotated, Any

import orjson
import typer

from headrace.cli.options import AsJson, takes_log
from headrace.cli.output import CommandError, UsageError, print_note, silence_stdout
from headrace.cli.text_formats import (
    SCHEMA_PROPERTIES,
    WINDOW_SIZE,
    TextFormat,
    find_reader,
    is_true,
    parse_properties,
    to_json,
    to_text,
)
from headrace.clients import Consumer, ConsumerRecord
from headrace.log import Log
from headrace.model.ids import TopicPartition
from headrace.serde.protocol import decode_part

PROPERTIES: dict[str, str | None] = {
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
    WINDOW_SIZE: None,
    **SCHEMA_PROPERTIES,
}


class LineFormatter:
    """Formats a record as one line: timestamp, partition, offset, headers, key, value, as the properties say."""

    def __init__(
        self, properties: Mapping[str, str], key: TextFormat, value: TextFormat, time_types: Mapping[str, str]
    ) -> None:
        self._prints = {name[6:] for name, text in properties.items() if name.startswith("print.") and is_true(text)}
        raw = {name: text.encode(errors="surrogateescape") for name, text in properties.items()}
        self._separator, self._end = raw["key.separator"], raw["line.separator"]
        self._headers_separator, self._null = raw["headers.separator"], raw["null.literal"]
        self._key, self._value, self._time_types = key, value, time_types

    def format(self, record: ConsumerRecord) -> bytes:
        """Return the line with its separator."""
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
            parts.append(self._format_field(self._key, record.key, record, "key"))
        if "value" in self._prints:
            parts.append(self._format_field(self._value, record.value, record, "value"))
        return self._separator.join(parts) + self._end

    def format_json(self, record: ConsumerRecord) -> bytes:
        """Return the whole record as one line of JSON."""
        return orjson.dumps({
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "headers": [[name, to_json(value)] for name, value in record.headers],
            "key": to_json(_decode_field(self._key, record.key, record, "key")),
            "value": to_json(_decode_field(self._value, record.value, record, "value")),
        }, default=to_text) + b"\n"  # fmt: skip

    def _format_field(self, text_format: TextFormat, raw: bytes | None, record: ConsumerRecord, what: str) -> bytes:
        value = _decode_field(text_format, raw, record, what)
        return self._null if value is None else text_format.format(value)


def _decode_field(text_format: TextFormat, raw: bytes | None, record: ConsumerRecord, what: str) -> Any:
    if raw is None:
        return None
    try:
        return decode_part(text_format.serde, raw, record.headers)
    except Exception as error:
        place = f"offset {record.offset} of {record.topic}-{record.partition}"
        raise CommandError(
            f"the {what} at {place} is no {text_format.serde.name}: {error}; --{what}-deserializer sets the serde, "
            "and --skip-message-on-error skips the record"
        ) from error


_POLL = 200  # ms: how soon a signal takes effect

Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        "--formatter-property",
        help="print.key, print.value, print.timestamp, print.partition, print.offset, print.headers, key.separator, "
        "headers.separator, line.separator, null.literal, schema.registry.url, window.size.ms: as key=value, with "
        "Kafka's meanings.",
    ),
]


@takes_log(stays=True)
def consume(
    log: Log,
    topic: Annotated[str | None, typer.Option(help="The topic to read.")] = None,
    include: Annotated[str | None, typer.Option(help="Read all topics that match this regular expression.")] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Start with the earliest record.")] = False,
    partition: Annotated[int | None, typer.Option(help="Read only this partition.")] = None,
    offset: Annotated[str, typer.Option(help="Where to start in --partition: earliest, latest or a number.")] = "",
    group: Annotated[str | None, typer.Option(help="Continue at the offsets of this group, and commit them.")] = None,
    max_messages: Annotated[int | None, typer.Option(min=0, help="Stop after so many records.")] = None,
    timeout_ms: Annotated[int | None, typer.Option(min=0, help="Stop when no record arrived for so long.")] = None,
    properties: Properties = None,
    key_deserializer: Annotated[
        str | None,
        typer.Option(
            "--key-deserializer",
            "--key-format",
            help="string, long, json, avro …, windowed-string, session-windowed-string …, or Kafka's class.",
        ),
    ] = None,
    value_deserializer: Annotated[
        str | None,
        typer.Option("--value-deserializer", "--value-format", help="string, long, json, avro …, or Kafka's class."),
    ] = None,
    skip_message_on_error: Annotated[
        bool, typer.Option("--skip-message-on-error", help="Skip records that cannot be decoded.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the records of topics, one a line, until Ctrl-C."""
    chosen = parse_properties(properties or [], PROPERTIES)
    key = find_reader(key_deserializer or chosen.get("key.deserializer", "bytes"), "key", chosen)
    value = find_reader(value_deserializer or chosen.get("value.deserializer", "bytes"), "value", chosen)
    names = _find_topics(log, topic, include)
    formatter = LineFormatter(chosen, key, value, {n: log.topic(n).config["message.timestamp.type"] for n in names})
    format_record = formatter.format_json if as_json else formatter.format
    starts = _find_start(log, names, partition, offset, from_beginning=from_beginning)
    limit = 500 if max_messages is None else max(1, min(500, max_messages))
    reset = "earliest" if from_beginning else "latest"
    with Consumer(log, group, auto_offset_reset=reset, max_poll_records=limit) as consumer:
        if starts is None:
            consumer.subscribe(*names)
        else:
            consumer.assign(*starts)
            for at, start in starts.items():
                consumer.seek(at, start)
        count = _print_records(
            _read_records(consumer, max_messages, timeout_ms), format_record, skip_errors=skip_message_on_error
        )
    print_note(f"Processed a total of {count} messages")


def _find_topics(log: Log, topic: str | None, include: str | None) -> list[str]:
    if (topic is None) == (include is None):
        raise UsageError("which topic? Give --topic NAME, or --include REGEX")
    if topic is not None:
        return [log.topic(topic).name]
    try:
        pattern = re.compile(include or "")
    except re.error as error:
        raise UsageError(f"--include {include!r} is no regular expression: {error}") from None
    found = [name for name in sorted(log.topics()) if pattern.fullmatch(name)]
    if not found:
        raise CommandError(f"no topic matches {include!r}: `headrace topics list` shows them")
    return found


def _find_start(
    log: Log, names: list[str], partition: int | None, offset: str, *, from_beginning: bool
) -> dict[TopicPartition, int] | None:
    """Return where to start in the one partition that the options name, or None for all partitions."""
    if partition is None:
        if offset:
            raise UsageError("--offset needs --partition: each partition has offsets of its own")
        return None
    if len(names) > 1:
        raise UsageError("--partition needs --topic")
    if offset and from_beginning:
        raise UsageError("--offset and --from-beginning contradict each other: give one")
    at, extents = TopicPartition(names[0], partition), log.extents(names)
    if at not in extents:
        raise CommandError(
            f"the topic {names[0]!r} has no partition {partition}: it has {len(extents)}, counted from 0"
        )
    start = offset or ("earliest" if from_beginning else "latest")
    if start in ("earliest", "latest"):
        return {at: extents[at].earliest if start == "earliest" else extents[at].end}
    if not start.isdecimal():
        raise UsageError(f"--offset is earliest, latest or a number, not {start!r}")
    return {at: int(start)}


def _read_records(consumer: Consumer, most: int | None, timeout: int | None) -> Iterator[list[ConsumerRecord]]:
    """Yield the records of each poll, until there are enough, none arrived in time, or a signal came."""
    stopped: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.append(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    left, last_arrival = most, time.monotonic()
    try:
        while not stopped and left != 0:
            records = consumer.poll(_POLL if timeout is None else min(_POLL, timeout))
            if records:
                last_arrival = time.monotonic()
            elif timeout is not None and (time.monotonic() - last_arrival) * 1000 >= timeout:
                return
            now = records if left is None else records[:left]
            for record in reversed(records[len(now) :]):
                consumer.seek(TopicPartition(record.topic, record.partition), record.offset)
            left = None if left is None else left - len(now)
            yield now
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_records(
    records: Iterator[list[ConsumerRecord]], format_record: Callable[[ConsumerRecord], bytes], *, skip_errors: bool
) -> int:
    """Print records as they arrive, and return their number."""
    count, output = 0, sys.stdout.buffer
    try:
        for record in chain.from_iterable(_flush_each_poll(records)):
            try:
                output.write(format_record(record))
            except CommandError as error:
                if not skip_errors:
                    raise
                print_note(f"{error.message}; skipped")
            else:
                count += 1
    except BrokenPipeError:  # the reader of the pipe has closed it
        silence_stdout()
    return count


def _flush_each_poll(records: Iterator[list[ConsumerRecord]]) -> Iterator[list[ConsumerRecord]]:
    """Flush the output between polls, so that records appear when they arrive."""
    for some in records:
        yield some
        sys.stdout.buffer.flush()
