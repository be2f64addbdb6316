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


def _integers(name: str, layout: str) -> Serde[int]:
    r"""The serde of big-endian integers of a fixed length.

    >>> INTEGER.encode(1), INTEGER.decode(b"\xff\xff\xff\xff")
    (b'\x00\x00\x00\x01', -1)
    """
    number = struct.Struct(layout)
    pack, unpack = number.pack, number.unpack

    def encode(value: int) -> bytes:
        try:
            return pack(value) if type(value) is int else pack(_integer(name, value))
        except struct.error:
            raise _out_of_range(name, value, 8 * number.size) from None

    def decode(raw: bytes) -> int:
        try:
            return unpack(raw)[0]
        except struct.error:
            raise _wrong_length(name, number.size, raw) from None

    return Serde(name, encode, decode, immutable=True, recipe=(_integers, (name, layout)), exact=True)


def _floats(name: str, layout: str) -> Serde[float]:
    """The serde of big-endian IEEE 754 numbers. Four bytes lose digits. An int comes back as a float.

    >>> DOUBLE.decode(DOUBLE.encode(1)), FLOAT.decode(FLOAT.encode(0.1))
    (1.0, 0.10000000149011612)
    """
    number = struct.Struct(layout)
    pack, unpack = number.pack, number.unpack

    def encode(value: float) -> bytes:
        try:
            return pack(value) if type(value) is float else pack(_real(name, value))
        except OverflowError:  # of four bytes
            raise ValueError(f"{name} holds values up to 3.4e38, not {value!r}: use DOUBLE") from None

    def decode(raw: bytes) -> float:
        try:
            return unpack(raw)[0]
        except struct.error:
            raise _wrong_length(name, number.size, raw) from None

    return Serde(name, encode, decode, immutable=True, recipe=(_floats, (name, layout)))


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
BYTES: Serde[bytes] = Serde("BYTES", encode_bytes, bytes, immutable=True, total=True, exact=True)
LONG: Serde[int] = _integers("LONG", ">q")
INTEGER: Serde[int] = _integers("INTEGER", ">i")
SHORT: Serde[int] = _integers("SHORT", ">h")
DOUBLE: Serde[float] = _floats("DOUBLE", ">d")
FLOAT: Serde[float] = _floats("FLOAT", ">f")
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
