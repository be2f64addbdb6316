"""What the commands print and write: tables for people, JSON for programs, notes, errors and files of rows.

Results go to the standard output, notes and errors to the standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import TyperException

from headrace.extras import import_extra

_UNWRAPPED = 10_000  # columns: output to a file or a pipe is not wrapped
FILE_FORMATS = (".parquet", ".csv", ".ndjson")


class UsageError(TyperException):
    """The command was called with arguments that make no sense. It exits with 2."""

    exit_code = 2


class CommandError(TyperException):
    """The command failed. The message is one sentence. It exits with 1."""


def stdout() -> Console:
    """Return a console for results, which are coloured only on a terminal."""
    return _make_console(sys.stdout)


def stderr() -> Console:
    """Return a console for notes, progress and errors."""
    return _make_console(sys.stderr)


def _make_console(file: Any) -> Console:
    return Console(file=file, highlight=False, markup=False, width=None if file.isatty() else _UNWRAPPED)


def print_rows(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool, verbatim: bool = False
) -> None:
    """Print rows as a table of some of their fields, or with all their fields as JSON.

    The heads of the table are the names of the fields as words, or `verbatim`, where they can be used in a query.
    """
    if as_json:
        print_json(list(rows))
    else:
        stdout().print(make_table(rows, columns, verbatim=verbatim))


def print_names(names: Sequence[str], *, as_json: bool) -> None:
    """Print names, one a line, or as JSON."""
    if as_json:
        print_json(names)
    else:
        sys.stdout.write("".join(f"{name}\n" for name in names))


def make_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, verbatim: bool = False) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        is_number = bool(rows) and all(isinstance(row.get(column), int) for row in rows)
        table.add_column(
            column if verbatim else column.replace("_", " "), justify="right" if is_number else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text("-" if row.get(column) is None else make_visible(str(row[column]))) for column in columns))
    return table


def make_visible(text: str) -> str:
    r"""Return a text of a record with escapes for control characters, which could change the terminal.

    >>> make_visible("tea\x1b[2J\x00é")
    'tea\\x1b[2J\\x00é'
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode() for one in text)


def print_json(value: Any) -> None:
    """Print a value as indented JSON in ASCII, which every terminal and file can hold."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def print_note(sentence: str) -> None:
    """Print a sentence to the standard error, beside the results."""
    stderr().print(Text(sentence), soft_wrap=True)


def silence_stdout() -> None:
    """Discard further output after the reader of a pipe has closed it, so that Python's exit raises no error."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def write_file(output: Path, rows: Sequence[Sequence[Any]], names: Sequence[str]) -> None:
    """Write rows as Parquet, CSV or lines of JSON, by the suffix of the file's name."""
    if output.suffix == ".ndjson":
        lines = (dict(zip(names, row, strict=True)) for row in rows)
        output.write_bytes(b"".join(orjson.dumps(line, default=bytes.hex) + b"\n" for line in lines))
        return
    pa: Any = import_extra("pyarrow", "files")
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    table: Any = pa.table({name: list(column) for name, column in zip(names, columns, strict=True)})
    if output.suffix == ".parquet":
        import_extra("pyarrow.parquet", "files").write_table(table, output)
    else:
        import_extra("pyarrow.csv", "files").write_csv(table, output)
