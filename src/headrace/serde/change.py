"""A table's changes on their way to another sub-topology."""

from __future__ import annotations

import struct

from headrace.model.record import Change
from headrace.serde.protocol import Serde

# | flags u8: 1 new, 2 old, 4 latest | length of new u32, if there are both | new | old |
_NEW, _OLD, _LATEST = 1, 2, 4
_BOTH = _NEW | _OLD
_HEAD = struct.Struct(">BI")


def change_serde(inner: Serde) -> Serde:
    r"""Changes `(new, old, is_latest)` of values whose serde is `inner`; new and old may be None.

    >>> from headrace.serde import STRING
    >>> change_serde(STRING).encode(("new", "old", True))
    b'\x07\x00\x00\x00\x03newold'
    """
    encode_value, decode_value = inner.encode, inner.decode

    def encode(change: Change) -> bytes:
        new, old, is_latest = change
        latest = _LATEST if is_latest else 0
        if old is None:
            return bytes((latest,)) if new is None else bytes((latest | _NEW,)) + encode_value(new)
        if new is None:
            return bytes((latest | _OLD,)) + encode_value(old)
        raw = encode_value(new)
        return _HEAD.pack(latest | _BOTH, len(raw)) + raw + encode_value(old)

    def decode(raw: bytes) -> Change:
        flags = raw[0] if raw else 8
        latest = flags & _LATEST != 0
        if flags & _BOTH == _BOTH and len(raw) >= _HEAD.size:
            middle = _HEAD.size + _HEAD.unpack_from(raw)[1]
            if middle <= len(raw):
                return decode_value(raw[_HEAD.size : middle]), decode_value(raw[middle:]), latest
        elif flags & _BOTH == _NEW:
            return decode_value(raw[1:]), None, latest
        elif flags & _BOTH == _OLD:
            return None, decode_value(raw[1:]), latest
        elif flags <= _LATEST and len(raw) == 1:
            return None, None, latest
        raise ValueError(f"not a change of {inner.name}: {raw[:40]!r}")

    return Serde(f"change_serde({inner.name})", encode, decode, inner.immutable, (change_serde, (inner,)))
