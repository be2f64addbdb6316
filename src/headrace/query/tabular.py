"""A store as rows of plain columns: for tables, files and SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import orjson

from headrace.commit.chain import read_delta
from headrace.commit.ledger import read_ledger
from headrace.commit.storage import Storage
from headrace.model.ids import TaskId
from headrace.query.catalog import Catalog, Shelf
from headrace.query.entries import Entries
from headrace.query.form import to_form
from headrace.serde.protocol import Serde
from headrace.state.spec import KeyValueKind, SessionKind, VersionedKind, WindowKind

Row = tuple[Any, ...]
# Types by the serde's name, in the words that Spark's SQL has for them. What has none is text: JSON.
_TYPES = {
    "STRING": "string", "LONG": "bigint", "INTEGER": "int", "SHORT": "smallint", "DOUBLE": "double", "FLOAT": "float",
    "BOOLEAN": "boolean", "BYTES": "binary", "UUID": "string",
}  # fmt: skip


class Column(NamedTuple):
    name: str
    type: str


def columns_of(shelf: Shelf) -> list[Column]:
    """Key, window, value, time: what a store of this kind has."""
    kind = shelf.spec.kind
    between: list[Column] = []
    if isinstance(kind, WindowKind | SessionKind):
        between = [Column("window_start", "bigint"), Column("window_end", "bigint")]
    after: list[Column] = []
    if isinstance(kind, VersionedKind) or (isinstance(kind, KeyValueKind | WindowKind) and kind.timestamped):
        after = [Column("timestamp", "bigint")]
    partition = Column("partition", "int")
    return [
        Column("key", _type(shelf.key)), *between, Column("value", _type(shelf.value)), *after, partition
    ]  # fmt: skip


def rows_of(storage: Storage, batch: int, catalog: Catalog, store: str, task: TaskId) -> Iterator[Row]:
    """The rows of one task after a batch; of a versioned store the latest versions."""
    standing, entries = read_ledger(storage, batch).standing(task), Entries()
    for link in standing.chain:
        delta = read_delta(storage, task, link)
        entries = entries.after(delta.changes, delta.version)
    shelf = catalog.shelf(store)
    opened = catalog.open(task, entries).store(store)
    key, value = _cell(shelf.key), _cell(shelf.value)
    part = (task.partition,)
    match shelf.spec.kind:
        case WindowKind(timestamped=True):
            return ((key(at.key), *at.window, value(v.value), v.timestamp, *part) for at, v in opened.all())
        case WindowKind() | SessionKind():
            return ((key(at.key), *at.window, value(v), *part) for at, v in opened.all())
        case VersionedKind():
            return ((key(k), value(v.value), v.timestamp, *part) for k, v in opened.latest())
        case KeyValueKind(timestamped=True):
            return ((key(k), value(v.value), v.timestamp, *part) for k, v in opened.all())
        case _:
            return ((key(k), value(v), *part) for k, v in opened.all())


def _type(serde: Serde) -> str:
    return _TYPES.get(serde.name, "string")


def _cell(serde: Serde) -> Callable[[Any], Any]:
    """How a key or value becomes what its column holds."""
    if serde.name == "UUID":
        return str
    return (lambda thing: thing) if serde.name in _TYPES else (lambda thing: orjson.dumps(to_form(thing)).decode())
