"""Lines that become records, by the properties of Kafka's console producer.

`headrace produce`: what `kafka-console-producer` does.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO, NamedTuple

import typer
from rich.progress import Progress

from headrace.cli.options import LogAddress, Servers, log_at
from headrace.cli.printing import Failed, WrongUsage, err, pairs
from headrace.cli.text_formats import Form, form_of
from headrace.clients import Producer

Headers = tuple[tuple[str, bytes | None], ...]
KNOWN = {
    "parse.key": "false",
    "key.separator": "\t",
    "parse.headers": "false",
    "headers.delimiter": "\t",
    "headers.separator": ",",
    "headers.key.separator": ":",
    "null.marker": None,
    "ignore.error": "false",
}


class Sent(NamedTuple):
    """What a line says is to be sent."""

    key: Any
    value: Any
    headers: Headers


@dataclass(frozen=True, slots=True)
class LineReader:
    """Takes lines apart: headers, key and value, in this order, as far as they are asked for."""

    key: Form
    value: Form
    parses_key: bool = False
    key_separator: str = "\t"
    parses_headers: bool = False
    headers_delimiter: str = "\t"
    headers_separator: str = ","
    header_key_separator: str = ":"
    null_marker: str | None = None
    ignores_errors: bool = False

    @classmethod
    def of(cls, properties: Mapping[str, str], key: Form, value: Form) -> LineReader:
        """By Kafka's names of the properties."""
        unknown = sorted(properties.keys() - KNOWN.keys())
        if unknown:
            raise WrongUsage(f"there is no property {unknown[0]!r}: known are {', '.join(KNOWN)}")
        given = {**KNOWN, **properties}
        flags = {name: str(given[name]).lower() == "true" for name in ("parse.key", "parse.headers", "ignore.error")}
        return cls(
            key,
            value,
            flags["parse.key"],
            _unescaped(given["key.separator"]),
            flags["parse.headers"],
            _unescaped(given["headers.delimiter"]),
            _unescaped(given["headers.separator"]),
            _unescaped(given["headers.key.separator"]),
            given["null.marker"],
            flags["ignore.error"],
        )

    def read(self, line: str, number: int) -> Sent:
        """What a line says; `number` is for the sentence if it says nothing that can be sent."""
        rest, headers, key = line, (), None
        if self.parses_headers:
            text, rest = self._split(rest, self.headers_delimiter, "headers delimiter", number)
            headers = self._headers(text, number)
        if self.parses_key:
            text, rest = self._split(rest, self.key_separator, "key separator", number)
            key = self._parsed(self.key, text, "key", number)
        return Sent(key, self._parsed(self.value, rest, "value", number), headers)

    def _split(self, text: str, separator: str, what: str, number: int) -> tuple[str, str]:
        first, found, rest = text.partition(separator)
        if found:
            return first, rest
        if self.ignores_errors:
            return ("" if what == "headers delimiter" else self.null_marker or ""), text
        raise Failed(f"no {what} found on line number {number}: {text!r}; {what} is {separator!r}, a property sets it")

    def _headers(self, text: str, number: int) -> Headers:
        if not text or text == self.null_marker:
            return ()
        found: list[tuple[str, bytes | None]] = []
        for part in text.split(self.headers_separator):
            name, separator, value = part.partition(self.header_key_separator)
            if not separator and not self.ignores_errors:
                raise Failed(f"no header key separator found in pair {part!r} on line number {number}")
            found.append((name, None if value == self.null_marker else value.encode(errors="surrogateescape")))
        return tuple(found)

    def _parsed(self, form: Form, text: str, what: str, number: int) -> Any:
        if self.null_marker is not None and text == self.null_marker:
            return None
        try:
            return form.parse(text)
        except ValueError as error:
            raise Failed(f"the {what} on line number {number} is no {form.serde.name}: {text!r} ({error})") from error


def _unescaped(text: str | None) -> str:
    r"""A separator as it is meant: `\t` is what people write for a tab in a shell."""
    return (text or "").replace("\\t", "\t").replace("\\n", "\n")


def produce(
    topic: Annotated[str, typer.Option(help="The topic to send to.")],
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            "--reader-property",
            help="parse.key, key.separator, parse.headers, headers.delimiter, headers.separator, "
            "headers.key.separator, null.marker, ignore.error: Kafka's, as key=value.",
        ),
    ] = None,
    key_serializer: Annotated[str, typer.Option(help="string, long, json …, or Kafka's class.")] = "string",
    value_serializer: Annotated[str, typer.Option(help="string, long, json …, or Kafka's class.")] = "string",
    partition: Annotated[int | None, typer.Option(help="Send to this partition, whatever the key.")] = None,
    timestamp: Annotated[int | None, typer.Option(help="The time of all records, in ms since the epoch.")] = None,
    log: LogAddress = None,
    bootstrap_server: Servers = None,
) -> None:
    """Send the lines of the standard input to a topic."""
    key, value = form_of(key_serializer), form_of(value_serializer)
    reader = LineReader.of(pairs(properties or [], "--property"), key, value)
    with (
        closing(log_at(log, bootstrap_server)) as opened,
        Producer(opened, key_serde=key.serde, value_serde=value.serde) as producer,
    ):
        opened.topic(topic)
        is_typed = sys.stdin.isatty()
        for number, line in enumerate(_lines(sys.stdin.buffer, is_typed), 1):
            sent = reader.read(line, number)
            producer.send(topic, sent.key, sent.value, partition=partition, timestamp=timestamp, headers=sent.headers)
            if is_typed:
                producer.flush()


def _lines(source: BinaryIO, is_typed: bool) -> Iterator[str]:
    """The lines of a file, a pipe or a keyboard, without what ends them."""
    raw = _prompted(source) if is_typed else _with_progress(source)
    for line in raw:
        yield line.removesuffix(b"\n").removesuffix(b"\r").decode(errors="surrogateescape")


def _prompted(source: BinaryIO) -> Iterator[bytes]:
    while True:
        sys.stderr.write(">")
        sys.stderr.flush()
        line = source.readline()
        if not line:
            return
        yield line


def _with_progress(source: BinaryIO) -> Iterable[bytes]:
    """With a bar, if it is a file, whose end is known, and somebody looks."""
    status = os.fstat(source.fileno())
    if not (stat.S_ISREG(status.st_mode) and sys.stderr.isatty()):
        yield from source
        return
    with Progress(console=err(), transient=True) as progress:
        bar = progress.add_task("sending", total=status.st_size)
        for line in source:
            yield line
            progress.advance(bar, len(line))
