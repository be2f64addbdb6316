"""Changes of a database's rows, in the envelope of Debezium, in JSON or Avro; and rows of Connect's JSON converter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import msgspec
import msgspec.inspect
import orjson
from msgspec import Raw

from headrace.serde.avro import avro
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
    Changes in Avro are read with the schema registry; what Headrace writes, in stores too, is JSON.

    >>> debezium().decode(b'{"before": null, "after": {"id": 1, "name": "Ada"}, "op": "c", "ts_ms": 5}')
    {'id': 1, 'name': 'Ada'}
    >>> debezium(envelope=True).decode(b'{"before": {"id": 1}, "after": null, "op": "d", "ts_ms": 6}')
    RowChange(op='d', before={'id': 1}, after=None, source=None, ts_ms=6, transaction=None)
    """
    options = [] if kind is None else [getattr(kind, "__name__", str(kind))]
    name = f"debezium({', '.join(options + ['envelope=True'] * envelope)})"
    return _debezium(kind, envelope, name, avro())


def _debezium(kind: Any, envelope: bool, name: str, of_registry: Serde) -> Serde:
    """`of_registry` reads changes in Avro."""
    row = JSON if kind is None else json_of(kind)
    read = _Envelopes(name, of_registry, row)
    recipe = (_debezium, (kind, envelope, name, of_registry))
    if envelope:
        return _changes(name, row, read, recipe)
    return _rows(name, row, read, recipe, immutable=kind is not None and never_changes(kind))


def _rows(name: str, row: Serde, read: _Envelopes, recipe: Any, *, immutable: bool) -> Serde:
    encode_row = row.encode

    def encode(value: Any) -> bytes:
        # Whether the row existed before is not known here; a reader of changes puts the row in both cases.
        return _dump(_Row(None, Raw(encode_row(value)), "c"))

    def decode(raw: bytes) -> Any:
        change = read.envelope(raw)
        if change is None or change.op not in _WITH_ROW:
            return None
        after = read.row(change.after)
        if after is None:
            raise ValueError(f"{name} found a change of op {change.op!r} without `after`: {raw[:200]!r}")
        return after

    return Serde(name, encode, decode, immutable, recipe)


def _changes(name: str, row: Serde, read: _Envelopes, recipe: Any) -> Serde:
    encode_row = row.encode

    def raw_of(value: Any) -> Raw:
        return Raw(b"null") if value is None else Raw(encode_row(value))

    def encode(change: Any) -> bytes:
        if not isinstance(change, RowChange):
            raise TypeError(f"{name} encodes a RowChange, not {change!r} of type {type(change).__name__}")
        fields: dict[str, Any] = {"before": raw_of(change.before), "after": raw_of(change.after)}
        fields |= {"source": change.source, "op": _known(name, change.op), "ts_ms": change.ts_ms}
        return _dump(fields | {"transaction": change.transaction})

    def decode(raw: bytes) -> RowChange | None:
        found = read.envelope(raw)
        if found is None:
            return None
        before, after = read.row(found.before), read.row(found.after)
        source, transaction = orjson.loads(bytes(found.source)), orjson.loads(bytes(found.transaction))
        return RowChange(found.op or "", before, after, source, found.ts_ms, transaction)

    return Serde(name, encode, decode, recipe=recipe)


class _Envelopes:
    """Reads envelopes and the rows inside."""

    def __init__(self, name: str, of_registry: Serde, row: Serde) -> None:
        self._name, self._read_avro, self._decode_row = name, of_registry.decode, row.decode

    def envelope(self, raw: bytes) -> _Envelope | None:
        # JSON begins with no zero, and what is framed for a registry always does.
        return _read(self._name, _dump(self._read_avro(raw)) if raw[:1] == b"\0" else raw)

    def row(self, raw: Raw) -> Any:
        text = bytes(raw)
        if text[:1] == b'"':  # MongoDB's rows are texts of JSON
            text = msgspec.json.decode(text).encode()
        return None if text in _NOTHING else self._decode_row(text)


def _read(name: str, raw: bytes) -> _Envelope | None:
    """The envelope, out of its `payload` if it has one; None for a tombstone that was written as JSON."""
    try:
        found = _envelope(raw)
        if found is not None and found.op is None and found.payload:
            found = _envelope(found.payload)
    except (msgspec.DecodeError, RecursionError) as error:
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
    return _debezium_key(columns, avro())


