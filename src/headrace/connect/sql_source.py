"""Rows of a table of any SQL database, by a column that grows with every new row."""

from __future__ import annotations

import time
from dataclasses import KW_ONLY, dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any, cast

from headrace.connect.rows import RowFunction, make_record
from headrace.errors import ConfigError
from headrace.extras import import_extra
from headrace.serde.json import JSON
from headrace.serde.protocol import Serde
from headrace.topology.connectors import SourceBatch, SourcePosition, SourceReader

_PAUSE = 0.5  # seconds between two queries that found nothing


@dataclass(frozen=True)
class SqlSource:
    """Reads the rows of a table, in the order of a column whose values are unique and only grow.

    `url` is SQLAlchemy's, such as `postgresql+psycopg://host/shop` or `mysql+pymysql://host/shop`. A row that gets a
    value of `column` smaller than one that was read is never seen, and neither are updates and deletes. With an
    auto-increment column that can happen if transactions commit in another order than they insert; `PostgresChanges`
    has none of these limits.

    The values are dicts. Decimals and dates are text in them.

    >>> SqlSource("sqlite:///shop.db", "orders", column="id", key_of="id").name
    'orders'
    """

    url: str = field(repr=False)  # it may have a password
    table: str
    _: KW_ONLY
    column: str
    name: str = ""
    key_of: RowFunction = None
    timestamp_of: RowFunction = None
    key: Serde[Any] = JSON
    value: Serde[Any] = JSON

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.table.rpartition(".")[2])

    def open(self, position: SourcePosition) -> SourceReader:
        return _SqlReader(self, position)


class _SqlReader:
    def __init__(self, source: SqlSource, position: SourcePosition) -> None:
        self._sql: Any = import_extra("sqlalchemy", "sql")
        self._source, self._last = source, position
        self._engine: Any = self._sql.create_engine(source.url, poolclass=self._sql.pool.StaticPool)
        schema, _, name = source.table.rpartition(".")
        try:
            table = self._sql.Table(name, self._sql.MetaData(), schema=schema or None, autoload_with=self._engine)
        except self._sql.exc.NoSuchTableError as error:
            raise ConfigError(f"the database has no table {source.table!r}") from error
        if source.column not in table.columns:
            raise ConfigError(f"the table {source.table!r} has no column {source.column!r}")
        self._table: Any = table
        self._lag: int | None = None

    def read(self, max_records: int, timeout: float) -> SourceBatch | None:
        end = time.monotonic() + timeout
        while not (rows := self._query(max_records)):
            left = end - time.monotonic()
            if left <= 0:
                self._lag = 0
                return None
            time.sleep(min(left, _PAUSE))
        self._lag = None if len(rows) == max_records else 0
        self._last = rows[-1][self._source.column]
        source = self._source
        return SourceBatch([make_record(row, source.key_of, source.timestamp_of) for row in rows], self._last)

    def _query(self, max_records: int) -> list[dict[str, Any]]:
        column = self._table.c[self._source.column]
        query: Any = self._sql.select(self._table).order_by(column).limit(max_records)
        if self._last is not None:
            query = query.where(column > self._last_value(column))
        with self._engine.connect() as connection:
            return [_plain(row._mapping) for row in connection.execute(query)]  # noqa: SLF001 - SQLAlchemy's name

    def _last_value(self, column: Any) -> Any:
        """The position is JSON, so dates come back as text."""
        try:
            kind: type = column.type.python_type
        except NotImplementedError:
            return self._last
        if isinstance(self._last, str) and kind in (datetime, date):
            return kind.fromisoformat(self._last)
        return Decimal(self._last) if kind is Decimal else self._last

    def acknowledge(self, position: SourcePosition) -> None:
        pass

    def lag(self) -> int | None:
        return self._lag

    def close(self) -> None:
        self._engine.dispose()


def _plain(row: Any) -> dict[str, Any]:
    """Makes a dict of a row, with what JSON has not as text."""
    return {str(name): _plain_value(value) for name, value in row.items()}


def _plain_value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str | list | dict):
        return cast("Any", value)
    if isinstance(value, date):  # a datetime is one
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)
