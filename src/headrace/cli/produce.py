"""`headrace produce`: send lines as records, as `kafka-console-producer` does."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, BinaryIO, NamedTuple

import typer
from rich.progress import Progress

from headrace.cli.options import takes_log
from headrace.cli.output import CommandError, stderr
from headrace.cli.text_formats import (
    SCHEMA_PROPERTIES,
    TextFormat,
    find_schema_format,
    is_true,
    parse_properties,
)
from headrace.clients import Producer
from headrace.log import Log

Headers = tuple[tuple[str, bytes | None], ...]
PROPERTIES: dict[str, str | None] = {
    "parse.key": "false",
    "key.separator": "\t",
    "parse.headers": "false",
    "headers.delimiter": "\t",
    "headers.separator": ",",
    "headers.key.separator": ":",
    "null.marker": None,
    "ignore.error": "false",
    **SCHEMA_PROPERTIES,
}


class ParsedLine(NamedTuple):
    """The record that a line describes."""

    key: Any
    value: Any
    headers: Headers


class LineParser:
    """Parses lines of headers, key and value, in this order, as far as the properties say that a line has them."""

    def __init__(self, properties: Mapping[str, str], key: TextFormat, value: TextFormat) -> None:
        self._key, self._value = key, value
        self._has_key, self._has_headers = is_true(properties["parse.key"]), is_true(properties["parse.headers"])
        self._key_separator, self._headers_delimiter = properties["key.separator"], properties["headers.delimiter"]
        self._headers_separator = properties["headers.separator"]
        self._header_key_separator = properties["headers.key.separator"]
        self._null_marker = properties.get("null.marker")
        self._ignores_errors = is_true(properties["ignore.error"])

    def parse(self, line: str, number: int) -> ParsedLine:
        """Parse a line; `number` is the number of the line, for errors."""
        rest, headers, key = line, (), None
        if self._has_headers:
            text, rest = self._split(rest, self._headers_delimiter, "headers delimiter", number)
            headers = self._parse_headers(text, number)
        if self._has_key:
            text, rest = self._split(rest, self._key_separator, "key separator", number)
            key = self._parse_field(self._key, text, "key", number)
        return ParsedLine(key, self._parse_field(self._value, rest, "value", number), headers)

    def _split(self, text: str, separator: str, what: str, number: int) -> tuple[str, str]:
        first, found, rest = text.partition(separator)
        if found:
            return first, rest
        if self._ignores_errors:
            return ("" if what == "headers delimiter" else self._null_marker or ""), text
        raise CommandError(
            f"no {what} found on line number {number}: {text!r}; {what} is {separator!r}, a property sets it"
        )

    def _parse_headers(self, text: str, number: int) -> Headers:
        if not text or text == self._null_marker:
            return ()
        found: list[tuple[str, bytes | None]] = []
        for part in text.split(self._headers_separator):
            name, separator, value = part.partition(self._header_key_separator)
            if not separator and not self._ignores_errors:
                raise CommandError(f"no header key separator found in pair {part!r} on line number {number}")
            found.append((name, None if value == self._null_marker else value.encode(errors="surrogateescape")))
        return tuple(found)

    def _parse_field(self, text_format: TextFormat, text: str, what: str, number: int) -> Any:
        if self._null_marker is not None and text == self._null_marker:
            return None
        try:
            return text_format.parse(text)
        except ValueError as error:
            raise CommandError(
                f"the {what} on line number {number} is no {text_format.serde.name}: {text!r} ({error})"
            ) from error


@takes_log(stays=True, creates=True)
def produce(
    log: Log,
    topic: Annotated[str, typer.Option(help="The topic to send to.")],
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            "--reader-property",
            help="parse.key, key.separator, parse.headers, headers.delimiter, headers.separator, "
            "headers.key.separator, null.marker, ignore.error, schema.registry.url, key.schema, value.schema, "
            "value.schema.file: as key=value, with Kafka's meanings.",
        ),
    ] = None,
    key_serializer: Annotated[
        str, typer.Option("--key-serializer", "--key-format", help="string, long, json, avro …, or Kafka's class.")
    ] = "string",
    value_serializer: Annotated[
        str, typer.Option("--value-serializer", "--value-format", help="string, long, json, avro …, or Kafka's class.")
    ] = "string",
    partition: Annotated[int | None, typer.Option(help="Send every record to this partition.")] = None,
    timestamp: Annotated[int | None, typer.Option(help="The timestamp of every record, in ms since the epoch.")] = None,
) -> None:
    """Send the lines of the standard input to a topic, one record a line."""
    chosen = parse_properties(properties or [], PROPERTIES)
    key, value = (
        find_schema_format(key_serializer, "key", chosen),
        find_schema_format(value_serializer, "value", chosen),
    )
    parser = LineParser(chosen, key, value)
    log.topic(topic)
    with Producer(log, key=key.serde, value=value.serde) as producer:
        is_terminal = sys.stdin.isatty()
        for number, line in enumerate(_read_lines(sys.stdin.buffer, is_terminal), 1):
            record = parser.parse(line, number)
            producer.send(
                topic, record.key, record.value, partition=partition, timestamp=timestamp, headers=record.headers
            )
            if is_terminal:
                producer.flush()


def _read_lines(source: BinaryIO, is_terminal: bool) -> Iterator[str]:
    """Read the lines of a file, a pipe or a terminal, without their ends."""
    raw = _prompt(source) if is_terminal else _show_progress(source)
    for line in raw:
        yield line.removesuffix(b"\n").removesuffix(b"\r").decode(errors="surrogateescape")


def _prompt(source: BinaryIO) -> Iterator[bytes]:
    while True:
        sys.stderr.write(">")
        sys.stderr.flush()
        line = source.readline()
        if not line:
            return
        yield line


def _show_progress(source: BinaryIO) -> Iterable[bytes]:
    """Yield lines, with a progress bar if the source is a file, whose size is known, and stderr is a terminal."""
    status = os.fstat(source.fileno())
    if not (stat.S_ISREG(status.st_mode) and sys.stderr.isatty()):
        yield from source
        return
    with Progress(console=stderr(), transient=True) as progress:
        bar = progress.add_task("sending", total=status.st_size)
        for line in source:
            yield line
            progress.advance(bar, len(line))