def _debezium_key(columns: tuple[str, ...], of_registry: Serde) -> Serde:
    """`of_registry` reads keys in Avro."""
    name = f"debezium_key({', '.join(map(repr, columns))})"
    count, read_avro = len(columns), of_registry.decode

    def encode(key: Any) -> bytes:
        values: Any = (key,) if count == 1 else key
        if not isinstance(values, tuple) or len(cast("tuple[Any, ...]", values)) != count:
            raise TypeError(f"{name} encodes a tuple of {count} values, not {key!r}")
        return orjson.dumps(dict(zip(columns, cast("tuple[Any, ...]", values), strict=True)))

    def decode(raw: bytes) -> Any:
        found = _fields(name, _dump(read_avro(raw)) if raw[:1] == b"\0" else raw)
        if found is None:
            return None
        if found.keys() != set(columns):
            raise ValueError(
                f"{name} found a key of the columns {', '.join(map(repr, found)) or 'none'}: {raw[:200]!r}"
            )
        return found[columns[0]] if count == 1 else tuple(found[column] for column in columns)

    return Serde(name, encode, decode, immutable=True, recipe=(_debezium_key, (columns, of_registry)))


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


# ------------------------------------------------------------------------------------------- Connect's JSON converter
def connect_json(kind: Any = None) -> Serde:
    """Rows as Connect's JSON converter has them while schemas are enabled: `{"schema": …, "payload": …}`.

    Rows are dicts, or of a type as for `json_of`. Of a type the schema is written, which sink connectors need; dicts
    have the schema null. What has no `payload` is read as the row itself.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Customer:
    ...     id: int
    ...     name: str | None = None
    >>> customers = connect_json(Customer)
    >>> customers.decode(b'{"schema": {"type": "struct"}, "payload": {"id": 1, "name": "Ada"}}')
    Customer(id=1, name='Ada')
    >>> orjson.loads(customers.encode(Customer(1)))["payload"]
    {'id': 1, 'name': None}
    """
    row = JSON if kind is None else json_of(kind)
    schema = Raw(b"null" if kind is None else _dump(_connect_schema(msgspec.inspect.type_info(kind), None)))
    encode_row, decode_row = row.encode, row.decode
    name = f"connect_json({'' if kind is None else getattr(kind, '__name__', kind)})"

    def encode(value: Any) -> bytes:
        return _dump({"schema": schema, "payload": Raw(encode_row(value))})

    def decode(raw: bytes) -> Any:
        try:
            found = _wrapped(raw)
        except msgspec.DecodeError as error:
            raise ValueError(f"{name} cannot read {raw[:200]!r}: {error}") from None
        payload = bytes(found.payload)
        if not payload:
            return decode_row(raw)
        return None if payload == b"null" else decode_row(payload)

    return Serde(name, encode, decode, row.immutable, (connect_json, (kind,)))


class _Wrapped(msgspec.Struct):
    payload: Raw = Raw(b"")


_wrapped = msgspec.json.Decoder(_Wrapped).decode
_CONNECT_TYPES: dict[type[Any], str] = {
    msgspec.inspect.BoolType: "boolean",
    msgspec.inspect.BytesType: "bytes",
    msgspec.inspect.FloatType: "double",
    msgspec.inspect.IntType: "int64",
    msgspec.inspect.StrType: "string",
}


def _connect_schema(kind: msgspec.inspect.Type, field: str | None, *, optional: bool = False) -> dict[str, Any]:
    """Connect's schema of a type, of a field if it has a name."""
    common: dict[str, Any] = {"optional": optional, **({} if field is None else {"field": field})}
    if type(kind) in _CONNECT_TYPES:
        return {"type": _CONNECT_TYPES[type(kind)], **common}
    match kind:
        case msgspec.inspect.UnionType():
            others = [part for part in kind.types if not isinstance(part, msgspec.inspect.NoneType)]
            if len(others) == 1 and len(kind.types) == 2:
                return _connect_schema(others[0], field, optional=True)
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            return {"type": "array", "items": _connect_schema(kind.item_type, None), **common}
        case msgspec.inspect.DictType():
            keys, values = _connect_schema(kind.key_type, None), _connect_schema(kind.value_type, None)
            return {"type": "map", "keys": keys, "values": values, **common}
        case msgspec.inspect.DataclassType() | msgspec.inspect.StructType():
            fields = [_connect_schema(part.type, part.encode_name) for part in kind.fields]
            return {"type": "struct", "name": kind.cls.__name__, "fields": fields, **common}
        case _:
            pass
    raise TypeError(
        f"Connect's JSON has no type for {kind}: use int, float, str, bool, bytes, lists, dicts and types of them"
    )
