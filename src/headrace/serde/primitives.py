"""Strings, bytes, numbers, booleans and UUIDs, byte for byte as Kafka's Java serdes write them.

At the end: the same serdes by the names of Kafka's classes, which configurations use.
"""

from __future__ import annotations

import re
import struct
import warnings
from operator import index
from typing import Any, cast
from uuid import UUID as Uuid  # noqa: N811 - UUID is the serde here

from headrace.errors import ConfigError
from headrace.serde.protocol import Serde

_SHORT, _INTEGER, _LONG = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_FLOAT, _DOUBLE = struct.Struct(">f"), struct.Struct(">d")
_ENCODED_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_HEX_GROUPS = re.compile("-".join(["([0-9a-fA-F]+)"] * 5))
_HEX_DIGITS = (8, 4, 4, 4, 12)


def encode_string(text: str) -> bytes:
    r"""UTF-8; a lone surrogate becomes `?`.

    >>> encode_string("a\ud800")
    b'a?'
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Java's strings are UTF-16: two surrogates that make a pair there are one character.
        paired = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return paired.encode("utf-8", "replace")
    except AttributeError:
        raise _wrong_type("STRING", "a str", text) from None


def decode_string(raw: bytes) -> str:
    r"""Text; bytes that are not UTF-8 become U+FFFD, as many of them as Java makes.

    >>> decode_string(b"a\xff") == "a\ufffd"
    True
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        # Java replaces an encoded surrogate, or what is there of it, as a whole; Python each of its bytes.
        return _ENCODED_SURROGATE.sub(b"\xef\xbf\xbd", raw).decode("utf-8", "replace")


def encode_bytes(value: Any) -> bytes:
    """Bytes as they are."""
    if type(value) is bytes:
        return value
    if issubclass(type(value), (bytes, bytearray, memoryview)):
        return bytes(value)
    raise _wrong_type("BYTES", "bytes", value)


def encode_long(value: int) -> bytes:
    r"""Eight bytes, big-endian.

    >>> encode_long(1)
    b'\x00\x00\x00\x00\x00\x00\x00\x01'
    """
    try:
        return _LONG.pack(value) if type(value) is int else _LONG.pack(_integer("LONG", value))
    except struct.error:
        raise _out_of_range("LONG", value, 64) from None


def decode_long(raw: bytes) -> int:
    try:
        return _LONG.unpack(raw)[0]
    except struct.error:
        raise _wrong_length("LONG", 8, raw) from None


def encode_integer(value: int) -> bytes:
    """Four bytes, big-endian."""
    try:
        return _INTEGER.pack(value) if type(value) is int else _INTEGER.pack(_integer("INTEGER", value))
    except struct.error:
        raise _out_of_range("INTEGER", value, 32) from None


def decode_integer(raw: bytes) -> int:
    try:
        return _INTEGER.unpack(raw)[0]
    except struct.error:
        raise _wrong_length("INTEGER", 4, raw) from None


def encode_short(value: int) -> bytes:
    """Two bytes, big-endian."""
    try:
        return _SHORT.pack(value) if type(value) is int else _SHORT.pack(_integer("SHORT", value))
    except struct.error:
        raise _out_of_range("SHORT", value, 16) from None


def decode_short(raw: bytes) -> int:
    try:
        return _SHORT.unpack(raw)[0]
    except struct.error:
        raise _wrong_length("SHORT", 2, raw) from None


def encode_double(value: float) -> bytes:
    """IEEE 754, eight bytes, big-endian; an int is welcome and comes back as a float."""
    if type(value) is float:
        return _DOUBLE.pack(value)
    return _DOUBLE.pack(_real("DOUBLE", value))


def decode_double(raw: bytes) -> float:
    try:
        return _DOUBLE.unpack(raw)[0]
    except struct.error:
        raise _wrong_length("DOUBLE", 8, raw) from None


def encode_float(value: float) -> bytes:
    """IEEE 754, four bytes, big-endian: a Python float loses digits."""
    try:
        return _FLOAT.pack(value) if type(value) is float else _FLOAT.pack(_real("FLOAT", value))
    except OverflowError:
        raise ValueError(f"FLOAT holds values up to 3.4e38, not {value!r}: use DOUBLE") from None


def decode_float(raw: bytes) -> float:
    try:
        return _FLOAT.unpack(raw)[0]
    except struct.error:
        raise _wrong_length("FLOAT", 4, raw) from None


def encode_boolean(value: Any) -> bytes:
    """One byte, 0 or 1."""
    if value is True:
        return b"\x01"
    if value is False:
        return b"\x00"
    raise _wrong_type("BOOLEAN", "a bool", value)


def decode_boolean(raw: bytes) -> bool:
    if raw == b"\x01":
        return True
    if raw == b"\x00":
        return False
    raise ValueError(f"BOOLEAN is one byte, 0 or 1, not {_shown(raw)}: written with another serde?")


def encode_uuid(value: Any) -> bytes:
    """The 36 characters, in lower case."""
    if isinstance(value, Uuid):
        return str(value).encode()
    raise _wrong_type("UUID", "a uuid.UUID", value)


