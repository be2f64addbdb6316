"""Serdes by the names of Kafka's classes, as configurations have them."""

from __future__ import annotations

from typing import Any, cast

from headrace.errors import ConfigError
from headrace.serde import primitives
from headrace.serde.protocol import Serde

_BY_CLASS_NAME = {
    "StringSerde": primitives.STRING,
    "ByteArraySerde": primitives.BYTES,
    "ByteBufferSerde": primitives.BYTES,
    "BytesSerde": primitives.BYTES,
    "LongSerde": primitives.LONG,
    "IntegerSerde": primitives.INTEGER,
    "ShortSerde": primitives.SHORT,
    "DoubleSerde": primitives.DOUBLE,
    "FloatSerde": primitives.FLOAT,
    "BooleanSerde": primitives.BOOLEAN,
    "UUIDSerde": primitives.UUID,
    "VoidSerde": primitives.VOID,
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
        return primitives.BYTES
    if isinstance(setting, Serde):
        return cast("Serde[Any]", setting)
    if isinstance(setting, str):
        return by_class_name(setting)
    raise ConfigError(f"{name}={setting!r} cannot be used: give a serde of headrace.serde, or a Kafka class's name")
