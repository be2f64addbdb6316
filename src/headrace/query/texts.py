"""Keys as text: in addresses, on the command line, in the store browser."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any
from uuid import UUID

import orjson

from headrace.errors import SerializationError
from headrace.query.form import from_form, to_form
from headrace.serde.protocol import Serde


def key_of(text: str, serde: Serde) -> Any:
    """The key that a text means: of STRING the text itself, of UUID its digits, of BYTES base64, of others JSON.

    >>> from headrace import serde
    >>> key_of("12", serde.STRING), key_of("12", serde.LONG), key_of("eA==", serde.BYTES)
    ('12', 12, b'x')
    """
    try:
        match serde.name:
            case "STRING":
                key = text
            case "UUID":
                key = UUID(text)
            case "BYTES":
                key = b64decode(text, validate=True)
            case _:
                key = from_form(orjson.loads(text))
        serde.encode(key)
    except Exception as error:  # whatever a serde raises, it is the text that is wrong
        wanted = {"UUID": "a UUID", "BYTES": "base64"}.get(serde.name, "JSON")
        raise SerializationError(f"{text[:100]!r} is no key of the serde {serde.name}: give {wanted}") from error
    else:
        return key


def text_of(key: Any, serde: Serde) -> str:
    """The text that means a key.

    >>> from headrace import serde
    >>> text_of("a/b", serde.STRING), text_of(b"x", serde.BYTES), text_of([1], serde.JSON)
    ('a/b', 'eA==', '[1]')
    """
    match serde.name:
        case "STRING" | "UUID":
            return str(key)
        case "BYTES":
            return b64encode(key).decode()
        case _:
            return orjson.dumps(to_form(key)).decode()
