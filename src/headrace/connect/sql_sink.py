"""Any database that SQLAlchemy knows: MariaDB, MySQL, SQLite, Oracle, SQL Server and others.

Rows and the number of the batch are written in one transaction, as `postgres_sink` does; the table `headrace_batches`
is the same. PostgreSQL is better served by `PostgresSink`, which copies rows instead of inserting them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from headrace.checkpoint.steps import step
from headrace.connect.postgres_sink import check_mode, group_by_columns, make_rows
from headrace.connect.sink import TOKEN, Row, RowMaker, as_names, columns_of, find_rejected, without_none
from headrace.errors import RecordsRejectedError, SinkUnavailableError, StreamsError
from headrace.extras import import_extra
from headrace.model.sink import Sink, SinkBatch, SinkContext, SinkWriter


@dataclass(frozen=True)
class SqlSink(Sink):
    """Rows of a table in a database that SQLAlchemy knows, each record exactly once.

    The options are those of `PostgresSink`. `url` is SQLAlchemy's; install the driver that it names. The engine of the
    table must have transactions (InnoDB, not MyISAM).

    >>> SqlSink("mysql+pymysql://shop@db/shop", "orders", key="id", mode="upsert").label
    'orders'
    """

    guarantee = "atomic"

    url: str = field(repr=False)
    table: str
    key: str | Sequence[str] = ()
    mode: Literal["append", "upsert"] = "append"
    timestamp: str | None = None
    create: Any = None

    def __post_init__(self) -> None:
        check_mode(self.mode, self.key, "SqlSink")

    @property
    def label(self) -> str:
        return self.table

    def open(self, context: SinkContext) -> SinkWriter:
        return SqlWriter(self, context)


class SqlWriter(SinkWriter):
    """One connection. The rows of the parts in `headrace_batches` are updated first, which locks them."""

    def __init__(self, sink: SqlSink, context: SinkContext) -> None:
        self._sink, self._context = sink, context
        self._sa: Any = import_extra("sqlalchemy", "sql")
        self._rows = RowMaker(as_names(sink.key), sink.timestamp)
        sa = self._sa
        self._engine = sa.create_engine(sink.url)
        metadata = sa.MetaData()
        self._batches = sa.Table(
            "headrace_batches", metadata,
            sa.Column("owner", sa.String(200), primary_key=True), sa.Column("part", sa.String(50), primary_key=True),
            sa.Column("checkpoint", sa.String(50), nullable=False), sa.Column("batch", sa.BigInteger, nullable=False),
        )  # fmt: skip
        try:
            self._batches.create(self._engine, checkfirst=True)
            if sink.create is not None:
                self._new_table().create(self._engine, checkfirst=True)
            self._table = sa.Table(
                sink.table.rpartition(".")[2], metadata, autoload_with=self._engine, schema=self._schema
            )
        except sa.exc.NoSuchTableError as error:
            raise StreamsError(
                f"the database has no table {sink.table}: create it, or let the sink do it, create=TYPE"
            ) from error
        except sa.exc.OperationalError as error:
            raise SinkUnavailableError(f"the database of {sink.table} does not answer: {error.orig}") from error

    @property
    def _schema(self) -> str | None:
        return self._sink.table.rpartition(".")[0] or None

    def close(self) -> None:
        self._engine.dispose()

    def write(self, batch: SinkBatch) -> None:
        sa = self._sa
        try:
            with self._engine.begin() as connection:
                batch = batch.without(self._lock_parts(connection, batch))
                if not batch.parts:
                    return
                rows = make_rows(self._rows, batch, self._sink.mode)
                rejections = (sa.exc.DataError, sa.exc.IntegrityError)
                try:
                    with connection.begin_nested():
                        self._write_rows(connection, rows)
                except rejections as error:

                    def attempt(some: Sequence[Row]) -> None:
                        with connection.begin_nested():
                            self._write_rows(connection, some)

                    found = find_rejected(rows, attempt, rejections)
                    what = f"the table {self._sink.table} rejects a record"
                    raise RecordsRejectedError(
                        f"{what}: {error.orig}", found, f"{what}: {_without_values(error)}"
                    ) from error
                with step(TOKEN, self._context.at_step):
                    mine = self._batches.c
                    change = sa.update(self._batches).where(
                        mine.owner == self._context.owner, mine.part.in_(batch.part_names)
                    )
                    connection.execute(change.values(batch=batch.number, checkpoint=self._context.checkpoint))
        except (sa.exc.OperationalError, sa.exc.InterfaceError) as error:
            what = f"the database of {self._sink.table} has broken off"
            summary = f"{what}: {_without_values(error)}"
            raise SinkUnavailableError(f"{what}: {error.orig}", summary=summary) from error
        except (sa.exc.ProgrammingError, sa.exc.CompileError) as error:
            what = f"the table {self._sink.table} does not fit the records"
            raise StreamsError(
                f"{what}: {error}. Change the table, or name its columns with key= and timestamp= and the fields of "
                "the values",
                summary=f"{what}: {_without_values(error)}",
            ) from error

    def _lock_parts(self, connection: Any, batch: SinkBatch) -> dict[str, int]:
        """Locks the rows of the parts, and returns the last batch of each that the target has."""
        sa, mine, context = self._sa, self._batches.c, self._context
        for part in sorted(batch.part_names):
            is_mine = (mine.owner == context.owner, mine.part == part)
            if not connection.execute(sa.update(self._batches).where(*is_mine).values(batch=mine.batch)).rowcount:
                new = {"owner": context.owner, "part": part, "checkpoint": context.checkpoint, "batch": -1}
                connection.execute(sa.insert(self._batches).values(**new))
        found = connection.execute(sa.select(mine.part, mine.checkpoint, mine.batch).where(mine.owner == context.owner))
        return {part: number for part, checkpoint, number in found if checkpoint == context.checkpoint}

    def _write_rows(self, connection: Any, rows: Sequence[Row]) -> None:
        sa, key = self._sa, self._rows.key
        if self._sink.mode == "append":
            for some in group_by_columns([row for row in rows if row.columns]).values():
                connection.execute(sa.insert(self._table), [row.columns for row in some])
            return
        last = self._rows.last_rows(rows)
        deleted = [row for row in last if row.is_deletion]
        if deleted:
            is_row = [self._table.c[name] == sa.bindparam(f"key_{name}") for name in key]
            keys = [{f"key_{name}": row.columns[name] for name in key} for row in deleted]
            connection.execute(sa.delete(self._table).where(*is_row), keys)
        for names, some in group_by_columns([row for row in last if not row.is_deletion]).items():
            self._upsert(connection, names, [row.columns for row in some])

    def _upsert(self, connection: Any, names: Sequence[str], rows: list[dict[str, Any]]) -> None:
        others = [name for name in names if name not in self._rows.key]
        dialect = self._engine.dialect.name
        if dialect in {"mysql", "mariadb"}:
            insert = import_extra("sqlalchemy.dialects.mysql", "sql").insert(self._table)
            changed = {name: insert.inserted[name] for name in others or self._rows.key}
            connection.execute(insert.on_duplicate_key_update(changed), rows)
        elif dialect in {"sqlite", "postgresql"}:
            insert = import_extra(f"sqlalchemy.dialects.{dialect}", "sql").insert(self._table)
            key = list(self._rows.key)
            if others:
                insert = insert.on_conflict_do_update(
                    index_elements=key, set_={name: insert.excluded[name] for name in others}
                )
            else:
                insert = insert.on_conflict_do_nothing(index_elements=key)
            connection.execute(insert, rows)
        else:  # other dialects have no common upsert
            is_row = [self._table.c[name] == self._sa.bindparam(f"key_{name}") for name in self._rows.key]
            keys = [{f"key_{name}": row[name] for name in self._rows.key} for row in rows]
            connection.execute(self._sa.delete(self._table).where(*is_row), keys)
            connection.execute(self._sa.insert(self._table), rows)

    def _new_table(self) -> Any:
        sa, sink = self._sa, self._sink
        types: dict[Any, Any] = {
            bool: sa.Boolean, int: sa.BigInteger, float: sa.Double, str: sa.Text, bytes: sa.LargeBinary,
            datetime: sa.DateTime, date: sa.Date, time: sa.Time, timedelta: sa.Interval, Decimal: sa.Numeric(38, 18),
            UUID: sa.Uuid,
        }  # fmt: skip
        is_upsert = sink.mode == "upsert"
        columns = [
            # A key of MySQL cannot be a text without a length.
            sa.Column(
                name,
                sa.String(255) if kind is str and name in self._rows.key else types.get(without_none(kind), sa.JSON),
                primary_key=is_upsert and name in self._rows.key,
                autoincrement=False,
            )
            for name, kind in columns_of(sink.create, self._rows.key, sink.timestamp).items()
        ]
        return sa.Table(sink.table.rpartition(".")[2], sa.MetaData(), *columns, schema=self._schema)


def _without_values(error: Any) -> str:
    """Returns the kind of an error and the database's code for it: the message may quote a row.

    >>> class Refused(Exception):
    ...     orig = ValueError(1062, "Duplicate entry '4111' for key 'PRIMARY'")
    >>> _without_values(Refused())
    'ValueError 1062'
    """
    cause: Any = getattr(error, "orig", None)
    if cause is None:  # SQLAlchemy's own: a column that the table does not have
        return str(error)
    code: Any = next(iter(getattr(cause, "args", ())), None)
    return f"{type(cause).__name__} {code}" if isinstance(code, int) else type(cause).__name__
