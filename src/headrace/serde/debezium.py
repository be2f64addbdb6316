"""Changes of a database's rows, in the JSON envelope of Debezium."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import msgspec
import orjson
from msgspec import Raw

from headrace.serde.json import JSON, json_of
from headrace.serde.protocol import Serde, never_changes

_OPERATIONS = {"c": "create", "u": "update", "d": "delete", "r": "read, of a snapshot", "t": "truncate"}
_WITH_ROW = ("c", "u", "r")
_WRAPPED = {"schema", "payload"}  # what Connect's JSON converter writes around everything while schemas are enabled
_NOTHING = (b"", b"null")


@dataclass(frozen=True, slots=True)
class RowChange:
    """A change of a row. `op`: c is create, u update, d delete, r a row read for a snapshot, t the table truncated."""

    op: str
    before: Any = None
    after: Any = None
    source: dict[str, Any] | None = None
    ts_ms: int | None = None
    transaction: dict[str, Any] | None = None


class _Envelope(msgspec.Struct):
    """The fields of an envelope that are read; `before` and `after` stay bytes until they are needed."""

    before: Raw = Raw(b"null")
    after: Raw = Raw(b"null")
    source: Raw = Raw(b"null")
    op: str | None = None
    ts_ms: int | None = None
    transaction: Raw = Raw(b"null")
    payload: Raw = Raw(b"")


class _Row(msgspec.Struct):
    """An envelope for a row alone."""

    before: None
    after: Raw
    op: str


_envelope = msgspec.json.Decoder(_Envelope | None).decode
_dump = msgspec.json.Encoder().encode


def debezium(kind: Any = None, *, envelope: bool = False) -> Serde:
    """The row after a change: None if it was deleted, so that a topic of changes is a table. With or without schemas.

    Rows are dicts, or of a type as for `json_of`. `envelope=True` gives the whole change, a `RowChange`, deletes too.

    >>> debezium().decode(b'{"before": null, "after": {"id": 1, "name": "Ada"}, "op": "c", "ts_ms": 5}')
    {'id': 1, 'name': 'Ada'}
    >>> debezium(envelope=True).decode(b'{"before": {"id": 1}, "after": null, "op": "d", "ts_ms": 6}')
    RowChange(op='d', before={'id': 1}, after=None, source=None, ts_ms=6, transaction=None)
    """
    options = [] if kind is None else [getattr(kind, "__name__", str(kind))]
    name = f"debezium({', '.join(options + ['envelope=True'] * envelope)})"
    row = JSON if kind is None else json_of(kind)
    recipe = (_debezium, (kind, envelope))
    if envelope:
        return _changes(name, row, recipe)
    return _rows(name, row, recipe, immutable=kind is not None and never_changes(kind))


def _debezium(kind: Any, envelope: bool) -> Serde:
    return debezium(kind, envelope=envelope)


def _rows(name: str, row: Serde, recipe: Any, *, immutable: bool) -> Serde:
    encode_row, decode_row = row.encode, row.decode

    def encode(value: Any) -> bytes:
        # Whether the row existed before is not known here; a reader of changes puts the row in both cases.
        return _dump(_Row(None, Raw(encode_row(value)), "c"))

    def decode(raw: bytes) -> Any:
        change = _read(name, raw)
        if change is None or change.op not in _WITH_ROW:
            return None
        after = bytes(change.after)
        if after in _NOTHING:
            raise ValueError(f"{name} found a change of op {change.op!r} without `after`: {raw[:200]!r}")
        return decode_row(after)

    return Serde(name, encode, decode, immutable, recipe)


def _changes(name: str, row: Serde, recipe: Any) -> Serde:
    encode_row, decode_row = row.encode, row.decode

    def raw_of(value: Any) -> Raw:
        return Raw(b"null") if value is None else Raw(encode_row(value))

    def row_of(raw: Raw) -> Any:
        text = bytes(raw)
        return None if text in _NOTHING else decode_row(text)

    def encode(change: Any) -> bytes:
        if not isinstance(change, RowChange):
            raise TypeError(f"{name} encodes a RowChange, not {change!r} of type {type(change).__name__}")
        fields: dict[str, Any] = {"before": raw_of(change.before), "after": raw_of(change.after)}
        fields |= {"source": change.source, "op": _known(name, change.op), "ts_ms": change.ts_ms}
        return _dump(fields | {"transaction": change.transaction})

    def decode(raw: bytes) -> RowChange | None:
        found = _read(name, raw)
        if found is None:
            return None
        before, after = row_of(found.before), row_of(found.after)
        source, transaction = orjson.loads(bytes(found.source)), orjson.loads(bytes(found.transaction))
        return RowChange(found.op or "", before, after, source, found.ts_ms, transaction)

    return Serde(name, encode, decode, recipe=recipe)


def _read(name: str, raw: bytes) -> _Envelope | None:
    """The envelope, out of its `payload` if it has one; None for a tombstone that was written as JSON."""
    try:
        found = _envelope(raw)
        if found is not None and found.op is None and found.payload:
            found = _envelope(found.payload)
    except msgspec.DecodeError as error:
        raise ValueError(f"{name} cannot read {raw[:200]!r}: {error}") from None
    if found is None:
        return None
    if found.op is None:
        raise ValueError(
            f"{name} found no `op`, hence no envelope of Debezium: {raw[:200]!r}. "
            "Rows that a transformation has taken out of their envelopes are read with JSON or json_of(type)"
        )
    _known(name, found.op)
    return found


def _known(name: str, op: str) -> str:
    if op in _OPERATIONS:
        return op
    known = ", ".join(f"{op} ({meaning})" for op, meaning in _OPERATIONS.items())
    raise ValueError(f"{name} knows no op {op!r}; there are {known}")


def debezium_key(*columns: str) -> Serde:
    """The key of a change: the value of its column, or a tuple if the table's primary key has several.

    It is written as Debezium writes it without schemas, so that both choose the same partition.

    >>> debezium_key("id").decode(b'{"schema": {}, "payload": {"id": 7}}'), debezium_key("id").encode(7)
    (7, b'{"id":7}')
    >>> debezium_key("order", "line").decode(b'{"order": 7, "line": 1}')
    (7, 1)
    """
    if not columns or not all(isinstance(column, str) for column in cast("tuple[Any, ...]", columns)):
        raise TypeError(f"debezium_key needs the names of the columns of the primary key, not {columns!r}")
    name = f"debezium_key({', '.join(map(repr, columns))})"
    count = len(columns)

    def encode(key: Any) -> bytes:
        values: Any = (key,) if count == 1 else key
        if not isinstance(values, tuple) or len(cast("tuple[Any, ...]", values)) != count:
            raise TypeError(f"{name} encodes a tuple of {count} values, not {key!r}")
        return orjson.dumps(dict(zip(columns, cast("tuple[Any, ...]", values), strict=True)))

    def decode(raw: bytes) -> Any:
        found = _fields(name, raw)
        if found is None:
            return None
        if found.keys() != set(columns):
            raise ValueError(
                f"{name} found a key of the columns {', '.join(map(repr, found)) or 'none'}: {raw[:200]!r}"
            )
        return found[columns[0]] if count == 1 else tuple(found[column] for column in columns)

    return Serde(name, encode, decode, immutable=True, recipe=(debezium_key, columns))


def _fields(name: str, raw: bytes) -> dict[str, Any] | None:
    try:
        found: Any = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{name} cannot read {raw[:200]!r}: {error}") from None
    if isinstance(found, dict) and cast("dict[str, Any]", found).keys() == _WRAPPED:
        found = cast("Any", found["payload"])
    if found is None or isinstance(found, dict):
        return cast("dict[str, Any] | None", found)
    raise ValueError(f"{name} needs an object with the columns of the key, not {raw[:200]!r}")
