"""Apache Iceberg: one commit for each batch, which also sets a property of the table to the number of the batch.

The parts of a batch are written as Parquet files, by the slots if there are many records. `commit` adds the files to
the table, or upserts their rows, in the transaction that sets the property `headrace.<owner>`; the snapshot has the
number, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.checkpoint.files import format_number
from headrace.checkpoint.receipt import new_attempt
from headrace.checkpoint.steps import step
from headrace.connect.parquet import arrow_schema, encode_rows, read_parquet
from headrace.connect.postgres_sink import check_mode, make_rows
from headrace.connect.sink import TOKEN, RowMaker, as_names
from headrace.errors import SinkUnavailableError, StreamsError
from headrace.extras import import_extra
from headrace.model.sink import Sink, SinkBatch, SinkContext, SinkWriter


@dataclass(frozen=True)
class IcebergSink(Sink):
    """Rows of an Iceberg table, each record exactly once; one snapshot for each batch that is appended.

    `catalog` has the properties of pyiceberg's catalog, and its name if that is not "default"; `table` is
    "namespace.name". The modes and `create` are those of `DeltaSink`.

    >>> IcebergSink({"type": "sql", "uri": "sqlite:////lake/catalog.db", "warehouse": "/lake"}, "shop.orders").label
    'shop.orders'
    """

    guarantee = "atomic"

    catalog: Mapping[str, str] = field(repr=False)
    table: str
    key: str | Sequence[str] = ()
    mode: Literal["append", "upsert"] = "append"
    timestamp: str | None = None
    create: Any = None

    def __post_init__(self) -> None:
        check_mode(self.mode, self.key, "IcebergSink")

    @property
    def label(self) -> str:
        return self.table

    def open(self, context: SinkContext) -> SinkWriter:
        return IcebergWriter(self, context)


class IcebergWriter(SinkWriter):
    """Writes files, and commits them. Iceberg rejects a commit that is not based on the last one."""

    def __init__(self, sink: IcebergSink, context: SinkContext) -> None:
        self._sink, self._context = sink, context
        self._rows = RowMaker(as_names(sink.key), sink.timestamp)
        self._expressions: Any = import_extra("pyiceberg.expressions", "iceberg")
        errors: Any = import_extra("pyiceberg.exceptions", "iceberg")
        # A commit whose outcome is not known is tried again, too: the property of the table says whether it was done.
        self._passing = (
            errors.CommitFailedException, errors.CommitStateUnknownException, errors.ServerError,
            errors.ServiceUnavailableError, errors.AuthorizationExpiredError, OSError, *_database_errors(),
        )  # fmt: skip
        given = {"name": "default", **sink.catalog}
        try:
            self._catalog = import_extra("pyiceberg.catalog", "iceberg").load_catalog(given.pop("name"), **given)
            if sink.create is not None:
                self._catalog.create_namespace_if_not_exists(sink.table.rpartition(".")[0])
                schema = arrow_schema(sink.create, self._rows.key, sink.timestamp)
                self._catalog.create_table_if_not_exists(sink.table, schema)
            self._table = self._catalog.load_table(sink.table)
        except errors.NoSuchTableError as error:
            raise StreamsError(
                f"there is no Iceberg table {sink.table}: create it, or let the sink do it, create=TYPE"
            ) from error
        except self._passing as error:
            raise SinkUnavailableError(f"the catalog of {sink.table} does not answer: {error}") from error

    def close(self) -> None:
        self._catalog.close()

    def write(self, batch: SinkBatch) -> list[Any]:
        rows = make_rows(self._rows, batch, self._sink.mode)
        kept = [row for row in (self._rows.last_rows(rows) if self._sink.mode == "upsert" else rows) if row.columns]
        schema = self._table.schema().as_arrow()
        present = [row for row in kept if not (row.is_deletion and self._sink.mode == "upsert")]
        deleted = (
            [list(self._rows.key_of(row)) for row in kept if row.is_deletion] if self._sink.mode == "upsert" else []
        )
        name = f"headrace-{self._context.checkpoint[:8]}-{format_number(batch.number)}-{new_attempt()}.parquet"
        path = f"{self._table.location()}/data/{name}"
        with self._table.io.new_output(path).create(overwrite=True) as file:
            file.write(encode_rows(present, schema.remove_metadata(), self._sink.label))
        return [path, len(present), deleted]

    def commit(self, number: int, written: Sequence[Any]) -> None:
        token = f"headrace.{self._context.owner}"
        try:
            self._table.refresh()
        except self._passing as error:
            raise SinkUnavailableError(f"the catalog of {self._sink.table} does not answer: {error}") from error
        checkpoint, _, last = self._table.properties.get(token, "").partition(":")
        if checkpoint == self._context.checkpoint and int(last) >= number:
            return
        said = {"headrace.batch": str(number)}
        try:
            with self._table.transaction() as transaction:
                transaction.set_properties({token: f"{self._context.checkpoint}:{number}"})
                if self._sink.mode == "append":
                    files = [path for path, rows, _ in written if rows]
                    if files:
                        transaction.add_files(files, snapshot_properties=said)
                else:
                    self._upsert(transaction, written, said)
                with step(TOKEN, self._context.at_step):
                    pass
        except self._passing as error:
            raise SinkUnavailableError(f"{self._sink.table} does not take batch {number}: {error}") from error

    def _upsert(self, transaction: Any, written: Sequence[Any], said: dict[str, str]) -> None:
        equal, both, either = (getattr(self._expressions, name) for name in ("EqualTo", "And", "Or"))
        names = self._rows.key
        pa: Any = import_extra("pyarrow", "iceberg")
        tables = [read_parquet(self._table.io.new_input(path).open().read()) for path, rows, _ in written if rows]
        condition: Any = None
        for key in (key for *_, keys in written for key in keys):
            one: Any = None
            for name, value in zip(names, key, strict=True):
                one = equal(name, value) if one is None else both(one, equal(name, value))
            condition = one if condition is None else either(condition, one)
        if condition is not None:
            transaction.delete(condition, snapshot_properties=said)
        if tables:
            transaction.upsert(pa.concat_tables(tables), join_cols=list(names), snapshot_properties=said)
        for path, *_ in written:
            self._table.io.delete(path)


def _database_errors() -> tuple[type[Exception], ...]:
    """The errors of a catalog in a SQL database that does not answer, or that another process has locked."""
    try:
        from sqlalchemy.exc import InterfaceError, OperationalError  # noqa: PLC0415 - an extra
    except ImportError:
        return ()
    return InterfaceError, OperationalError
