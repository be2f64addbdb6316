"""A store as rows of plain columns, for DataFrames, SQL and files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from headrace.checkpoint.ledger import read_ledger
from headrace.checkpoint.storage import Storage
from headrace.model.ids import TaskId
from headrace.query.catalog import Catalog, StoreDescription
from headrace.query.execution import query_all, read_entries
from headrace.query.json_values import dump_json
from headrace.query.persistent_map import READ_ONLY
from headrace.query.replica import load_task
from headrace.serde.protocol import Serde
from headrace.state.read_only import open_view
from headrace.state.spec import SessionKind, VersionedKind, WindowKind

Row = tuple[Any, ...]
# Spark SQL's types by the names of serdes. Values of all other serdes are JSON text.
_TYPES = {
    "STRING": "string", "LONG": "bigint", "INTEGER": "int", "SHORT": "smallint", "DOUBLE": "double", "FLOAT": "float",
    "BOOLEAN": "boolean", "BYTES": "binary", "UUID": "string",
}  # fmt: skip


class Column(NamedTuple):
    name: str
    type: str


def export_columns(store: StoreDescription) -> list[Column]:
    """List the columns of a store: its key, window, value and timestamp, as far as its kind has them, and partition."""
    window = timestamp = list[Column]()
    if isinstance(store.spec.kind, WindowKind | SessionKind):
        window = [Column("window_start", "bigint"), Column("window_end", "bigint")]
    if isinstance(store.spec.kind, VersionedKind) or store.is_timestamped:
        timestamp = [Column("timestamp", "bigint")]
    key, value = (_TYPES.get(serde.name, "string") for serde in (store.key, store.value))
    return [Column("key", key), *window, Column("value", value), *timestamp, Column("partition", "int")]


def export_rows(storage: Storage, batch: int, catalog: Catalog, name: str, task: TaskId) -> Iterator[Row]:
    """Read the rows of one task of a store after a batch; of a versioned store, the latest versions."""
    store = catalog.describe(name)
    state = catalog.open_task(task, load_task(storage, task, read_ledger(storage, batch).head(task)))
    view = open_view(store.spec, lambda: [state.store(name)], READ_ONLY)
    key, value = _cell_format(store.key), _cell_format(store.value)
    has_timestamp = any(column.name == "timestamp" for column in export_columns(store))
    for entry in read_entries(view, store, query_all(store)):
        timestamp = (entry.timestamp,) if has_timestamp else ()
        yield key(entry.key), *(entry.window or ()), value(entry.value), *timestamp, task.partition


def _cell_format(serde: Serde) -> Callable[[Any], Any]:
    """Return the function that turns a key or a value into the content of its column."""
    if serde.name == "UUID":
        return str
    return (lambda value: value) if serde.name in _TYPES else dump_json
