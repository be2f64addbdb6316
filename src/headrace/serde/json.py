"""JSON, plain and typed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import Any, TypeVar, overload

import msgspec
import orjson

from headrace.serde.protocol import Serde, never_changes

JSON: Serde[Any] = Serde("JSON", orjson.dumps, orjson.loads)


T = TypeVar("T")


@overload
def json_of(kind: type[T]) -> Serde[T]: ...
@overload
def json_of(kind: Any) -> Serde[Any]: ...
def json_of(kind: Any) -> Serde[Any]:
    """JSON of a dataclass, a msgspec or a pydantic type, checked while it is decoded.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Trade:
    ...     ticker: str
    ...     price: float
    >>> json_of(Trade).decode(b'{"ticker": "A", "price": 1}')
    Trade(ticker='A', price=1.0)
    """
    name = f"json_of({getattr(kind, '__name__', kind)})"
    if hasattr(kind, "model_validate_json"):
        return Serde(name, _exactly(kind, _dump_model), kind.model_validate_json, recipe=(json_of, (kind,)))
    decode = msgspec.json.Decoder(kind).decode
    encode = msgspec.json.Encoder().encode
    immutable, recipe = never_changes(kind), (json_of, (kind,))
    if not _has_fields(kind):
        return Serde(name, encode, decode, immutable, recipe)
    exactly = _exactly(kind, encode)

    def encode_all(values: Iterator[Any], types: set[type]) -> list[bytes]:
        return list(map(encode if types == {kind} else exactly, values))

    return Serde(name, exactly, decode, immutable, recipe, encode_all=encode_all)


def _dump_model(model: Any) -> bytes:
    return model.model_dump_json().encode()


def _has_fields(kind: Any) -> bool:
    return is_dataclass(kind) or hasattr(kind, "__struct_fields__") or hasattr(kind, "__attrs_attrs__")


def _exactly(kind: type, encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Rejects values that would decode to something else: another type, or a subclass with more fields."""

    def encode_exactly(value: Any) -> bytes:
        if type(value) is kind:
            return encode(value)
        name = kind.__name__
        raise TypeError(f"json_of({name}) encodes a {name}, not {value!r} of type {type(value).__name__}")

    return encode_exactly
