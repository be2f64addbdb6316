"""Values whose serde nobody declared, in state and on the way between sub-topologies.

| 0 | MessagePack |, of a tuple | 1 | MessagePack of its list |, of an empty text nothing
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.serde.protocol import Serde

_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.decode
_MARKS: dict[type, bytes] = {tuple: b"\x01"}


def encode(value: Any) -> bytes:
    if value == "":
        return b""  # as STRING has it
    try:
        return _MARKS.get(value.__class__, b"\x00") + _encode(value)
    except (TypeError, OverflowError) as problem:
        raise TypeError(
            f"a {type(value).__name__} cannot be kept without a serde ({problem}); declare one where the table is "
            "made: store=Materialized(value=...)"
        ) from None


def decode(raw: bytes) -> Any:
    if not raw:
        return ""
    value = _decode(memoryview(raw)[1:])
    return tuple(value) if raw[0] else value


UNDECLARED = Serde("UNDECLARED", encode, decode)
