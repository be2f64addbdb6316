"""What sources of rows share: the key and the timestamp of a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import ConfigError
from headrace.topology.connectors import SourceRecord

# A field of the row, or a function of the row.
RowFunction = str | Callable[[Any], Any] | None


def make_record(row: Any, key_of: RowFunction, timestamp_of: RowFunction) -> SourceRecord:
    """Makes a record of a row.

    >>> make_record({"id": 7, "at": 10}, "id", lambda row: row["at"] * 1000)
    SourceRecord(key=7, value={'id': 7, 'at': 10}, timestamp=10000, headers=(), partition=None)
    """
    return SourceRecord(_apply(key_of, row, "key_of"), row, _apply(timestamp_of, row, "timestamp_of"))


def _apply(function: RowFunction, row: Any, option: str) -> Any:
    if function is None:
        return None
    if not isinstance(function, str):
        return function(row)
    try:
        return row[function]
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{option}={function!r}: there is no such field in the row {str(row)[:200]}") from error
