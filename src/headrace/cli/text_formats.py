"""Text formats: how the console commands parse and print keys and values of each serde."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast
from uuid import UUID

import orjson

from headrace import serde
from headrace.cli.options import parse_pairs
from headrace.cli.output import UsageError
from headrace.model.windows import Windowed
from headrace.serde import Serde
from headrace.serde.protocol import SerdeContext, bind_serde

REGISTRY = "schema.registry."
WINDOWED = ("windowed-", "session-windowed-")  # before the name of the key's format
WINDOW_SIZE = "window.size.ms"


class TextFormat(NamedTuple):
    """A serde, how to parse a text into a value of it, and how to print a value of it."""

    serde: Serde
    parse: Callable[[str], Any]
    format: Callable[[Any], bytes]


def _parse_boolean(text: str) -> bool:
    parsed = {"true": True, "false": False}.get(text.strip().lower())
    if parsed is None:
        raise ValueError(f"true or false, not {text!r}")
    return parsed


def _format_text(value: Any) -> bytes:
    return str(value).encode(errors="surrogateescape")


def _format_boolean(value: bool) -> bytes:
    return b"true" if value else b"false"


def _parse_void(text: str) -> None:
    return None


def _parse_bytes(text: str) -> bytes:
    """Return the bytes of a text, which may hold bytes that are not UTF-8 as surrogates."""
    return text.encode(errors="surrogateescape")


FORMATS = {
    "boolean": TextFormat(serde.BOOLEAN, _parse_boolean, _format_boolean),
    "bytes": TextFormat(serde.BYTES, _parse_bytes, bytes),
    "double": TextFormat(serde.DOUBLE, float, _format_text),
    "float": TextFormat(serde.FLOAT, float, _format_text),
    "integer": TextFormat(serde.INTEGER, int, _format_text),
    "json": TextFormat(serde.JSON, orjson.loads, orjson.dumps),
    "long": TextFormat(serde.LONG, int, _format_text),
    "short": TextFormat(serde.SHORT, int, _format_text),
    "string": TextFormat(serde.STRING, str, _format_text),
    "uuid": TextFormat(serde.UUID, UUID, _format_text),
    "void": TextFormat(serde.VOID, _parse_void, _format_text),
}
_ALIASES = {"int": "integer", "str": "string", "bytearray": "bytes", "bytebuffer": "bytes", "bool": "boolean"}


SCHEMA_FORMATS = ("avro", "protobuf", "json-schema")
SCHEMA_PROPERTIES: dict[str, str | None] = {
    f"{part}.schema{ending}": None for part in ("key", "value") for ending in ("", ".file")
}


def find_schema_format(name: str, part: Literal["key", "value"], properties: Mapping[str, str]) -> TextFormat:
    """Return the format of a serde with a schema registry, or of another serde.

    `schema.registry.url` is the registry; `value.schema` or `value.schema.file` is the schema, as in Confluent's tools.
    Without one, records are written with the newest schema of the subject.
    """
    if name.lower().replace("_", "-") not in SCHEMA_FORMATS:
        return find_format(name)
    schema = properties.get(f"{part}.schema")
    if file := properties.get(f"{part}.schema.file"):
        schema = Path(file).read_text(encoding="utf-8")
    registry = {key.removeprefix(REGISTRY): text for key, text in properties.items() if key.startswith(REGISTRY)}
    match name.lower().replace("_", "-"):
        case "avro":
            found: Serde[Any] = serde.avro(schema=schema, registry=registry or None)
        case "json-schema":
            found = serde.json_schema(schema=schema, registry=registry or None)
        case _:
            if schema:
                raise UsageError(f"--property {part}.schema: a Protobuf file is registered by an application, not here")
            found = serde.protobuf(registry=registry or None)
    return TextFormat(found, orjson.loads, _format_json)


def find_reader(name: str, part: Literal["key", "value"], properties: Mapping[str, str]) -> TextFormat:
    """Return a format that reads the records of any topic. `windowed-string` and the like read windowed keys."""
    kind, inner_name = next(((kind, name[len(kind) :]) for kind in WINDOWED if name.startswith(kind)), ("", name))
    found = find_schema_format(inner_name, part, properties)
    inner = found._replace(serde=bind_serde(found.serde, SerdeContext(None, part, {})))
    match kind:
        case "windowed-":
            return _windowed_format(serde.windowed(inner.serde, _window_size(name, properties)), inner)
        case "session-windowed-":
            return _windowed_format(serde.session_windowed(inner.serde), inner)
        case _:
            return inner


def _window_size(name: str, properties: Mapping[str, str]) -> int:
    size = properties.get(WINDOW_SIZE, "")
    if not size.isdecimal() or int(size) == 0:
        raise UsageError(
            f"{name}: a key has the start of its window, not its end. Give the size: --property {WINDOW_SIZE}=60000"
        )
    return int(size)


def _windowed_format(windowed: Serde[Windowed[Any]], inner: TextFormat) -> TextFormat:
    """Return the format that prints windowed keys as Kafka Streams does, `[key@start/end]`."""

    def show(key: Windowed[Any]) -> bytes:
        return b"[%b@%d/%d]" % (inner.format(key.key), key.window.start, key.window.end)

    return TextFormat(windowed, inner.parse, show)


def _format_json(value: Any) -> bytes:
    """Return JSON; what JSON does not have, such as bytes and times, is a text."""
    return orjson.dumps(value, default=to_text)


def to_text(value: Any) -> Any:
    """Return bytes, times and the like inside of a value as JSON's texts."""
    return to_json(value) if isinstance(value, bytes) else str(value)