def decode_uuid(raw: bytes) -> Uuid:
    """A UUID; groups may lack leading zeros, as in Java.

    >>> decode_uuid(b"1-2-3-4-5")
    UUID('00000001-0002-0003-0004-000000000005')
    """
    groups = _HEX_GROUPS.fullmatch(decode_string(raw))
    if groups is None or len(raw) > 36:
        raise ValueError(f"UUID is five groups of hexadecimal digits, not {_shown(raw)}: written with another serde?")
    return Uuid("-".join(g.rjust(n, "0")[-n:] for g, n in zip(groups.groups(), _HEX_DIGITS, strict=True)))


def refuse_void(value: Any) -> Any:
    """Rejects every value: VOID accepts only null, and null never reaches a serde."""
    raise ValueError(f"VOID takes no value but None, not {value!r}")


def _integer(serde: str, value: Any) -> int:
    """Converts integers, numpy's included; rejects a bool, which would decode to a number."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _wrong_type(serde, "an int", value)
    return index(value)


def _real(serde: str, value: Any) -> float:
    is_number = hasattr(value, "__float__") or hasattr(value, "__index__")
    if isinstance(value, bool) or not is_number:
        raise _wrong_type(serde, "a float", value)
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{serde} cannot hold an int of {value.bit_length()} bits") from None


def _wrong_type(serde: str, wanted: str, value: Any) -> TypeError:
    kind = type(value).__name__
    return TypeError(f"{serde} encodes {wanted}, not {value!r} of type {kind}: convert it, or choose another serde")


def _out_of_range(serde: str, value: Any, bits: int) -> ValueError:
    return ValueError(f"{serde} holds {-(2 ** (bits - 1))} to {2 ** (bits - 1) - 1}, not {value!r}")


def _wrong_length(serde: str, length: int, raw: bytes) -> ValueError:
    return ValueError(f"{serde} is {length} bytes, not the {len(raw)} of {_shown(raw)}: written with another serde?")


def _shown(raw: bytes) -> str:
    return repr(raw) if len(raw) <= 40 else f"{raw[:40]!r}…"


STRING: Serde[str] = Serde("STRING", encode_string, decode_string, immutable=True, total=True)
BYTES: Serde[bytes] = Serde("BYTES", encode_bytes, bytes, immutable=True, total=True)
LONG: Serde[int] = Serde("LONG", encode_long, decode_long, immutable=True)
INTEGER: Serde[int] = Serde("INTEGER", encode_integer, decode_integer, immutable=True)
SHORT: Serde[int] = Serde("SHORT", encode_short, decode_short, immutable=True)
DOUBLE: Serde[float] = Serde("DOUBLE", encode_double, decode_double, immutable=True)
FLOAT: Serde[float] = Serde("FLOAT", encode_float, decode_float, immutable=True)
BOOLEAN: Serde[bool] = Serde("BOOLEAN", encode_boolean, decode_boolean, immutable=True)
UUID: Serde[Uuid] = Serde("UUID", encode_uuid, decode_uuid, immutable=True)
VOID: Serde[None] = Serde("VOID", refuse_void, refuse_void, immutable=True)


# ------------------------------------------------------------------------------------------- names of Kafka's classes
_BY_CLASS_NAME = {
    "StringSerde": STRING,
    "ByteArraySerde": BYTES,
    "ByteBufferSerde": BYTES,
    "BytesSerde": BYTES,
    "LongSerde": LONG,
    "IntegerSerde": INTEGER,
    "ShortSerde": SHORT,
    "DoubleSerde": DOUBLE,
    "FloatSerde": FLOAT,
    "BooleanSerde": BOOLEAN,
    "UUIDSerde": UUID,
    "VoidSerde": VOID,
}


def by_class_name(name: str) -> Serde:
    """Kafka's serde of that class, with or without its package.

    >>> by_class_name("org.apache.kafka.common.serialization.Serdes$StringSerde")
    <serde STRING>
    """
    try:
        return _BY_CLASS_NAME[name.replace("$", ".").rpartition(".")[2]]
    except KeyError:
        known = ", ".join(_BY_CLASS_NAME)
        raise ConfigError(f"no serde is called {name!r}: give one of {known}, or a serde of headrace.serde") from None


def serde_setting(setting: object, name: str) -> Serde:
    """What `default.key.serde` or `default.value.serde` means: nothing (BYTES), a serde or a class name.

    >>> serde_setting(None, "default.key.serde")
    <serde BYTES>
    """
    if setting is None:
        return BYTES
    if isinstance(setting, Serde):
        return cast("Serde[Any]", setting)
    if isinstance(setting, str):
        return by_class_name(setting)
    raise ConfigError(f"{name}={setting!r} cannot be used: give a serde of headrace.serde, or a Kafka class's name")


def resolve_serde(option: str, given: Serde[Any] | None, by_old_name: Serde[Any] | None) -> Serde[Any]:
    """The serde of a client's option `key` or `value`, bytes if none is given. `key_serde` and `value_serde` warn."""
    if by_old_name is not None:
        warnings.warn(f"{option}_serde= is now {option}=, as in the DSL", DeprecationWarning, stacklevel=4)
    return given or by_old_name or BYTES
