"""`headrace produce`: what `kafka-console-producer` does."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Annotated, BinaryIO

import typer
from rich.progress import Progress

from headrace.cli.forms import form_of
from headrace.cli.lines import LineReader
from headrace.cli.options import LogAddress, Servers, log_at
from headrace.cli.printing import err, pairs
from headrace.log import Producer


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
