"""Keys and values as JSON, and back.

JSON's own types stand for themselves. Everything else is an object with one member whose name begins with `$`:

bytes                       {"$bytes": "base64"}        a UUID        {"$uuid": "…"}
an int beyond 2⁵³           {"$int": "…"}               a time        {"$time": "ISO 8601"}
NaN, Infinity, -Infinity    {"$float": "…"}             a decimal     {"$decimal": "…"}
a tuple                     {"$tuple": […]}             a dict with other keys than text, or with such a key
                                                                      {"$dict": [[key, value], …]}
Dataclasses, msgspec and pydantic objects and Protobuf messages become objects of their fields, and stay plain objects
when they are read.
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
import orjson

LARGEST = 2**53  # every JSON reader represents integers up to here exactly


def to_json(value: Any) -> Any:  # noqa: PLR0911 - one match over the kinds of values
    """Return a value as objects that a JSON library can write.

    >>> to_json({"a": b"x", "b": (1, float("inf"))})
    {'a': {'$bytes': 'eA=='}, 'b': {'$tuple': [1, {'$float': 'inf'}]}}
    """
    match value:
        case None | bool() | str():
            return value
        case int():
            return int(value) if -LARGEST <= value <= LARGEST else {"$int": str(int(value))}
        case float():
            return value if isfinite(value) else {"$float": str(value)}
        case bytes() | bytearray():
            return {"$bytes": b64encode(value).decode()}
        case list():
            return [to_json(item) for item in cast("list[Any]", value)]
        case tuple():
            return {"$tuple": [to_json(item) for item in cast("tuple[Any, ...]", value)]}
        case Mapping():
            return _dict_to_json(cast("Mapping[Any, Any]", value))
        case UUID():
            return {"$uuid": str(value)}
        case Decimal():
            return {"$decimal": str(value)}
        case datetime() | date():
            return {"$time": value.isoformat()}
        case _:
            return _object_to_json(value)


def _dict_to_json(value: Mapping[Any, Any]) -> Any:
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: to_json(item) for key, item in value.items()}
    return {"$dict": [[to_json(key), to_json(item)] for key, item in value.items()]}


def _object_to_json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _dict_to_json({field.name: getattr(value, field.name) for field in fields(value)})
    if isinstance(value, msgspec.Struct):
        return _dict_to_json({name: getattr(value, name) for name in value.__struct_fields__})
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return to_json(dump(mode="json"))
    if hasattr(value, "DESCRIPTOR"):
        from google.protobuf.json_format import MessageToDict  # noqa: PLC0415 - a message needs the package

        return MessageToDict(cast("Any", value), preserving_proto_field_name=True)
    return {"$repr": repr(value)}


def from_json(written: Any) -> Any:  # noqa: PLR0911 - one match over the kinds of values
    """Return the value that `to_json` was given.

    >>> from_json(to_json((b"x", {1: 2**60})))
    (b'x', {1: 1152921504606846976})
    """
    if isinstance(written, list):
        return [from_json(item) for item in cast("list[Any]", written)]
    if not isinstance(written, dict):
        return written
    members = cast("dict[str, Any]", written)
    match members:
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
            return tuple(from_json(item) for item in members["$tuple"])
        case {"$dict": list()}:
            return {from_json(key): from_json(value) for key, value in members["$dict"]}
        case _:
            return {key: from_json(value) for key, value in members.items()}


def dump_json(value: Any) -> str:
    """Return a value as JSON text.

    >>> dump_json({"a": b"x"})
    '{"a":{"$bytes":"eA=="}}'
    """
    return orjson.dumps(to_json(value)).decode()
