"""PostgreSQL: rows are appended or upserted, in one transaction with the number of the batch.

The table `headrace_batches`, which the sink creates beside the target, has the last batch of every part:

    owner (application/sink) | part (task) | checkpoint | batch
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from headrace.checkpoint.steps import step
from headrace.connect.sink import (
    TOKEN,
    Row,
    RowMaker,
    as_names,
    columns_of,
    find_rejected,
    without_none,
)
from headrace.errors import ConfigError, RecordsRejectedError, SinkUnavailableError, StreamsError
from headrace.extras import import_extra
from headrace.model.record import Record
from headrace.model.sink import Sink, SinkBatch, SinkContext, SinkWriter

TYPES = {
    bool: "boolean", int: "bigint", float: "double precision", str: "text", bytes: "bytea", datetime: "timestamptz",
    date: "date", time: "time", timedelta: "interval", Decimal: "numeric", UUID: "uuid",
}  # fmt: skip
_JSON_TYPES = {114, 3802}  # the ids of json and jsonb
_BATCHES = """create table if not exists headrace_batches (
    owner text, part text, checkpoint text not null, batch bigint not null, primary key (owner, part))"""


@dataclass(frozen=True)
class PostgresSink(Sink):
    """Rows of a PostgreSQL table, each record exactly once.

    `mode="append"` inserts a row for each record, with COPY. `mode="upsert"` replaces the row of the record's key, and
    a record without a value deletes it; the target needs a primary key or a unique index on the `key` columns.
    `timestamp` names a column for the records' timestamps. `create`, a type with annotations or a mapping from names
    to types, creates the table if it is missing. A value's fields are the columns.

    >>> PostgresSink("postgresql://shop@db/shop", "orders", key="id", mode="upsert").label
    'orders'
    """

    guarantee = "atomic"

    dsn: str = field(repr=False)
    table: str
    key: str | Sequence[str] = ()
    mode: Literal["append", "upsert"] = "append"
    timestamp: str | None = None
    create: Any = None

    def __post_init__(self) -> None:
        check_mode(self.mode, self.key, "PostgresSink")

    @property
    def label(self) -> str:
        return self.table

    def open(self, context: SinkContext) -> SinkWriter:
        return PostgresWriter(self, context)


def check_mode(mode: str, key: str | Sequence[str], sink: str) -> None:
    """Raises an error for a mode that does not exist, or an upsert without a key."""
    if mode not in {"append", "upsert"}:
        raise ConfigError(f"{sink}: mode is 'append' or 'upsert', not {mode!r}")
    if mode == "upsert" and not key:
        raise ConfigError(f"{sink}: mode='upsert' needs the columns of the key, key='id' or key=('city', 'day')")


class PostgresWriter(SinkWriter):
    """One connection. It locks the rows of the parts in `headrace_batches` against a second owner of the checkpoint."""

    def __init__(self, sink: PostgresSink, context: SinkContext) -> None:
        self._sink, self._context = sink, context
        self._pg: Any = import_extra("psycopg", "postgres")
        self._sql: Any = import_extra("psycopg.sql", "postgres")
        self._json: Any = import_extra("psycopg.types.json", "postgres").Jsonb
        self._rows = RowMaker(as_names(sink.key), sink.timestamp)
        self._columns: dict[str, int] | None = None  # type codes of the target, by name
        self._target = self._sql.Identifier(*sink.table.split("."))
        try:
            self._connection = self._pg.connect(sink.dsn, autocommit=True, connect_timeout=10)
            self._create_tables()
        except (self._pg.OperationalError, self._pg.InterfaceError) as error:
            raise SinkUnavailableError(f"PostgreSQL does not answer: {error}") from error

    def close(self) -> None:
        self._connection.close()

    def write(self, batch: SinkBatch) -> None:
        pg = self._pg
        try:
            with self._connection.transaction(), self._connection.cursor() as cursor:
                batch = batch.without(self._lock_parts(cursor, batch))
                if not batch.parts:
                    return
                rows = self._make_rows(batch)
                try:
                    with self._connection.transaction():
                        self._write_rows(cursor, rows)
                except (pg.DataError, pg.IntegrityError) as error:
                    self._reject(cursor, rows, error)
                with step(TOKEN, self._context.at_step):
                    cursor.execute(
                        "update headrace_batches set batch = %s, checkpoint = %s where owner = %s and part = any(%s)",
                        (batch.number, self._context.checkpoint, self._context.owner, batch.part_names),
                    )
        except (pg.OperationalError, pg.InterfaceError) as error:
            summary = f"PostgreSQL has broken off: {self._without_values(error)}"
            raise SinkUnavailableError(f"PostgreSQL has broken off: {error}", summary=summary) from error
        except pg.ProgrammingError as error:
            what = f"the table {self._sink.table} of PostgreSQL does not fit the records"
            raise StreamsError(
                f"{what}: {error}. Change the table, or name its columns with key= and timestamp= and the fields of "
                "the values",
                summary=f"{what}: {self._without_values(error)}",
            ) from error

    def _create_tables(self) -> None:
        """Creates missing tables, one process at a time: two that create a table at once fail."""
        sink, sql = self._sink, self._sql
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.execute("select pg_advisory_xact_lock(hashtext('headrace_batches'))")
            cursor.execute(_BATCHES)
            if sink.create is None:
                return
            columns = columns_of(sink.create, self._rows.key, sink.timestamp)
            parts = [
                sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(TYPES.get(without_none(kind), "jsonb")))
                for name, kind in columns.items()
            ]
            if sink.mode == "upsert":
                parts.append(sql.SQL("primary key ({})").format(self._list(self._rows.key)))
            statement = sql.SQL("create table if not exists {} ({})")
            cursor.execute(statement.format(self._target, sql.SQL(", ").join(parts)))

    def _lock_parts(self, cursor: Any, batch: SinkBatch) -> dict[str, int]:
        """Locks the rows of the parts, and returns the last batch of each that the target has."""
        context, names = self._context, sorted(batch.part_names)
        cursor.executemany(
            "insert into headrace_batches values (%s, %s, %s, -1) on conflict do nothing",
            [(context.owner, name, context.checkpoint) for name in names],
        )
        cursor.execute(
            "select part, checkpoint, batch from headrace_batches where owner = %s and part = any(%s) "
            "order by part for update",
            (context.owner, names),
        )
        return {part: number for part, checkpoint, number in cursor.fetchall() if checkpoint == context.checkpoint}

    def _make_rows(self, batch: SinkBatch) -> list[Row]:
        return make_rows(self._rows, batch, self._sink.mode)

    def _write_rows(self, cursor: Any, rows: Sequence[Row]) -> None:
        if self._sink.mode == "append":
            self._copy(cursor, self._target, [row for row in rows if row.columns])
            return
        last = self._rows.last_rows(rows)
        self._upsert(cursor, [row for row in last if not row.is_deletion])
        deleted = [self._rows.key_of(row) for row in last if row.is_deletion]
        if deleted:
            sql = self._sql
            equal = sql.SQL(" and ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in self._rows.key)
            cursor.executemany(sql.SQL("delete from {} where {}").format(self._target, equal), deleted)

    def _upsert(self, cursor: Any, rows: Sequence[Row]) -> None:
        if not rows:
            return
        sql, key = self._sql, self._rows.key
        staged = sql.Identifier("headrace_staged")
        cursor.execute(sql.SQL("create temporary table {} (like {} including defaults)").format(staged, self._target))
        for names, some in group_by_columns(rows).items():
            self._copy(cursor, staged, some)
            others = [name for name in names if name not in key]
            change = sql.SQL("nothing")
            if others:
                to = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others)
                change = sql.SQL("update set {}").format(to)
            statement = sql.SQL("insert into {0} ({1}) select {1} from {2} on conflict ({3}) do {4}")
            cursor.execute(statement.format(self._target, self._list(names), staged, self._list(key), change))
            cursor.execute(sql.SQL("delete from {}").format(staged))
        cursor.execute(sql.SQL("drop table {}").format(staged))

    def _copy(self, cursor: Any, into: Any, rows: Sequence[Row]) -> None:
        for names, some in group_by_columns(rows).items():
            as_json = self._find_json_columns(cursor, names)
            with cursor.copy(self._sql.SQL("copy {} ({}) from stdin").format(into, self._list(names))) as copy:
                for row in some:
                    values = [
                        self._json(value)
                        if isinstance(value, dict) or (name in as_json and value is not None)
                        else value
                        for name, value in row.columns.items()
                    ]
                    copy.write_row(values)

    def _find_json_columns(self, cursor: Any, names: Sequence[str]) -> set[str]:
        """Returns the columns of the table that have JSON; raises an error if it lacks one of `names`."""
        if self._columns is None or not self._columns.keys() >= {*names}:
            cursor.execute(self._sql.SQL("select * from {} limit 0").format(self._target))
            self._columns = {column.name: column.type_code for column in cursor.description}
        for name in names:
            if name not in self._columns:
                hint = ". A value without fields is in the column `value`" if name == "value" else ""
                raise StreamsError(
                    f"the table {self._sink.table} of PostgreSQL has no column {name!r}; it has "
                    f"{', '.join(self._columns)}{hint}"
                )
        return {name for name, type_code in self._columns.items() if type_code in _JSON_TYPES}

    def _list(self, names: Sequence[str]) -> Any:
        return self._sql.SQL(", ").join(map(self._sql.Identifier, names))

    def _reject(self, cursor: Any, rows: Sequence[Row], error: Exception) -> None:
        pg = self._pg

        def attempt(some: Sequence[Row]) -> None:
            with self._connection.transaction():
                self._write_rows(cursor, some)

        found = find_rejected(rows, attempt, (pg.DataError, pg.IntegrityError))
        what = f"the table {self._sink.table} of PostgreSQL rejects a record"
        raise RecordsRejectedError(f"{what}: {error}", found, f"{what}: {self._without_values(error)}")

    def _without_values(self, error: Any) -> str:
        """Returns the message of an error without the details and the context, which quote rows.

        The first line of a DataError quotes the value, too; that of other errors has the names of columns and
        constraints.
        """
        if isinstance(error, self._pg.DataError):
            return type(error).__name__
        return error.diag.message_primary or str(error)  # without the former it is an error of the client


def make_rows(maker: RowMaker, batch: SinkBatch, mode: str) -> list[Row]:
    """Makes the rows of a batch. Records that have no row, or in an upsert no key, are rejected."""
    rows: list[Row] = []
    rejected: list[tuple[Record, str]] = []
    for record in batch.records():
        try:
            row = maker.make(record)
            if mode == "upsert":
                maker.key_of(row)
        except ValueError as error:
            rejected.append((record, str(error)))
        else:
            rows.append(row)
    if rejected:
        what = f"{len(rejected)} records cannot be written"
        summary = f"{what}: their values have no fields, or they lack a key"
        raise RecordsRejectedError(f"{what}: {rejected[0][1]}", rejected, summary)
    return rows


def group_by_columns(rows: Sequence[Row]) -> dict[tuple[str, ...], list[Row]]:
    """Groups rows that have the same columns.

    >>> from headrace import Record
    >>> rows = RowMaker().make_all([Record(None, {"a": 1}, 0), Record(None, {"a": 1, "b": 2}, 0)])
    >>> list(group_by_columns(rows))
    [('a',), ('a', 'b')]
    """
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row.columns), []).append(row)
    return found
