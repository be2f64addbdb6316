"""Keys and values as text: what the console tools read from people and show to them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from headrace import serde
from headrace.cli.printing import WrongUsage
from headrace.serde import Serde


class Form(NamedTuple):
    """How bytes are shown, how what is written becomes bytes, and what they are in JSON."""

    serde: Serde
    parse: Callable[[str], Any]
    show: Callable[[Any], bytes]


def _boolean(text: str) -> bool:
    answer = {"true": True, "false": False}.get(text.strip().lower())
    if answer is None:
        raise ValueError(f"true or false, not {text!r}")
    return answer


def _text(value: Any) -> bytes:
    return str(value).encode(errors="surrogateescape")


def _truth(value: bool) -> bytes:
    return b"true" if value else b"false"


def _nothing(text: str) -> None:
    return None


def _raw(text: str) -> bytes:
    """Text that may hold bytes which are no UTF-8, as it was read."""
    return text.encode(errors="surrogateescape")


FORMS = {
    "boolean": Form(serde.BOOLEAN, _boolean, _truth),
    "bytes": Form(serde.BYTES, _raw, bytes),
    "double": Form(serde.DOUBLE, float, _text),
    "float": Form(serde.FLOAT, float, _text),
    "integer": Form(serde.INTEGER, int, _text),
    "json": Form(serde.JSON, orjson.loads, orjson.dumps),
    "long": Form(serde.LONG, int, _text),
    "short": Form(serde.SHORT, int, _text),
    "string": Form(serde.STRING, str, _text),
    "uuid": Form(serde.UUID, UUID, _text),
    "void": Form(serde.VOID, _nothing, _text),
}
_OTHER_NAMES = {"int": "integer", "str": "string", "bytearray": "bytes", "bytebuffer": "bytes", "bool": "boolean"}


def form_of(name: str) -> Form:
    """The form of a name, or of a Kafka class.

    >>> form_of("org.apache.kafka.common.serialization.LongDeserializer").serde
    <serde LONG>
    """
    short = name.replace("$", ".").rpartition(".")[2]
    for ending in ("Deserializer", "Serializer", "Serde"):
        short = short.removesuffix(ending)
    short = short.lower()
    found = FORMS.get(_OTHER_NAMES.get(short, short))
    if found is None:
        raise WrongUsage(f"there is no serde {name!r}: give one of {', '.join(FORMS)}, or the name of Kafka's class")
    return found


def in_json(value: Any) -> Any:
    """A decoded key or value as JSON can have it; bytes that are no text as {"base64": …}.

    >>> in_json(b"abc"), in_json(bytes([255]))
    ('abc', {'base64': '/w=='})
    """
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    return str(value) if isinstance(value, UUID) else value
