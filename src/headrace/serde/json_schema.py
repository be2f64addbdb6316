"""JSON with a JSON Schema of a registry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast, overload

import msgspec

from headrace.serde.avro import SchemaLike, schema_text
from headrace.serde.json import JSON, json_of
from headrace.serde.protocol import Serde
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


@overload
def json_schema(
    kind: type[T],
    /,
    *,
    schema: SchemaLike | None = None,
    validate: bool = True,
    registry: str | Mapping[str, Any] | None = None,
    subject: SubjectStrategy = "topic",
    register: bool = True,
    framing: Framing = "prefix",
    references: Iterable[Reference] = (),
) -> Serde[T]: ...
@overload
def json_schema(
    kind: None = None,
    /,
    *,
    schema: SchemaLike | None = None,
    validate: bool = True,
    registry: str | Mapping[str, Any] | None = None,
    subject: SubjectStrategy = "topic",
    register: bool = True,
    framing: Framing = "prefix",
    references: Iterable[Reference] = (),
) -> Serde[Any]: ...
def json_schema(
    kind: Any = None,
    /,
    *,
    schema: SchemaLike | None = None,
    validate: bool = True,
    registry: str | Mapping[str, Any] | None = None,
    subject: SubjectStrategy = "topic",
    register: bool = True,
    framing: Framing = "prefix",
    references: Iterable[Reference] = (),
) -> Serde[Any]:
    """JSON with a schema registry, for dicts or for a dataclass, a msgspec or a pydantic type.

    The schema is made of the type if none is given. Values of a type are checked by the type, as `json_of` does;
    dicts are checked with the schema, written and read, unless `validate` is False. The options are those of `avro`.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Order:
    ...     product: str
    >>> orders = json_schema(Order, registry="mock://json", subject="record")
    >>> orders.encode(Order("pen"))[5:], orders.decode(orders.encode(Order("pen")))
    (b'{"product":"pen"}', Order(product='pen'))
    """
    options = SchemaOptions(registry, subject, register, framing, tuple(references))
    return _json_schema(kind, schema_text(schema), validate, options)


def _json_schema(kind: Any, schema: str | None, validate: bool, options: SchemaOptions) -> Serde[Any]:
    own = _schema_of(kind) if schema is None and kind is not None else schema
    format = JsonSchemaFormat(kind, own, options, validate=validate)
    return make_serde(format, options, (_json_schema, (kind, schema, validate, options)))


def _schema_of(kind: Any) -> str:
    """The schema of a type; its title is the type's name, which subjects of records need."""
    found: Any = kind.model_json_schema() if hasattr(kind, "model_json_schema") else msgspec.json.schema(kind)
    reference = found.pop("$ref", "").rpartition("/")[2]
    if reference:  # msgspec refers to the type itself, too
        found = {**found["$defs"].pop(reference), **{name: part for name, part in found.items() if part}}
    return json.dumps(found)


class JsonSchemaFormat:
    """JSON between a type and a schema."""

    def __init__(self, kind: Any, schema: str | None, options: SchemaOptions, *, validate: bool) -> None:
        self._plain = JSON if kind is None or kind is dict else json_of(kind)
        self._schema, self._options = schema, options
        self._validates = validate and self._plain is JSON
        title = json.loads(schema).get("title") if schema else None
        self.name = f"json_schema({title or getattr(kind, '__name__', '')})"
        self._record = cast("str | None", title)
        self.immutable, self.has_schema = self._plain.immutable, schema is not None

    def writer(self, registry: Registry, subject_of: Callable[[str | None], str]) -> Writer:
        subject = subject_of(self._record)
        if self._schema is None:
            registered = registry.latest(subject)
            schema = registered.schema
        else:
            schema = registry.schema(self._schema, "JSON", self._options.references)
            registered = registry.identify(subject, schema, register=self._options.register)
        encode = self._plain.encode
        check = _validator(registry, schema, self.name) if self._validates else None

        def encode_checked(value: Any) -> bytes:
            if check is not None:
                check(value)
            return encode(value)

        return writer_of(registered, encode if check is None else encode_checked)

    def reader(self, load: LoadSchema, start: int) -> Callable[[bytes], Any]:
        plain = self._plain.decode
        if not self._validates:
            return lambda raw: plain(raw[start:])
        registry, written = load(None)
        wanted = registry.schema(self._schema, "JSON", self._options.references) if self._schema else written
        check = _validator(registry, wanted, self.name)

        def decode(raw: bytes) -> Any:
            value = plain(raw[start:])
            check(value)
            return value

        return decode


def _validator(registry: Registry, schema: Any, name: str) -> Callable[[Any], None]:
    resolve = import_schemas("confluent_kafka.schema_registry.json_schema")._resolve_named_schema  # noqa: SLF001 - it is in __all__
    jsonschema, parsed = import_schemas("jsonschema"), json.loads(schema.schema_str)
    found = jsonschema.validators.validator_for(parsed)
    validate = found(parsed, registry=resolve(schema, registry.client)).validate

    def check(value: Any) -> None:
        try:
            validate(value)
        except jsonschema.ValidationError as error:
            at = "/".join(map(str, error.absolute_path))
            raise ValueError(f"{name}: {error.message}{f' at {at}' if at else ''}") from None

    return check
