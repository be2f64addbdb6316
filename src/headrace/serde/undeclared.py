"""Values whose serde nobody declared, in state and on the way between sub-topologies.

| 0 | MessagePack |, of a tuple | 1 | MessagePack of its list |, of an empty text nothing
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from headrace.serde.protocol import Serde

_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.decode
_SCALARS = frozenset({str, int, float, bool, bytes, type(None)})


def encode(value: Any) -> bytes:
    if value == "":
        return b""  # as STRING has it
    is_tuple = type(value) is tuple
    _check(list(cast("tuple[Any, ...]", value)) if is_tuple else value, value)
    try:
        return (b"\x01" if is_tuple else b"\x00") + _encode(value)
    except OverflowError as problem:
        raise _refused(value, str(problem)) from None


def decode(raw: bytes) -> Any:
    if not raw:
        return ""
    value = _decode(memoryview(raw)[1:])
    return tuple(value) if raw[0] else value


def _check(part: Any, whole: Any) -> None:
    """Whatever would come back as something else is refused, before anybody takes it for what it was."""
    if type(part) in _SCALARS:
        return
    if type(part) is list:
        parts = cast("list[Any]", part)
    elif type(part) is dict:
        parts = [*cast("dict[Any, Any]", part), *cast("dict[Any, Any]", part).values()]
    else:
        raise _refused(whole, f"it would not come back as a {type(part).__name__}")
    for item in parts:
        _check(item, whole)


def _refused(value: Any, why: str) -> TypeError:
    return TypeError(
        f"a {type(value).__name__} cannot be kept without a serde: {why}. "
        "Declare one where the stream or table is made: value=..., or store=Materialized(value=...)"
    )


UNDECLARED = Serde("UNDECLARED", encode, decode)
