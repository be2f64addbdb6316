"""Text formats: how the console commands parse and print keys and values of each serde."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from headrace import serde
from headrace.cli.options import parse_pairs
from headrace.cli.output import UsageError
from headrace.serde import Serde


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
        raise UsageError(f"there is no serde {name!r}: give one of {', '.join(FORMATS)}, or the name of Kafka's class")
    return found


def parse_properties(given: Sequence[str], defaults: Mapping[str, str | None]) -> dict[str, str]:
    r"""Parse the `--property` options of Kafka's console tools. In separators, `\t` and `\n` are a tab and a newline.

    >>> parse_properties([r"key.separator=\t"], {"key.separator": ":", "print.key": "false", "key.serde": None})
    {'key.separator': '\t', 'print.key': 'false'}
    """
    properties = parse_pairs(given, "--property")
    unknown = sorted(properties.keys() - defaults.keys())
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
    """
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    return str(value) if isinstance(value, UUID) else value
