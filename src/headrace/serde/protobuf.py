"""Protobuf, with the schemas of a registry: messages of classes that protoc has generated, or dicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from headrace.serde.protocol import Serde
from headrace.serde.schema_registry import (
    Framing,
    LoadSchema,
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
def protobuf(
    message: type[T],
    /,
    *,
    registry: str | Mapping[str, Any] | None = None,
    subject: SubjectStrategy = "topic",
    register: bool = True,
    framing: Framing = "prefix",
) -> Serde[T]: ...
@overload
def protobuf(
    message: None = None,
    /,
    *,
    registry: str | Mapping[str, Any] | None = None,
    subject: SubjectStrategy = "topic",
    register: bool = True,
    framing: Framing = "prefix",
) -> Serde[dict[str, Any]]: ...
def protobuf(
    message: Any = None,
    /,
    *,
    registry: str | Mapping[str, Any] | None = None,
    subject: SubjectStrategy = "topic",
    register: bool = True,
    framing: Framing = "prefix",
) -> Serde[Any]:
    """Protobuf with a schema registry, for messages of a generated class.

    Its file, and the files that this imports, are registered. Messages of older and newer versions of the class are
    read as Protobuf does: the numbers of the fields count. Without a class, messages are dicts: they are read with the
    schema that wrote them, and written as the first message of the newest schema. The options are those of `avro`.

    >>> from google.protobuf.wrappers_pb2 import StringValue
    >>> words = protobuf(StringValue, registry="mock://protobuf", subject="record")
    >>> words.decode(words.encode(StringValue(value="hello"))).value
    'hello'
    """
    return _protobuf(message, SchemaOptions(registry, subject, register, framing))


def _protobuf(message: Any, options: SchemaOptions) -> Serde[Any]:
    format = AnyProtobufFormat() if message is None else ProtobufFormat(message, options)
    return make_serde(format, options, (_protobuf, (message, options)))


class ProtobufFormat:
    """Messages of one class."""

    immutable, has_schema = False, True

    def __init__(self, message: Any, options: SchemaOptions) -> None:
        if not hasattr(message, "DESCRIPTOR") or not hasattr(message, "SerializeToString"):
            raise TypeError(f"serde.protobuf needs a class that protoc has generated, not {message!r}")
        self._message, self._options = message, options
        self.name = f"protobuf({message.DESCRIPTOR.full_name})"

    def writer(self, registry: Registry, subject_of: Callable[[str | None], str]) -> Writer:
        """The client registers the file and its imports while it serializes a message: here, an empty one."""
        serializer = import_schemas("confluent_kafka.schema_registry.protobuf").ProtobufSerializer
        context = import_schemas("confluent_kafka.serialization").SerializationContext("", "value")
        message, found = self._message, list[Any]()
        subject = subject_of(message.DESCRIPTOR.full_name)

        def keep(payload: bytes, context: Any, schema_id: Any) -> bytes:
            found.append(schema_id)
            return payload

        def choose_subject(context: Any, record: Any) -> str:
            return subject

        conf: dict[str, Any] = {
            "auto.register.schemas": self._options.register,
            "subject.name.strategy": choose_subject,
            "schema.id.serializer": keep,
        }
        try:
            serializer(message, registry.client, conf)(message(), context)
        except Exception as error:
            raise registry.explain(error, subject) from error
        (schema_id,) = found
        guid = None if schema_id.guid is None else schema_id.guid_to_bytes()
        return Writer(schema_id.id_to_bytes(), guid, self._encoder())

    def _encoder(self) -> Callable[[Any], bytes]:
        message, serialize, name = self._message, self._message.SerializeToString, self.name

        def encode(value: Any) -> bytes:
            if type(value) is message:
                return serialize(value)
            raise TypeError(f"{name} encodes a {message.__name__}, not {value!r} of type {type(value).__name__}")

        return encode

    def reader(self, load: LoadSchema, start: int) -> Callable[[bytes], Any]:
        """Fields have numbers, so that the schema that wrote a message is not needed to read it."""
        parse = self._message.FromString

        def parse_behind_indexes(raw: bytes) -> Any:
            # A zero is short for the first message of the file; only the id is there in bytes that were cut off.
            return parse(raw[6:] if len(raw) > 5 and not raw[5] else raw[_skip_indexes(raw, start) :])

        return parse_behind_indexes if start else parse


class AnyProtobufFormat:
    """Messages of any class, as dicts."""

    name, immutable, has_schema = "protobuf()", False, False

    def writer(self, registry: Registry, subject_of: Callable[[str | None], str]) -> Writer:
        registered = registry.latest(subject_of(None), "serialized")
        message = _message_class(registry, registered.schema, [0])
        parse_dict = import_schemas("google.protobuf.json_format").ParseDict
        prefix, guid, encode = writer_of(registered, lambda value: parse_dict(value, message()).SerializeToString())
        return Writer(prefix + b"\0", None if guid is None else guid + b"\0", encode)

    def reader(self, load: LoadSchema, start: int) -> Callable[[bytes], Any]:
        registry, schema = load("serialized")
        to_dict = import_schemas("google.protobuf.json_format").MessageToDict
        parsers: dict[bytes, Callable[[bytes], Any]] = {}

        def decode(raw: bytes) -> Any:
            # The indexes of a message whose id is in a header are there, too: the first one of the file is assumed.
            end = _skip_indexes(raw, start) if start else 0
            place = raw[start:end]
            if place not in parsers:
                parsers[place] = _message_class(registry, schema, _read_indexes(place)).FromString
            return to_dict(parsers[place](raw[end:]), preserving_proto_field_name=True)

        return decode


def _message_class(registry: Registry, schema: Any, indexes: list[int]) -> Any:
    """The class of a message of a registered file; the client knows how to parse it and what it imports."""
    any_class = import_schemas("google.protobuf.wrappers_pb2").StringValue
    parser = import_schemas("confluent_kafka.schema_registry.protobuf").ProtobufDeserializer(
        any_class, {}, registry.client
    )
    try:
        file, pool = parser._get_parsed_schema(schema)  # noqa: SLF001 - only the client reads the registry's form
        descriptor = parser._get_message_desc(pool, pool.FindFileByName(file.name), indexes)  # noqa: SLF001
    except Exception as error:
        raise registry.explain(error, None) from error
    return import_schemas("google.protobuf.message_factory").GetMessageClass(descriptor)


def _read_indexes(raw: bytes) -> list[int]:
    r"""The place of a message in its file: that of the type, and of types inside of it.

    >>> _read_indexes(b"\x00"), _read_indexes(b"\x04\x02\x00")
    ([0], [1, 0])
    """
    values, at = list[int](), 0
    while at < len(raw):
        value, at = _read_varint(raw, at)
        values.append(value >> 1)
    return values[1:] or [0]


def _skip_indexes(raw: bytes, start: int) -> int:
    r"""Where the message begins: behind the place of its type in the file, a count and as many varints.

    >>> _skip_indexes(b"\x00...", 0), _skip_indexes(b"\x04\x02\x00...", 0)
    (1, 3)
    """
    count, at = _read_varint(raw, start)  # the count 0 is short for the first type of the file
    for _ in range(count >> 1):
        _, at = _read_varint(raw, at)
    return at


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends. Protobuf's zigzag numbers are twice as large."""
    value = shift = 0
    for place in range(at, len(raw)):
        value |= (raw[place] & 0x7F) << shift
        if raw[place] < 0x80:
            return value, place + 1
        shift += 7
    raise ValueError(f"a message in Protobuf begins with the place of its type in its file, not with {raw[:20]!r}")
