"""Delta Lake: one commit for each batch, with the number of the batch as the version of an application transaction.

The parts of a batch are written as Parquet files, by the slots if there are many records. `commit` adds the files to
the table, or merges their rows into it, in one commit. A file without a commit is no part of the table; `vacuum`
removes it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.checkpoint.files import format_number
from headrace.checkpoint.receipt import new_attempt
from headrace.checkpoint.steps import step
from headrace.checkpoint.storage import parse_object_url
from headrace.connect.file_sink import RETRY, is_object_url, open_store
from headrace.connect.parquet import arrow_schema, encode_rows, read_parquet
from headrace.connect.postgres_sink import check_mode, make_rows
from headrace.connect.sink import TOKEN, RowMaker, as_names
from headrace.errors import SinkUnavailableError, StreamsError
from headrace.extras import import_extra, lazy_extra
from headrace.model.sink import Sink, SinkBatch, SinkContext, SinkWriter

_obstore = lazy_extra("obstore", "delta")
_errors = lazy_extra("obstore.exceptions", "delta")
STAGED = "_headrace"  # a folder that Delta's readers ignore


@dataclass(frozen=True)
class DeltaSink(Sink):
    """Rows of a Delta table, each record exactly once; one commit for each batch.

    `mode="append"` adds rows. `mode="upsert"` replaces the row of the record's key, and a record without a value
    deletes it. `create`, a schema of pyarrow, a type with annotations or a mapping from names to types, creates the
    table if it is missing. `options` are those of the object store, as for `FileSink`.

    >>> DeltaSink("s3://lake/orders", key="id", mode="upsert").label
    'orders'
    """

    guarantee = "atomic"

    table: str = field(repr=False)
    key: str | Sequence[str] = ()
    mode: Literal["append", "upsert"] = "append"
    timestamp: str | None = None
    create: Any = None
    options: Mapping[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_mode(self.mode, self.key, "DeltaSink")

    @property
    def label(self) -> str:
        return self.table.partition("?")[0].rstrip("/").rpartition("/")[2]

    def open(self, context: SinkContext) -> SinkWriter:
        return DeltaWriter(self, context)


class DeltaWriter(SinkWriter):
    """Writes files, and commits them. Delta rejects a second commit of the same application transaction."""

    def __init__(self, sink: DeltaSink, context: SinkContext) -> None:
        self._sink, self._context = sink, context
        self._rows = RowMaker(as_names(sink.key), sink.timestamp)
        self._delta: Any = import_extra("deltalake", "delta")
        self._actions: Any = import_extra("deltalake.transaction", "delta")
        self._errors: Any = import_extra("deltalake.exceptions", "delta")
        place, options = sink.table, dict[str, str]()
        if is_object_url(sink.table):
            place, options = parse_object_url(sink.table, sink.options or {})
            options = {"max_retries": str(RETRY["max_retries"]), "retry_timeout": "10s", **options}
        try:
            if sink.create is not None:
                schema = arrow_schema(sink.create, self._rows.key, sink.timestamp)
                self._delta.DeltaTable.create(place, schema, mode="ignore", storage_options=options)
            self._table = self._delta.DeltaTable(place, storage_options=options)
            self._store = open_store(sink.table, sink.options)
        except self._errors.TableNotFoundError as error:
            raise StreamsError(
                f"there is no Delta table {sink.label}: create it, or let the sink do it, create=TYPE"
            ) from error
        except OSError as error:
            raise SinkUnavailableError(f"the Delta table {sink.label} cannot be opened: {error}") from error

    def write(self, batch: SinkBatch) -> list[Any]:
        rows = make_rows(self._rows, batch, self._sink.mode)
        kept = [row for row in (self._rows.last_rows(rows) if self._sink.mode == "upsert" else rows) if row.columns]
        data = encode_rows(kept, self._schema(), self._sink.label)
        name = f"headrace-{self._context.checkpoint[:8]}-{format_number(batch.number)}-{new_attempt()}.parquet"
        path = f"{STAGED}/{name}" if self._sink.mode == "upsert" else name
        deleted = (
            [list(self._rows.key_of(row)) for row in kept if row.is_deletion] if self._sink.mode == "upsert" else []
        )
        try:
            _obstore.put(self._store, path, data)
        except _errors.BaseError as error:
            raise SinkUnavailableError(f"{self._sink.label} does not take {path}: {error}") from error
        return [path, len(kept), len(data), deleted]

    def commit(self, number: int, written: Sequence[Any]) -> None:
        owner = f"{self._context.owner}/{self._context.checkpoint}"
        self._table.update_incremental()
        last = self._table.transaction_version(owner)
        if last is not None and last >= number:
            return
        token = self._delta.CommitProperties(
            custom_metadata={"headrace.batch": str(number)},
            app_transactions=[self._delta.Transaction(owner, number)],
        )
        with step(TOKEN, self._context.at_step):
            try:
                if self._sink.mode == "append":
                    self._append(written, token)
                else:
                    self._merge(written, token)
            except (self._errors.CommitFailedError, _errors.BaseError, OSError) as error:
                raise SinkUnavailableError(f"{self._sink.label} does not take batch {number}: {error}") from error

    def _schema(self) -> Any:
        """The schema of the table, in pyarrow's types."""
        return import_extra("pyarrow", "delta").schema(self._table.schema().to_arrow())

    def _append(self, written: Sequence[Any], token: Any) -> None:
        now = int(1000 * time.time())
        actions = [
            self._actions.AddAction(path, size, {}, now, data_change=True, stats=f'{{"numRecords": {rows}}}')
            for path, rows, size, _ in written
        ]
        self._table.create_write_transaction(
            actions, mode="append", schema=self._table.schema(), commit_properties=token
        )

    def _merge(self, written: Sequence[Any], token: Any) -> None:
        pa: Any = import_extra("pyarrow", "delta")
        tables = [read_parquet(bytes(_obstore.get(self._store, path).bytes())) for path, *_ in written]
        rows = pa.concat_tables(tables)
        deleted = {tuple(key) for *_, keys in written for key in keys}
        names = self._rows.key
        keys = zip(*(rows.column(name).to_pylist() for name in names), strict=True)
        rows = rows.append_column("_is_deleted", pa.array([key in deleted for key in keys], pa.bool_()))
        same = " and ".join(f'target."{name}" = source."{name}"' for name in names)
        columns = {f'"{name}"': f'source."{name}"' for name in rows.column_names if name != "_is_deleted"}
        (
            self._table.merge(rows, same, source_alias="source", target_alias="target", commit_properties=token)
            .when_matched_delete(predicate='source."_is_deleted"')
            .when_matched_update(columns)
            .when_not_matched_insert(columns, predicate='not source."_is_deleted"')
            .execute()
        )
        _obstore.delete(self._store, [path for path, *_ in written])
