"""The case language: values, and the types of keys and values. One case is one JSON object.

    {"name", "family", "tags"?, "config"?, "topology": [statement...], "steps": [step...], "expected": {...}}

`expected` is what Apache Kafka Streams made of the case in its own test driver. Characters are UTF-16 code units, as in
Java, and every function is total.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace import Windowed, serde

Case = Mapping[str, Any]
Spec = Mapping[str, Any]  # a part of a case: a statement, a function, a step

LONGEST = 2**63 - 1  # the size of an unlimited window


class BadCase(Exception):  # noqa: N818 -- it is the case that is bad
    """The case itself is wrong: an unknown operator, function or step."""


# ------------------------------------------------------------------------------------------------------------- values
def text(x: Any) -> str:
    """The language's `str`.

    >>> text(None), text(7), text(Windowed("a", (0, 10)))
    ('null', '7', '[a@0/10]')
    """
    if isinstance(x, Windowed):
        start, end = x.window
        return f"[{text(x.key)}@{start}/{end}]"
    return "null" if x is None else str(x)


def num(x: Any) -> int:
    """The language's `num`: a long, or the number that a short text spells, else 0.

    >>> num(7), num("-12"), num("1.5"), num(None)
    (7, -12, 0, 0)
    """
    if isinstance(x, int):
        return x
    return int(x) if isinstance(x, str) and re.fullmatch(r"-?[0-9]{1,15}", x) else 0


def utf16(s: str) -> bytes:
    """Code units, big-endian; they compare as Java compares strings."""
    return s.encode("utf-16-be", "surrogatepass")


def length(s: str) -> int:
    return len(utf16(s)) // 2


def characters(s: str) -> list[str]:
    """One text per code unit; half a character, where one takes two.

    >>> characters("añ")
    ['a', 'ñ']
    """
    raw = utf16(s)
    return [raw[at : at + 2].decode("utf-16-be", "surrogatepass") for at in range(0, len(raw), 2)]


def trim(s: str) -> str:
    """Java's `trim`: without what is not above a space."""
    return s.strip("".join(map(chr, range(33))))


# -------------------------------------------------------------------------------------------------------------- types
class Type(NamedTuple):
    """The type of a key or value: its name, its serde, and for a windowed key the type of the key inside."""

    name: str
    serde: serde.Serde
    inner: Type | None = None


STRING, LONG = Type("string", serde.STRING), Type("long", serde.LONG)


def windowed(inner: Type, size: int) -> Type:
    return Type(f"windowed<{inner.name},{size}>", serde.windowed(inner.serde, size), inner)


def session(inner: Type) -> Type:
    return Type(f"session<{inner.name}>", serde.session_windowed(inner.serde), inner)


def type_of(name: str) -> Type:
    """A type by its name in a case.

    >>> type_of("windowed<string,10>").inner.name
    'string'
    """
    kind, _, rest = name.partition("<")
    inside = rest.removesuffix(">")
    match kind:
        case "string":
            return STRING
        case "long":
            return LONG
        case "session":
            return session(type_of(inside))
        case "windowed":
            inner, _, size = inside.rpartition(",")
            return windowed(type_of(inner), int(size))
    raise BadCase(f"unknown type {name}")


class Types(NamedTuple):
    """The types of a key and a value."""

    key: Type
    value: Type

    @property
    def serdes(self) -> dict[str, Any]:
        """As arguments of Headrace's operators."""
        return {"key": self.key.serde, "value": self.value.serde}


def types_of(spec: Spec) -> Types:
    """The types that a source, store or sink declares."""
    return Types(type_of(spec["key"]), type_of(spec["value"]))
