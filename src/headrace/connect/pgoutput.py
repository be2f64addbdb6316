"""Decodes the messages of `pgoutput`, the plugin of PostgreSQL's logical replication (protocol version 1).

Begin      'B'  final LSN (8), commit time (8), xid (4)
Commit     'C'  flags (1), LSN (8), end LSN (8), commit time (8)
Relation   'R'  id (4), schema (string), name (string), replica identity (1), columns (2) of:
                flags (1; bit 0: part of the key), name (string), type (4), modifier (4)
Insert     'I'  relation (4), 'N', tuple
Update     'U'  relation (4), ['K' or 'O', old tuple], 'N', tuple
Delete     'D'  relation (4), 'K' or 'O', old tuple
tuple           columns (2) of: 'n' null, 'u' unchanged and not sent, 't' length (4) and text
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.errors import StreamsError

_EPOCH = 946_684_800_000  # ms from 1970 to 2000, where PostgreSQL's time begins


class Unchanged:
    """Stands for a large value that an update has not changed, and that PostgreSQL does not send."""


UNCHANGED = Unchanged()
Field = str | None | Unchanged
Tuple = tuple[Field, ...]


class Begin(NamedTuple):
    lsn: int  # of the commit
    xid: int  # 32 bits
    timestamp: int  # ms


class Commit(NamedTuple):
    lsn: int
    end: int


class Column(NamedTuple):
    name: str
    type: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    id: int
    schema: str
    name: str
    columns: tuple[Column, ...]


class Change(NamedTuple):
    """An insert has no old tuple, a delete no new one. An old tuple that is not complete has only the key."""

    relation: int
    old: Tuple | None
    new: Tuple | None
    is_old_complete: bool = False


Message = Begin | Commit | Relation | Change


def decode_message(raw: bytes) -> Message | None:
    """Decodes a message; None for kinds that change no rows.

    >>> decode_message(b"B" + struct.pack(">QqI", 500, 1_000_000, 77))
    Begin(lsn=500, xid=77, timestamp=946684801000)
    >>> decode_message(b"I" + struct.pack(">IcHcci", 9, b"N", 2, b"n", b"t", 1) + b"x")
    Change(relation=9, old=None, new=(None, 'x'), is_old_complete=False)
    """
    try:
        return _decode_message(raw)
    except (struct.error, ValueError) as error:
        raise StreamsError(f"PostgreSQL has sent what is no message of pgoutput: {raw[:40]!r} ({error})") from error


def _decode_message(raw: bytes) -> Message | None:
    reader = _Reader(raw, 1)
    match raw[:1]:
        case b"B":
            lsn, time, xid = reader.take(">QqI")
            return Begin(lsn, xid, _EPOCH + time // 1000)
        case b"C":
            _, lsn, end, _ = reader.take(">BQQq")
            return Commit(lsn, end)
        case b"R":
            return _decode_relation(reader)
        case b"I" | b"U" | b"D":
            (relation,) = reader.take(">I")
            old, new, is_complete = None, None, False
            while reader.has_more:
                kind = reader.take(">c")[0]
                if kind == b"N":
                    new = reader.tuple()
                else:
                    old, is_complete = reader.tuple(), kind == b"O"
            return Change(relation, old, new, is_complete)
        case _:
            return None


def _decode_relation(reader: _Reader) -> Relation:
    (number,) = reader.take(">I")
    schema, name = reader.string(), reader.string()
    _, count = reader.take(">cH")
    columns: list[Column] = []
    for _ in range(count):
        (flags,) = reader.take(">B")
        column = reader.string()
        kind, _ = reader.take(">Ii")
        columns.append(Column(column, kind, bool(flags & 1)))
    return Relation(number, schema, name, tuple(columns))


class _Reader:
    def __init__(self, raw: bytes, at: int) -> None:
        self._raw, self._at = raw, at

    @property
    def has_more(self) -> bool:
        return self._at < len(self._raw)

    def take(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(form, self._raw, self._at)
        self._at += struct.calcsize(form)
        return found

    def string(self) -> str:
        end = self._raw.index(0, self._at)
        found = self._raw[self._at : end].decode()
        self._at = end + 1
        return found

    def tuple(self) -> Tuple:
        (count,) = self.take(">H")
        return tuple(self._field() for _ in range(count))

    def _field(self) -> Field:
        kind = self.take(">c")[0]
        if kind == b"n":
            return None
        if kind == b"u":
            return UNCHANGED
        (length,) = self.take(">I")
        self._at += length
        if self._at > len(self._raw):
            raise ValueError("a value is cut off")
        return self._raw[self._at - length : self._at].decode()
