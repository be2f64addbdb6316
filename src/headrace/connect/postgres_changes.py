"""Change capture from PostgreSQL: the rows of a table, then every change of them, exactly once.

A replication slot holds back the write-ahead log of the database from the moment the source is first opened. Then all
rows are read in one snapshot, in the order of the primary key, and then the changes from the slot. A transaction that
the snapshot has seen is left out of the changes: its number says so. If the snapshot is interrupted, a second one
continues behind the last row that the log has; each row belongs to the snapshot that has read it (`segments`).

The position, in the log:

    {"lsn": where the changes were read up to, "skip": changes behind it, of an unfinished transaction,
     "segments": [[snapshot, last primary key, or null for all that follow], …], "until": LSN after the last one,
     "after": last primary key that was read, "done": the snapshot is complete}

`segments` is empty when the changes have passed `until`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from headrace.connect.pgoutput import (
    UNCHANGED,
    Begin,
    Change,
    Column,
    Commit,
    Field,
    Message,
    Relation,
    Tuple,
    decode_message,
)
from headrace.errors import ConfigError, SerializationError
from headrace.extras import import_extra
from headrace.serde.json import JSON
from headrace.serde.protocol import Serde
from headrace.topology.connectors import SourceBatch, SourcePosition, SourceReader, SourceRecord

_PAUSE = 0.1  # seconds between two looks for changes
_IDLE = 5.0  # seconds after which the slot of a table without changes is moved on
_INTEGERS, _FLOATS, _JSONS, _BOOLEAN = {20, 21, 23, 26}, {700, 701}, {114, 3802}, 16  # type ids
_FETCH = 2_000  # rows


@dataclass(frozen=True)
class PostgresChanges:
    """The rows of a PostgreSQL table and all their changes, as a changelog: the key is the primary key.

    The value is the row as a dict, None for a row that was deleted. Integers, floating-point numbers, booleans and JSON
    are what they are; all else, numeric too, is PostgreSQL's text. A primary key of one column is that value, one of
    several columns a dict. The timestamp of a change is that of its commit.

    PostgreSQL needs `wal_level = logical`, and a user that may replicate and owns the table: the source makes a
    publication and a slot, named after it. The slot keeps the write-ahead log until the source has read it; when the
    source is not needed any more, `drop` it. TRUNCATE is not captured.

    A large value that an update leaves alone is not in PostgreSQL's log; it is read from the table, as it is now.

    >>> PostgresChanges("postgresql://shop.example/shop", "public.customers").name
    'customers'
    """

    dsn: str = field(repr=False)  # it may have a password
    table: str
    _: KW_ONLY
    name: str = ""
    slot: str = ""
    key: Serde[Any] = JSON
    value: Serde[Any] = JSON

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.table.rpartition(".")[2])
        if not self.slot:
            object.__setattr__(self, "slot", "headrace_" + re.sub(r"\W", "_", self.name.lower()))
        if not re.fullmatch(r"[a-z0-9_]{1,63}", self.slot):
            raise ConfigError(f"a slot has a name of up to 63 lower-case letters, digits and _, not {self.slot!r}")

    def open(self, position: SourcePosition) -> SourceReader:
        return _ChangeReader(self, position)

    def drop(self) -> None:
        """Drops the slot and the publication, so that the database no longer keeps changes for this source."""
        with import_extra("psycopg", "postgres").connect(self.dsn, autocommit=True) as connection:
            found = connection.execute("select 1 from pg_replication_slots where slot_name = %s", [self.slot])
            if found.fetchone():
                connection.execute("select pg_drop_replication_slot(%s)", [self.slot])
            connection.execute(f"drop publication if exists {_quoted(self.slot)}")


class _ChangeReader:
    def __init__(self, source: PostgresChanges, position: dict[str, Any] | None) -> None:
        psycopg: Any = import_extra("psycopg", "postgres")
        self._source, self._table = source, _quoted(*source.table.split("."))
        self._is_new = position is None
        found = position or {}
        self._lsn: int = found.get("lsn", 0)
        self._skip: int = found.get("skip", 0)
        self._segments: list[list[Any]] = [list(segment) for segment in found.get("segments", [])]
        self._until: int = found.get("until", 0)
        self._after: list[str] | None = found.get("after")
        self._is_complete: bool = found.get("done", False)
        self._acknowledged = 0
        self._advanced_at = time.monotonic()
        self._lag: int | None = None
        self._messages: Iterator[Message] | None = None
        self._relations: dict[int, Relation] = {}
        self._begin = Begin(0, 0, 0)
        self._in_transaction = 0  # changes of the unfinished transaction that were taken
        self._connection: Any = psycopg.connect(
            source.dsn, autocommit=True, connect_timeout=10, cursor_factory=psycopg.ClientCursor
        )
        try:
            self._columns = self._read_columns()
            self._key_names = [column.name for column in self._columns if column.is_key]
            self._key_parameters = self._read_key_parameters()
            self._prepare_slot()
            if not self._is_complete:
                self._begin_snapshot()
        except BaseException:
            self._connection.close()
            raise

    # ------------------------------------------------------------------------------------------------------ preparing
    def _one(self, query: str, *arguments: Any) -> Any:
        row = self._connection.execute(query, arguments).fetchone()
        return None if row is None else row[0]

    def _read_columns(self) -> tuple[Column, ...]:
        number = self._one("select to_regclass(%s)::oid", self._table)
        if number is None:
            raise ConfigError(f"the database has no table {self._source.table!r}")
        rows = self._connection.execute(
            """select a.attname, a.atttypid::int, coalesce(a.attnum = any(i.indkey), false)
               from pg_attribute a left join pg_index i on i.indrelid = a.attrelid and i.indisprimary
               where a.attrelid = %s and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
               order by a.attnum""",
            [number],
        )
        columns = tuple(Column(*row) for row in rows.fetchall())
        if not any(column.is_key for column in columns):
            raise ConfigError(f"the table {self._source.table!r} has no primary key, which is the key of its changes")
        return columns

    def _read_key_parameters(self) -> str:
        """Returns a placeholder for each column of the key, of its type and collation: the database compares keys."""
        rows = self._connection.execute(
            """select format_type(a.atttypid, a.atttypmod), quote_ident(n.nspname) || '.' || quote_ident(c.collname)
               from pg_attribute a left join pg_collation c on c.oid = a.attcollation and c.collname <> 'default'
               left join pg_namespace n on n.oid = c.collnamespace
               where a.attrelid = to_regclass(%s) and a.attname = any(%s) order by a.attnum""",
            [self._table, self._key_names],
        ).fetchall()
        return ", ".join(f"%s::text::{kind}" + (f" collate {collation}" * bool(collation)) for kind, collation in rows)

    def _prepare_slot(self) -> None:
        slot = self._source.slot
        exists = self._one("select 1 from pg_replication_slots where slot_name = %s", slot) is not None
        if not exists and not self._is_new:
            raise ConfigError(
                f"the replication slot {slot!r} is gone, and with it the changes since the source was read last. "
                "Read the table again under another name=, into another topic"
            )
        if self._one("show wal_level") != "logical":
            raise ConfigError("change capture needs wal_level = logical in postgresql.conf, and a restart")
        if self._one("select 1 from pg_publication where pubname = %s", slot) is None:
            self._connection.execute(
                f"create publication {_quoted(slot)} for table {self._table} with (publish = 'insert, update, delete')"
            )
        if not exists:
            self._one("select lsn from pg_create_logical_replication_slot(%s, 'pgoutput')", slot)

    def _declare(self, query: str, arguments: Sequence[Any]) -> None:
        """Begins to read a query in the open transaction. The rows stay in the server until `_fetch` takes them."""
        self._connection.execute(f"declare headrace_rows no scroll cursor for {query}", arguments)

    def _fetch(self, rows: int) -> list[Any]:
        return self._connection.execute(f"fetch {rows} from headrace_rows").fetchall()

    # ------------------------------------------------------------------------------------------------------- snapshot
    def _begin_snapshot(self) -> None:
        """Begins a snapshot, and to read its rows behind the last one that the log has."""
        connection = self._connection
        connection.execute("begin isolation level repeatable read, read only")
        snapshot = self._one("select pg_current_snapshot()::text")
        if self._after is None:
            self._segments = [[snapshot, None]]
        else:
            self._segments[-1][1] = self._after
            self._segments.append([snapshot, None])
        self._until = _parse_lsn(self._one("select pg_current_wal_insert_lsn()"))
        # The columns of the table, not those of the result, which are text and have another order.
        keys = ", ".join(f"t.{_quoted(name)}" for name in self._key_names)
        values = ", ".join(f"{_quoted(column.name)}::text" for column in self._columns)
        where, arguments = "", list[str]()
        if self._after is not None:
            where, arguments = f"where ({keys}) > ({self._key_parameters})", self._after
        self._declare(f"select {values} from {self._table} as t {where} order by {keys}", arguments)  # noqa: S608 - quoted names

    def _read_snapshot(self, max_records: int) -> SourceBatch:
        rows: list[Tuple] = self._fetch(max_records)
        records = [self._make_record(self._columns, row, None) for row in rows]
        if rows:
            self._after = self._key_texts(self._columns, rows[-1])
        if len(rows) < max_records:
            self._connection.execute("commit")
            self._is_complete, self._after = True, None
        return SourceBatch(records, self._position())

    # -------------------------------------------------------------------------------------------------------- changes
    def read(self, max_records: int, timeout: float) -> SourceBatch | None:
        if not self._is_complete:
            return self._read_snapshot(max_records)
        end = time.monotonic() + timeout
        while True:
            batch = self._read_changes(max_records)
            left = end - time.monotonic()
            if batch is not None or left <= 0:
                return batch
            time.sleep(min(left, _PAUSE))

    def _read_changes(self, max_records: int) -> SourceBatch | None:
        """Returns the next changes; None if there are none now."""
        if self._messages is None:
            self._messages = self._peek(max_records)
        before, records = self._position(), list[SourceRecord]()
        for message in self._messages:
            records += self._take(message)
            if len(records) >= max_records:
                break
        else:
            self._messages = None
        return None if self._position() == before else SourceBatch(records, self._position())

    def _peek(self, max_records: int) -> Iterator[Message]:
        """Iterates over the messages that the slot has now. They stay in the slot until it is moved on."""
        slot = self._source.slot
        self._advance_slot(self._acknowledged)
        now = _parse_lsn(self._one("select pg_current_wal_lsn()"))
        self._lag = max(0, now - self._lsn) if self._lsn else None
        self._connection.execute("begin")
        self._declare(
            "select data from pg_logical_slot_peek_binary_changes(%s, null, %s, 'proto_version', '1', "
            "'publication_names', %s)",
            [slot, max_records, _quoted(slot)],
        )
        found = False
        while rows := self._fetch(_FETCH):
            found = True
            yield from filter(None, (decode_message(raw) for (raw,) in rows))
        self._connection.execute("commit")
        if not found:
            self._lag = 0
            if time.monotonic() > self._advanced_at + _IDLE:
                self._advance_slot(now)  # other tables have changed: the slot has nothing before `now` for this one

    def _take(self, message: Message) -> list[SourceRecord]:
        """Takes a message: moves the position, and returns the records of a change that the log does not have."""
        match message:
            case Relation():
                self._relations[message.id] = message
            case Begin():
                self._begin, self._in_transaction = message, 0
            case Commit():
                if message.end > self._lsn:
                    self._lsn, self._skip = message.end, 0
                if self._segments and self._lsn >= self._until:
                    self._segments = []
            case Change():
                return self._take_change(message)
        return []

    def _take_change(self, change: Change) -> list[SourceRecord]:
        # The transactions before `_lsn` come first, because the slot is moved on later; the first one behind it may
        # have been written in part.
        if self._begin.lsn < self._lsn:
            return []
        self._in_transaction += 1
        if self._in_transaction <= self._skip:
            return []
        self._skip = self._in_transaction
        columns = self._relations[change.relation].columns
        return [
            self._make_record(columns, row, self._begin.timestamp, is_deleted=is_deleted)
            for row, is_deleted in self._rows_of(change, columns)
            if not self._was_in_snapshot(self._key_texts(columns, row))
        ]

    def _rows_of(self, change: Change, columns: Sequence[Column]) -> Iterator[tuple[Tuple, bool]]:
        """Iterates over the rows that a change sets or, with True, deletes. A new primary key deletes the old row."""
        old, new = change.old, change.new
        if new is None:
            if old is not None:
                yield old, True
            return
        if old is not None:
            if self._key_texts(columns, old) != self._key_texts(columns, new):
                yield old, True
            if change.is_old_complete:
                new = tuple(before if after is UNCHANGED else after for before, after in zip(old, new, strict=True))
        yield new, False

    def _was_in_snapshot(self, key: list[str]) -> bool:
        """Returns True if the snapshot that has read the row with this key has seen the current transaction."""
        if not self._segments or self._begin.lsn >= self._until:
            return False
        return next(
            is_visible(self._begin.xid, snapshot)
            for snapshot, last in self._segments
            if last is None or self._is_at_most(key, last)
        )

    def _is_at_most(self, key: list[str], last: list[str]) -> bool:
        parameters = self._key_parameters
        return self._one(f"select ({parameters}) <= ({parameters})", *key, *last)

    # -------------------------------------------------------------------------------------------------------- records
    def _make_record(
        self, columns: Sequence[Column], row: Tuple, timestamp: int | None, *, is_deleted: bool = False
    ) -> SourceRecord:
        if UNCHANGED in row and not is_deleted:
            row = self._complete(columns, row)
        fields = {column.name: decode_field(column.type, text) for column, text in zip(columns, row, strict=True)}
        names = self._key_names
        key = fields[names[0]] if len(names) == 1 else {name: fields[name] for name in names}
        return SourceRecord(key, None if is_deleted else fields, timestamp)

    def _complete(self, columns: Sequence[Column], row: Tuple) -> Tuple:
        """Reads the values that PostgreSQL did not send from the table. If the row is gone, they are None."""
        names = [column.name for column, text in zip(columns, row, strict=True) if text is UNCHANGED]
        keys = ", ".join(map(_quoted, self._key_names))
        values = ", ".join(f"{_quoted(name)}::text" for name in names)
        found = self._connection.execute(
            f"select {values} from {self._table} where ({keys}) = ({self._key_parameters})",  # noqa: S608 - quoted names
            self._key_texts(columns, row),
        ).fetchone()
        missing = iter(found or [None] * len(names))
        return tuple(next(missing) if text is UNCHANGED else text for text in row)

    def _key_texts(self, columns: Sequence[Column], row: Tuple) -> list[str]:
        texts = {column.name: text for column, text in zip(columns, row, strict=True)}
        found = [texts.get(name) for name in self._key_names]
        if not all(isinstance(text, str) for text in found):
            raise ConfigError(
                f"a change of {self._source.table!r} has no primary key: ALTER TABLE {self._table} REPLICA IDENTITY "
                "DEFAULT"
            )
        return [str(text) for text in found]

    def _position(self) -> dict[str, Any]:
        return {
            "lsn": self._lsn,
            "skip": self._skip,
            "segments": [list(segment) for segment in self._segments],
            "until": self._until,
            "after": self._after,
            "done": self._is_complete,
        }

    # ------------------------------------------------------------------------------------------------------- the slot
    def acknowledge(self, position: SourcePosition) -> None:
        """Remembers how far the slot can be moved; that happens before it is read again."""
        if position is not None:
            self._acknowledged = position["lsn"]

    def _advance_slot(self, lsn: int) -> None:
        if lsn:
            self._one(
                "select pg_replication_slot_advance(slot_name, %s::pg_lsn) from pg_replication_slots "
                "where slot_name = %s and confirmed_flush_lsn < %s::pg_lsn",
                format_lsn(lsn), self._source.slot, format_lsn(lsn),
            )  # fmt: skip
            self._advanced_at = time.monotonic()

    def lag(self) -> int | None:
        """Returns how many bytes of the write-ahead log were not read yet, of all tables."""
        return self._lag

    def close(self) -> None:
        self._connection.close()


def is_visible(xid: int, snapshot: str) -> bool:
    """Returns True if a snapshot (`xmin:xmax:running`) has seen a transaction, whose number has only 32 bits.

    >>> [is_visible(xid, "10:13:11") for xid in (9, 10, 11, 12, 13)]
    [True, True, False, True, False]
    >>> is_visible(2**32 - 1, "4294967300:4294967301:")
    True
    """
    low, high, running = snapshot.split(":")
    xmin, xmax = int(low), int(high)
    full = (xmax >> 32 << 32) + xid
    if full - xmax > 1 << 31:
        full -= 1 << 32
    elif xmax - full > 1 << 31:
        full += 1 << 32
    return full < xmin or (full < xmax and str(full) not in running.split(","))


def decode_field(kind: int, text: Field) -> Any:
    """Decodes PostgreSQL's text of a value of a type. Raises SerializationError, without the text.

    >>> decode_field(23, "7"), decode_field(16, "t"), decode_field(1700, "1.50"), decode_field(25, None)
    (7, True, '1.50', None)
    """
    if not isinstance(text, str):
        return None
    try:
        if kind in _INTEGERS:
            return int(text)
        if kind in _FLOATS:
            return float(text)
        if kind in _JSONS:
            return json.loads(text)
    except (ValueError, RecursionError) as error:  # JSON that is nested too deeply, or a number with too many digits
        raise SerializationError(
            f"PostgreSQL has sent a value that cannot be decoded as one of type {kind} ({type(error).__name__})"
        ) from error
    return text in ("t", "true") if kind == _BOOLEAN else text


def _parse_lsn(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def format_lsn(lsn: int) -> str:
    """Formats a position of the write-ahead log as PostgreSQL does.

    >>> format_lsn(0x1_0000_00FF)
    '1/FF'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def _quoted(*names: str) -> str:
    """Quotes the parts of a name."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)
