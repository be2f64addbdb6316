"""Stores as tables of HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, cast

from headrace.html import render_table
from headrace.model.record import ValueAndTimestamp, VersionedRecord
from headrace.model.windows import Windowed


def render_entries(caption: str, entries: Iterable[tuple[Any, Any]]) -> str:
    """A table of the first entries of a store; windows and timestamps have columns of their own.

    >>> "timestamp" in render_entries("prices", [("tea", ValueAndTimestamp(2, 7))])
    True
    """
    left = iter(entries)
    first = next(left, None)
    if first is None:
        return render_table(["key", "value"], [], caption=f"{caption}: empty")
    columns = ["key", *(["window start", "window end"] if isinstance(first[0], Windowed) else []), "value"]
    if isinstance(first[1], ValueAndTimestamp | VersionedRecord):
        columns.append("timestamp")
    return render_table(columns, map(_row, chain([first], left)), caption=caption)


def _row(entry: tuple[Any, Any]) -> list[Any]:
    return list(_cells(*entry))


def _cells(key: Any, value: Any) -> Iterator[Any]:
    if isinstance(key, Windowed):
        windowed = cast("Windowed[Any]", key)
        yield from (windowed.key, windowed.window.start, windowed.window.end)
    else:
        yield key
    if isinstance(value, ValueAndTimestamp | VersionedRecord):
        stamped = cast("ValueAndTimestamp[Any]", value)
        yield from (stamped.value, stamped.timestamp)
    else:
        yield value