def find_format(name: str) -> TextFormat:
    """Return the format of a serde, by its name or by the name of Kafka's class.

    >>> find_format("org.apache.kafka.common.serialization.LongDeserializer").serde
    <serde LONG>
    """
    short = name.replace("$", ".").rpartition(".")[2]
    for ending in ("Deserializer", "Serializer", "Serde"):
        short = short.removesuffix(ending)
    short = short.lower()
    found = FORMATS.get(_ALIASES.get(short, short))
    if found is None:
        known = ", ".join((*FORMATS, *SCHEMA_FORMATS))
        raise UsageError(
            f"there is no serde {name!r}: give one of {known}, or the name of Kafka's class; windowed-… and "
            "session-windowed-… read windowed keys"
        )
    return found


def parse_properties(given: Sequence[str], defaults: Mapping[str, str | None]) -> dict[str, str]:
    r"""Parse the `--property` options of Kafka's console tools. In separators, `\t` and `\n` are a tab and a newline.

    >>> parse_properties([r"key.separator=\t"], {"key.separator": ":", "print.key": "false", "key.serde": None})
    {'key.separator': '\t', 'print.key': 'false'}
    """
    properties = parse_pairs(given, "--property")
    unknown = sorted(name for name in properties.keys() - defaults.keys() if not name.startswith(REGISTRY))
    if unknown:
        raise UsageError(f"there is no property {unknown[0]!r}: known are {', '.join(defaults)}")
    texts = {name: text for name, text in {**defaults, **properties}.items() if text is not None}
    separators = {name: text for name, text in texts.items() if name.endswith(("separator", "delimiter", "literal"))}
    return texts | {name: text.replace("\\t", "\t").replace("\\n", "\n") for name, text in separators.items()}


def is_true(text: str) -> bool:
    return text.lower() == "true"


def to_json(value: Any) -> Any:
    """Return a decoded key or value for JSON; bytes that are not UTF-8 become {"base64": …}.

    >>> to_json(b"abc"), to_json(bytes([255]))
    ('abc', {'base64': '/w=='})
    >>> from headrace.model.windows import Window
    >>> to_json(Windowed("ada", Window(0, 60_000)))
    {'key': 'ada', 'window': {'start': 0, 'end': 60000}}
    """
    if isinstance(value, Windowed):
        key, window = cast("Windowed[Any]", value)
        return {"key": to_json(key), "window": window._asdict()}
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    return str(value) if isinstance(value, UUID) else value
