"""Rows as Arrow tables and files: what files, Delta Lake and Iceberg share."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import orjson

from headrace.connect.sink import Row, columns_of, find_rejected, without_none
from headrace.errors import ConfigError, RecordsRejectedError
from headrace.extras import lazy_extra

_arrow = lazy_extra("pyarrow", "files")
_csv = lazy_extra("pyarrow.csv", "files")
_parquet = lazy_extra("pyarrow.parquet", "files")
Format = Literal["parquet", "csv", "json"]
EXTENSIONS = {"parquet": "parquet", "csv": "csv", "json": "jsonl"}


def arrow_schema(kind: Any, key: Sequence[str] = (), timestamp: str | None = None) -> Any:
    """Returns an Arrow schema, or that of a type with annotations or of a mapping from names to types.

    >>> print(arrow_schema({"amount": float, "tags": list[str]}, key=["id"]))
    id: string
    amount: double
    tags: list<item: string>
      child 0, item: string
    """
    if isinstance(kind, _arrow.Schema):
        return kind
    columns = columns_of(kind, key, timestamp)
    return _arrow.schema([(name, arrow_type(column)) for name, column in columns.items()])


def arrow_type(kind: Any) -> Any:
    """Returns the Arrow type of a Python type."""
    types = {
        bool: _arrow.bool_(), int: _arrow.int64(), float: _arrow.float64(), str: _arrow.string(),
        bytes: _arrow.binary(), datetime: _arrow.timestamp("us", tz="UTC"), date: _arrow.date32(),
        time: _arrow.time64("us"), timedelta: _arrow.duration("us"), Decimal: _arrow.decimal128(38, 18),
        UUID: _arrow.string(),
    }  # fmt: skip
    plain = without_none(kind)
    if plain in types:
        return types[plain]
    origin, arguments = getattr(plain, "__origin__", None), getattr(plain, "__args__", ())
    if origin in (list, tuple, set) and arguments:
        return _arrow.list_(arrow_type(arguments[0]))
    if origin is dict and len(arguments) == 2:
        return _arrow.map_(arrow_type(arguments[0]), arrow_type(arguments[1]))
    raise ConfigError(f"{kind!r} has no type in Arrow: give the sink a schema of pyarrow")


def arrow_table(rows: Sequence[Mapping[str, Any]], schema: Any | None) -> Any:
    """Makes an Arrow table of rows. Without a schema, Arrow infers one.

    >>> arrow_table([{"a": 1}, {"a": 2, "b": "x"}], None).to_pylist()
    [{'a': 1, 'b': None}, {'a': 2, 'b': 'x'}]
    """
    if schema is None:
        names = dict.fromkeys(name for row in rows for name in row)
        return _arrow.table({name: _arrow.array([row.get(name) for row in rows]) for name in names})
    return _arrow.table({field.name: _column(rows, field) for field in schema}, schema=schema)


def _column(rows: Sequence[Mapping[str, Any]], field: Any) -> Any:
    values = [row.get(field.name) for row in rows]
    try:
        return _arrow.array(values, field.type)
    except (_arrow.ArrowTypeError, _arrow.ArrowInvalid):
        # A record that travelled as MessagePack or JSON has texts for dates and decimals.
        try:
            return _arrow.array(values).cast(field.type)
        except _arrow.ArrowNotImplementedError as error:
            raise _arrow.ArrowInvalid(str(error)) from error


def encode_file(table: Any, kind: Format) -> bytes:
    r"""
    >>> encode_file(arrow_table([{"a": 1}], None), "json")
    b'{"a":1}\n'
    """
    out = io.BytesIO()
    match kind:
        case "parquet":
            _parquet.write_table(table, out, compression="zstd")
        case "csv":
            _csv.write_csv(table, out)
        case "json":
            for row in table.to_pylist():
                out.write(orjson.dumps(row, default=str) + b"\n")
    return out.getvalue()


def read_parquet(data: bytes) -> Any:
    return _parquet.read_table(io.BytesIO(data))


def encode_rows(rows: Sequence[Row], schema: Any | None, target: str, kind: Format = "parquet") -> bytes:
    """Makes a file of rows. Rows that do not fit the schema are rejected, with `target` in the message."""

    def attempt(some: Sequence[Row]) -> None:
        encode_file(arrow_table([row.columns for row in some], schema), kind)  # it checks for nulls, too

    try:
        return encode_file(arrow_table([row.columns for row in rows], schema), kind)
    except rejections() as error:
        found = find_rejected(rows, attempt, rejections())
        what = f"a record does not fit the schema of {target}"
        raise RecordsRejectedError(f"{what}: {error}", found, f"{what}: {type(error).__name__}") from error


def rejections() -> tuple[type[Exception], ...]:
    """The errors of Arrow for values that do not fit the schema."""
    return _arrow.ArrowInvalid, _arrow.ArrowTypeError
