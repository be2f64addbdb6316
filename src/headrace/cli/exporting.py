# pyright: basic
"""Rows as a file: Parquet, CSV or a line of JSON each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

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
