"""What the commands print: tables for people, JSON for programs, sentences for mistakes.

Rows as a file: Parquet, CSV or a line of JSON each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import TyperException

_WIDE = 10_000  # columns: what goes into a file or a pipe is not wrapped


class WrongUsage(TyperException):
    """A command that was called in a way that makes no sense."""

    exit_code = 2


class Failed(TyperException):
    """A command that could not do what it should; the message is one sentence."""


def out() -> Console:
    """Where results go; coloured only on a terminal."""
    return _console(sys.stdout)


def err() -> Console:
    """Where everything else goes."""
    return _console(sys.stderr)


def _console(file: Any) -> Console:
    return Console(file=file, highlight=False, markup=False, width=None if file.isatty() else _WIDE)


def show(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool) -> None:
    """Rows as a table of some of their fields, or all of it as JSON."""
    if as_json:
        show_json(list(rows))
        return
    out().print(table_of(rows, columns))


def table_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        is_number = bool(rows) and all(isinstance(row.get(column), int) for row in rows)
        table.add_column(column.replace("_", " "), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("-" if row.get(column) is None else str(row[column])) for column in columns))
    return table


def show_json(thing: Any) -> None:
    """A thing as JSON, indented, in ASCII on terminals and files that know no more."""
    sys.stdout.write(json.dumps(thing, indent=2, default=str) + "\n")


def say(sentence: str) -> None:
    """A remark beside the results."""
    err().print(Text(sentence), soft_wrap=True)


def pairs(given: Sequence[str], flag: str) -> dict[str, str]:
    """What key=value arguments say; the last one of a name counts.

    >>> pairs(["print.key=true", "key.separator=,"], "--property")
    {'print.key': 'true', 'key.separator': ','}
    """
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise WrongUsage(f"{flag} takes key=value, not {text!r}")
        found[name] = value
    return found


def hush() -> None:
    """Lets nobody complain that whoever read our output has enough of it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


# pyright: basic


KINDS = (".parquet", ".csv", ".ndjson")


def write(output: Path, rows: Sequence[Sequence[Any]], names: Sequence[str]) -> None:
    """The kind of the file is in its name."""
    if output.suffix == ".ndjson":
        lines = (dict(zip(names, row, strict=True)) for row in rows)
        output.write_bytes(b"".join(orjson.dumps(line, default=_text) + b"\n" for line in lines))
        return
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    table = pa.table({name: list(column) for name, column in zip(names, columns, strict=True)})
    if output.suffix == ".parquet":
        pq.write_table(table, output)
    else:
        pc.write_csv(table, output)


def _text(thing: Any) -> str:
    """Bytes, in hexadecimal digits."""
    return bytes(thing).hex()
