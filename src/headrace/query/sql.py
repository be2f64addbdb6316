"""SQL on a store, by SQLite: what `headrace query --sql` runs, without Spark.

The rows of the store are put into a temporary database of SQLite, which is private to the connection and moves to the
disk when it is large. Then an authorizer is set, which SQLite asks about every step of a statement before the statement
runs: it allows reading the store, the functions of SQLite and those for JSON, and nothing else. So a statement cannot
write, attach a database, read or write a file, load code, or change settings.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from headrace.errors import UnsuitableQueryError
from headrace.query.export import Column, Row, export_columns, export_rows
from headrace.query.follower import Follower, Snapshot

TABLE = "store"
# SQLite has no booleans. A column with a type of this name gets its values back as bool.
_BOOLEAN = "headrace_boolean"
_TYPES = {
    "string": "text", "bigint": "integer", "int": "integer", "smallint": "integer", "double": "real", "float": "real",
    "boolean": _BOOLEAN, "binary": "blob",
}  # fmt: skip
_JSON_TABLES = ("json_each", "json_tree")
_FORBIDDEN_FUNCTIONS = frozenset(("edit", "fts3_tokenizer", "load_extension", "readfile", "writefile"))
# The first word, after spaces and comments. SQLite does not ask the authorizer about EXPLAIN.
_FIRST_WORD = re.compile(r"(?:\s+|--[^\n]*\n|/\*.*?\*/)*([a-z]+)", re.IGNORECASE | re.DOTALL)

sqlite3.register_converter(_BOOLEAN, lambda raw: raw == b"1")


class SqlResult(NamedTuple):
    """The names of the columns, and the rows."""

    columns: list[str]
    rows: list[Row]


def select(follower: Follower, snapshot: Snapshot, store: str, sql: str) -> SqlResult:
    """Runs one SELECT on a store. The table is called `store`, or has the name of the store in quotes.

    Keys and values without a type in SQL are JSON text: `value ->> 'amount'` is a field of such a value.
    """
    description = snapshot.catalog.describe(store)
    columns = export_columns(description)
    rows = (
        row
        for task in description.tasks
        for row in export_rows(follower.storage, snapshot.batch, snapshot.catalog, store, task)
    )
    return run_query(sql, store, columns, rows)


def run_query(sql: str, store: str, columns: Iterable[Column], rows: Iterable[Row]) -> SqlResult:
    """Runs one SELECT on a table with these columns and rows.

    >>> run_query("select value + 1 as more from counts", "counts", [Column("value", "bigint")], [(1,), (2,)])
    SqlResult(columns=['more'], rows=[(2,), (3,)])
    """
    word = _FIRST_WORD.match(sql)
    if word is None or word[1].lower() not in {"select", "values", "with"}:
        raise _rejected(store, f"this begins with {sql.split(maxsplit=1)[0] if sql.strip() else 'nothing'}")
    connection = sqlite3.connect("", isolation_level=None, detect_types=sqlite3.PARSE_DECLTYPES)
    try:
        _fill(connection, store, list(columns), rows)
        connection.set_authorizer(_make_authorizer({TABLE, store.lower(), *_JSON_TABLES}))
        found = connection.execute(sql)
        names = _distinct([column[0] for column in found.description])
        return SqlResult(names, found.fetchall())
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise _rejected(store, str(error)) from error
    finally:
        connection.close()


def _fill(connection: sqlite3.Connection, store: str, columns: list[Column], rows: Iterable[Row]) -> None:
    declared = ", ".join(f'"{name}" {_TYPES[kind]}' for name, kind in columns)
    connection.execute("pragma journal_mode = off")  # a temporary database needs no way back
    connection.execute(f"create table {TABLE} ({declared})")
    if store.lower() != TABLE:
        quoted = store.replace('"', '""')
        connection.execute(f'create view "{quoted}" as select * from {TABLE}')  # noqa: S608 - a quoted name
    connection.execute("begin")
    places = ", ".join("?" * len(columns))
    connection.executemany(f"insert into {TABLE} values ({places})", rows)  # noqa: S608 - question marks
    connection.execute("commit")
    for table in _JSON_TABLES:  # SQLite makes them at their first use, which the authorizer would not allow
        connection.execute(f"select 1 from {table}('[]')")  # noqa: S608 - a name from above


def _make_authorizer(
    readable: AbstractSet[str],
) -> Callable[[int, str | None, str | None, str | None, str | None], int]:
    def authorize(action: int, first: str | None, second: str | None, database: str | None, view: str | None) -> int:
        match action:
            case sqlite3.SQLITE_SELECT | sqlite3.SQLITE_RECURSIVE:
                is_allowed = True
            case sqlite3.SQLITE_READ:
                is_allowed = (first or "").lower() in readable
            case sqlite3.SQLITE_FUNCTION:
                is_allowed = (second or "").lower() not in _FORBIDDEN_FUNCTIONS
            case _:
                is_allowed = False
        return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY

    return authorize


def _distinct(names: list[str]) -> list[str]:
    """Returns names of columns that differ.

    >>> _distinct(["key", "key", "value"])
    ['key', 'key_2', 'value']
    """
    return list(_number(names))


def _number(names: Iterable[str]) -> Iterator[str]:
    seen = dict[str, int]()
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name}_{seen[name]}"


def _rejected(store: str, reason: Any) -> UnsuitableQueryError:
    return UnsuitableQueryError(
        f'--sql takes one SELECT that reads the store: {reason}. The table is called store, or "{store}" in quotes'
    )
