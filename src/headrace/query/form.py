"""Keys and values as JSON, and back.

What JSON has stands for itself; everything else is an object with one key that begins with `$`:

bytes                       {"$bytes": "base64"}        a UUID        {"$uuid": "…"}
an int beyond 2⁵³           {"$int": "…"}               a time        {"$time": "ISO 8601"}
NaN, Infinity, -Infinity    {"$float": "…"}             a decimal     {"$decimal": "…"}
a tuple                     {"$tuple": […]}             a dict with other keys than text, or with such a key
                                                                      {"$dict": [[key, value], …]}
Dataclasses, msgspec and pydantic objects become the objects of their fields, and stay that when they are read.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from typing import Any, cast
from uuid import UUID

import msgspec

LARGEST = 2**53  # up to here every program that reads JSON has the same integers


def to_form(thing: Any) -> Any:
    """What to write as JSON.

    >>> to_form({"a": b"x", "b": (1, float("inf"))})
    {'a': {'$bytes': 'eA=='}, 'b': {'$tuple': [1, {'$float': 'inf'}]}}
    """
    match thing:
        case None | bool() | str():
            return thing
        case int():
            return int(thing) if -LARGEST <= thing <= LARGEST else {"$int": str(int(thing))}
        case float():
            return thing if isfinite(thing) else {"$float": str(thing)}
        case bytes() | bytearray():
            return {"$bytes": b64encode(thing).decode()}
        case list():
            return [to_form(item) for item in cast("list[Any]", thing)]
        case tuple():
            return {"$tuple": [to_form(item) for item in cast("tuple[Any, ...]", thing)]}
        case Mapping():
            return _dict(cast("Mapping[Any, Any]", thing))
        case UUID():
            return {"$uuid": str(thing)}
        case Decimal():
            return {"$decimal": str(thing)}
        case datetime() | date():
            return {"$time": thing.isoformat()}
        case _:
            return _object(thing)


def _dict(thing: Mapping[Any, Any]) -> Any:
    if all(isinstance(key, str) and not key.startswith("$") for key in thing):
        return {key: to_form(value) for key, value in thing.items()}
    return {"$dict": [[to_form(key), to_form(value)] for key, value in thing.items()]}


def _object(thing: Any) -> Any:
    if is_dataclass(thing) and not isinstance(thing, type):
        return _dict({field.name: getattr(thing, field.name) for field in fields(thing)})
    if isinstance(thing, msgspec.Struct):
        return _dict({name: getattr(thing, name) for name in thing.__struct_fields__})
    dump = getattr(thing, "model_dump", None)
    if dump is not None:
        return to_form(dump(mode="json"))
    return {"$repr": repr(thing)}


def from_form(form: Any) -> Any:
    """What was written.

    >>> from_form(to_form((b"x", {1: 2**60})))
    (b'x', {1: 1152921504606846976})
    """
    if isinstance(form, list):
        return [from_form(item) for item in cast("list[Any]", form)]
    if not isinstance(form, dict):
        return form
    given = cast("dict[str, Any]", form)
    match given:
        case {"$bytes": str(text)}:
            return b64decode(text, validate=True)
        case {"$int": str(text)}:
            return int(text)
        case {"$float": str(text)}:
            return float(text)
        case {"$uuid": str(text)}:
            return UUID(text)
        case {"$decimal": str(text)}:
            return Decimal(text)
        case {"$time": str(text)}:
            return datetime.fromisoformat(text)
        case {"$tuple": list()}:
            return tuple(from_form(item) for item in given["$tuple"])
        case {"$dict": list()}:
            return {from_form(key): from_form(value) for key, value in given["$dict"]}
        case _:
            return {key: from_form(value) for key, value in given.items()}
