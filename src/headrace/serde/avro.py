"""Avro, with the schemas of a registry.

The bytes are fastavro's, which the client of the registry uses too. `avro_schema` makes the schema of a type.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar, cast, overload
from uuid import UUID

import msgspec
from msgspec import inspect as types

from headrace.serde.protocol import Serde, never_changes
from headrace.serde.schema_registry import (
    Framing,
    LoadSchema,
    Reference,
    Registry,
    SchemaOptions,
    SubjectStrategy,
    Writer,
    import_schemas,
    make_serde,
    writer_of,
)

T = TypeVar("T")
SchemaLike = str | Path | Mapping[str, Any] | list[Any]
# Values of these types go to fastavro as they are: its logical types take and give them.
_NATIVE = (bytes, bytearray, dt.datetime, dt.date, dt.time, Decimal, UUID)


@overload
def avro(
    kind: type[T],
    /,
    *,
    schema: SchemaLike | None = None,
    reader: SchemaLike | None = None,
    registry: str | Mapping[str, Any] | None = None,
    subject: SubjectStrategy = "topic",
    register: bool = True,
    framing: Framing = "prefix",
    references: Iterable[Reference] = (),
) -> Serde[T]: ...
@overload
def avro(
    kind: None = None,
    /,
    *,
    schema: SchemaLike | None = None,
    reader: SchemaLike | None = None,
    registry: str | Mapping[str, Any] | None = None,
    subject: SubjectStrategy = "topic",
    register: bool = True,
    framing: Framing = "prefix",
    references: Iterable[Reference] = (),
) -> Serde[Any]: ...
def avro(
    kind: Any = None,
    /,
    *,
    schema: SchemaLike | None = None,
    reader: SchemaLike | None = None,
    registry: str | Mapping[str, Any] | None = None,
    subject: SubjectStrategy = "topic",
    register: bool = True,
    framing: Framing = "prefix",
    references: Iterable[Reference] = (),
) -> Serde[Any]:
    """Avro with a schema registry, for dicts or for a dataclass, a msgspec or a pydantic type.

    `schema` is a JSON text, a dict or the path of a file; without one it is made of the type (`avro_schema`), and a
    serde without both writes with the newest schema of the subject. Records are read into the own schema, or into
    `reader`: fields that the writer did not know get their defaults. A serde without a schema reads what was written.

    `registry` is an address, or all settings of the client; without it `schema.registry.url` counts. `subject`: the
    name under which the schema is registered, made of the topic, of the record's name, or of both. With
    `register=False` it must be registered already. `framing="headers"` writes the schema's GUID into a header; both
    framings are read. `references` are (name, subject, version) of schemas that this one uses.

    >>> from dataclasses import dataclass
    >>> from headrace import StreamsBuilder
    >>> from headrace.testing import TopologyTestDriver
    >>> @dataclass
    ... class Order:
    ...     product: str
    ...     amount: float = 0.0
    >>> orders, builder = avro(Order), StreamsBuilder()
    >>> builder.stream("orders", value=orders).filter(lambda order: order.amount > 10).to("large", value=orders)
    >>> with TopologyTestDriver(builder.build(), {"schema.registry.url": "mock://avro"}) as driver:
    ...     driver.input_topic("orders", value=orders).pipe_all([Order("pen", 2.0), Order("desk", 120.0)])
    ...     driver.output_topic("large", value=orders).read_values()
    [Order(product='desk', amount=120.0)]
    """
    options = SchemaOptions(registry, subject, register, framing, tuple(references))
    return _avro(kind, schema_text(schema), schema_text(reader), options)


def _avro(kind: Any, schema: str | None, reader: str | None, options: SchemaOptions) -> Serde[Any]:
    own = json.dumps(avro_schema(kind)) if schema is None and kind is not None else schema
    return make_serde(AvroFormat(kind, own, reader or own, options), options, (_avro, (kind, schema, reader, options)))


def schema_text(schema: SchemaLike | None) -> str | None:
    """The JSON of a schema that was given as text, as the path of a file, or as the objects of JSON."""
    if isinstance(schema, Path):
        return schema.read_text(encoding="utf-8")
    return schema if schema is None or isinstance(schema, str) else json.dumps(schema)


class AvroFormat:
    """Avro between a type, the schema that it is written with, and the schema that it is read into."""

    def __init__(self, kind: Any, schema: str | None, reader: str | None, options: SchemaOptions) -> None:
        self._schema, self._reader, self._options = schema, reader, options
        self._to_plain, self._from_plain = conversions(kind)
        record = _record_name(schema) if schema else None
        self.name = f"avro({record or ''})"
        self._record, self.has_schema = record, schema is not None
        self.immutable = kind is not None and never_changes(kind)

    def writer(self, registry: Registry, subject_of: Callable[[str | None], str]) -> Writer:
        subject = subject_of(self._record)
        if self._schema is None:
            registered = registry.latest(subject)
            schema = registered.schema
        else:
            schema = registry.schema(_as_object(self._schema), "AVRO", self._options.references)
            registered = registry.identify(subject, schema, register=self._options.register)
        return writer_of(registered, self._encoder(parse_schema(registry, schema)))

    def _encoder(self, parsed: Any) -> Callable[[Any], bytes]:
        write, to_plain, buffer = import_schemas("fastavro").schemaless_writer, self._to_plain, BytesIO

        def encode(value: Any) -> bytes:
            out = buffer()
            write(out, parsed, value if to_plain is None else to_plain(value))
            return out.getvalue()

        return encode

    def reader(self, load: LoadSchema, start: int) -> Callable[[bytes], Any]:
        registry, schema = load(None)
        written = parse_schema(registry, schema)
        wanted = None
        if self._reader is not None:
            wanted = parse_schema(registry, registry.schema(_as_object(self._reader), "AVRO", self._options.references))
        # Resolving a schema with itself gives the same, in twice the time.
        wanted = None if wanted == written else wanted
        read, from_plain, buffer = import_schemas("fastavro").schemaless_reader, self._from_plain, BytesIO

        def decode(raw: bytes) -> Any:
            return read(buffer(raw[start:]), written, wanted)

        def decode_typed(raw: bytes) -> Any:
            return typed(read(buffer(raw[start:]), written, wanted))

        typed = cast("Callable[[Any], Any]", from_plain)
        return decode if from_plain is None else decode_typed


def parse_schema(registry: Registry, schema: Any) -> Any:
    """The schema as fastavro has it, with those that it refers to."""
    resolve = import_schemas("confluent_kafka.schema_registry.avro")._resolve_named_schema  # noqa: SLF001 - it is in __all__
    parse = import_schemas("confluent_kafka.schema_registry.common.avro").parse_schema_with_repo
    try:
        return parse(_as_object(schema.schema_str), resolve(schema, registry.client))
    except Exception as error:
        if type(error).__module__.startswith(("fastavro", "json")):
            raise ValueError(f"this is no Avro schema: {error}: {schema.schema_str[:200]}") from error
        raise registry.explain(error, None) from error


def _as_object(text: str) -> str:
    """A schema such as `"string"` as `{"type": "string"}`, which the client wants."""
    text = text.strip()
    return text if text.startswith(("{", "[")) else f'{{"type":{text}}}'


def _record_name(text: str) -> str | None:
    found: Any = json.loads(text)
    if not isinstance(found, dict) or "name" not in found:
        return None
    fields = cast("dict[str, str]", found)
    name, namespace = fields["name"], fields.get("namespace")
    return name if "." in name or not namespace else f"{namespace}.{name}"


def conversions(kind: Any) -> tuple[Callable[[Any], Any] | None, Callable[[Any], Any] | None]:
    """The functions from values of a type to dicts and back; None for dicts themselves."""
    if kind is None or kind is dict:
        return None, None
    if hasattr(kind, "model_validate"):
        return lambda value: value.model_dump(), kind.model_validate
    return (
        lambda value: msgspec.to_builtins(value, builtin_types=_NATIVE),
        lambda value: msgspec.convert(value, kind, builtin_types=_NATIVE),
    )


# ------------------------------------------------------------------------------------------------ the schema of a type
def avro_schema(kind: Any, *, namespace: str | None = None) -> dict[str, Any]:
    """The Avro schema of a dataclass, a msgspec or a pydantic type.

    An int is a long, a float a double, a datetime a timestamp in microseconds, `X | None` a union. Fields with defaults
    have them in the schema, so that a type may get fields and lose them.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Order:
    ...     product: str
    ...     count: int = 1
    >>> avro_schema(Order)["fields"]
    [{'name': 'product', 'type': 'string'}, {'name': 'count', 'type': 'long', 'default': 1}]
    """
    schema = _SchemaMaker().make(types.type_info(_without_pydantic(kind)))
    if not isinstance(schema, dict) or schema.get("type") != "record":  # pyright: ignore[reportUnknownMemberType]
        raise TypeError(f"an Avro schema is made of a class with fields, not of {kind!r}: give schema=")
    record = cast("dict[str, Any]", schema)
    return record if namespace is None else {**record, "namespace": namespace}


def _without_pydantic(kind: Any) -> Any:
    """A msgspec type with the fields of a pydantic model, which msgspec cannot inspect; other types as they are."""
    found = getattr(kind, "model_fields", None)
    if found is None:
        return kind
    fields: list[Any] = []
    for name, info in found.items():
        make, field = info.default_factory, (name, info.annotation)
        default: Any = msgspec.field(default=info.default) if make is None else msgspec.field(default_factory=make)
        fields.append(field if info.is_required() else (*field, default))
    return msgspec.defstruct(kind.__name__, fields)


_SIMPLE: dict[type[types.Type], Any] = {
    types.BoolType: "boolean",
    types.BytesType: "bytes",
    types.DateTimeType: {"type": "long", "logicalType": "timestamp-micros"},
    types.DateType: {"type": "int", "logicalType": "date"},
    types.FloatType: "double",
    types.IntType: "long",
    types.NoneType: "null",
    types.StrType: "string",
    types.TimeType: {"type": "long", "logicalType": "time-micros"},
    types.UUIDType: {"type": "string", "logicalType": "uuid"},
}


class _SchemaMaker:
    """Makes the schema of a type; a record or enum that occurs again is named only."""

    def __init__(self) -> None:
        self._named: set[str] = set()

    def make(self, kind: types.Type) -> Any:
        simple = _SIMPLE.get(type(kind))
        if simple is not None:
            return simple
        match kind:
            case types.UnionType():
                return [
                    self.make(part) for part in sorted(kind.types, key=lambda part: type(part) is not types.NoneType)
                ]
            case types.ListType() | types.VarTupleType() | types.SetType() | types.FrozenSetType():
                return {"type": "array", "items": self.make(kind.item_type)}
            case types.DictType():
                return {"type": "map", "values": self.make(kind.value_type)}
            case types.EnumType():
                symbols = [member.value for member in kind.cls]
                return self._define(kind.cls.__name__, {"type": "enum", "symbols": symbols})
            case types.DataclassType() | types.StructType():
                return self._record(kind.cls.__name__, kind.fields)
            case types.CustomType() if hasattr(kind.cls, "model_fields"):
                return self.make(types.type_info(_without_pydantic(kind.cls)))
            case _:
                raise TypeError(f"no Avro type follows from {kind}: give the schema, as schema=")

    def _define(self, name: str, schema: dict[str, Any]) -> Any:
        if name in self._named:
            return name
        self._named.add(name)
        return {**schema, "name": name}

    def _record(self, name: str, fields: tuple[types.Field, ...]) -> Any:
        if name in self._named:
            return name
        self._named.add(name)
        return {"type": "record", "name": name, "fields": [self._field(field) for field in fields]}

    def _field(self, field: types.Field) -> dict[str, Any]:
        schema = {"name": field.encode_name, "type": self.make(field.type)}
        if field.required:
            return schema
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        plain = msgspec.to_builtins(default)
        if isinstance(schema["type"], list) and plain is not None:
            schema["type"] = [*schema["type"][1:], schema["type"][0]]  # the default is of the first type of a union
        return {**schema, "default": plain}
