"""Protobuf, with the schemas of a registry. The messages are classes that protoc has generated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from headrace.serde.protocol import Serde
from headrace.serde.schema_registry import (
    Framing,
    LoadSchema,
    Registry,
    SchemaOptions,
    SubjectStrategy,
    Writer,
    import_extra,
    make_serde,
)

T = TypeVar("T")


def protobuf(
    message: type[T],
    /,
    *,
    registry: str | Mapping[str, Any] | None = None,
    subject: SubjectStrategy = "topic",
    register: bool = True,
    framing: Framing = "prefix",
) -> Serde[T]:
    """Protobuf with a schema registry, for messages of a generated class.

    Its file, and the files that this imports, are registered. Messages of older and newer versions of the class are
    read as Protobuf does: the numbers of the fields count. The options are those of `avro`.

    >>> from google.protobuf.wrappers_pb2 import StringValue
    >>> words = protobuf(StringValue, registry="mock://protobuf", subject="record")
    >>> words.decode(words.encode(StringValue(value="hello"))).value
    'hello'
    """
    return _protobuf(message, SchemaOptions(registry, subject, register, framing))


def _protobuf(message: Any, options: SchemaOptions) -> Serde[Any]:
    return make_serde(ProtobufFormat(message, options), options, (_protobuf, (message, options)))


class ProtobufFormat:
    """Messages of one class."""

    immutable = False

    def __init__(self, message: Any, options: SchemaOptions) -> None:
        if not hasattr(message, "DESCRIPTOR") or not hasattr(message, "SerializeToString"):
            raise TypeError(f"serde.protobuf needs a class that protoc has generated, not {message!r}")
        self._message, self._options = message, options
        self.name = f"protobuf({message.DESCRIPTOR.full_name})"

    def writer(self, registry: Registry, subject_of: Callable[[str | None], str]) -> Writer:
        """The client registers the file and its imports while it serializes a message: here, an empty one."""
        serializer = import_extra("confluent_kafka.schema_registry.protobuf").ProtobufSerializer
        context = import_extra("confluent_kafka.serialization").SerializationContext("", "value")
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
        return Writer(schema_id.id_to_bytes(), guid, self._encode)

    def _encode(self, value: Any) -> bytes:
        if type(value) is self._message:
            return value.SerializeToString()
        raise TypeError(f"{self.name} encodes a {self._message.__name__}, not {value!r} of type {type(value).__name__}")

    def reader(self, load: LoadSchema, *, in_header: bool) -> Callable[[bytes], Any]:
        """Fields have numbers, so that the schema that wrote a message is not needed to read it."""
        parse = self._message.FromString

        def parse_behind_indexes(payload: bytes) -> Any:
            return parse(payload[_skip_indexes(payload) :])

        return parse if in_header else parse_behind_indexes


def _skip_indexes(payload: bytes) -> int:
    r"""Where the message begins: behind the place of its type in the file, a count and as many varints.

    >>> _skip_indexes(b"\x00..."), _skip_indexes(b"\x04\x02\x00...")
    (1, 3)
    """
    if payload[:1] == b"\0":  # short for the first type of the file
        return 1
    left, at = -1, 0
    while left:
        value = shift = 0
        while True:
            if at >= len(payload):
                raise ValueError(
                    f"a message in Protobuf begins with the place of its type in its file: {payload[:20]!r}"
                )
            byte = payload[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        left = value >> 1 if left < 0 else left - 1
    return at
