"""A serde: a function to bytes and a function back.

A serde of a schema registry depends on the topic, too: `bind_serde` makes the `BoundSerde` of a topic, once, when a
topology is compiled. Other serdes stay as they are.

`never_changes` tells whether the values of a type are immutable, which a serde declares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from operator import is_
from types import NoneType, UnionType
from typing import Any, Generic, Literal, NamedTuple, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

from typing_extensions import TypeVar

from headrace.model.record import Headers

T = TypeVar("T", default=Any)
_ATOMS = (str, bytes, int, float, bool, complex, NoneType, Decimal, UUID, date, datetime, time, timedelta)


class SerdeContext(NamedTuple):
    """What a serde of a schema registry must know: the topic, its side, and the application's settings."""

    topic: str | None
    part: Literal["key", "value"]
    settings: Mapping[str, Any]  # of the schema registry: `schema.registry.url` and others of this prefix


@dataclass(frozen=True, slots=True, eq=False)
class Serde(Generic[T]):
    """How objects of type `T` become bytes and come back. `serde.STRING` is a `Serde[str]`.

    `encode` and `decode` never see None: a null key or value has no bytes, whatever its serde.

    `immutable` says that decoded values cannot be changed in place, so that one object may serve as a value in a store
    and as a value in flight at the same time. `recipe`, a function and its arguments, makes the serde again in another
    process, where closures and C objects cannot be sent; serdes of the same recipe are equal. `total` says
    that every byte string can be decoded, so a value that no function reads is not decoded at all. `bind` makes the
    serde for a topic, if the bytes depend on it. `exact` says that bytes which can be decoded come back the same, and
    that values cannot be changed in place. `encode_all` encodes many values, whose types it is told, more quickly than
    `encode` one by one.
    """

    name: str
    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]
    immutable: bool = False
    recipe: tuple[Callable[..., Serde[Any]], tuple[Any, ...]] | None = field(default=None, compare=False)
    total: bool = False
    bind: Callable[[SerdeContext], BoundSerde[T]] | None = None
    exact: bool = False
    encode_all: Callable[[Iterator[T], set[type]], list[bytes]] | None = field(default=None, compare=False)

    def __reduce__(self) -> tuple[Callable[..., Serde[Any]], tuple[Any, ...]]:
        given = (self.name, self.encode, self.decode, self.immutable, None, self.total, None, self.exact)
        return self.recipe or (Serde, given)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Serde) and self._identity() == other._identity()  # pyright: ignore[reportUnknownMemberType]

    def __hash__(self) -> int:
        return hash(self.name)

    def _identity(self) -> tuple[Any, ...]:
        return self.recipe or (self.encode, self.decode, self.immutable)

    def __repr__(self) -> str:
        return f"<serde {self.name}>"


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class BoundSerde(Serde[T]):
    """The serde of one topic. `encode` and `decode` have the schema's id in the bytes: in stores, too.

    `register` makes sure that the registry has the schema. `decode_all` decodes many values, of which it also gets an
    iterator; it is quicker than `decode` if one schema has written them. `decode_with_headers` also reads ids in
    headers, and `encode_with_headers`, if it is not None, writes them there.
    """

    register: Callable[[], None]
    decode_all: Callable[[Sequence[bytes], Iterator[bytes]], list[T]]
    decode_with_headers: Callable[[bytes, Headers], T]
    encode_with_headers: Callable[[T, Headers], tuple[bytes, Headers]] | None = None


def bind_serde(serde: Serde[T], context: SerdeContext) -> Serde[T]:
    """The serde for a topic: also of windowed keys and lists, whose recipes have the serdes that are inside.

    >>> from headrace.serde import STRING
    >>> bind_serde(STRING, SerdeContext("orders", "value", {})) is STRING
    True
    """
    if serde.bind is not None:
        return serde.bind(context)
    if serde.recipe is None:
        return serde
    make, arguments = serde.recipe
    if not any(isinstance(part, Serde) for part in arguments):
        return serde
    bound = tuple(
        bind_serde(cast("Serde[Any]", part), context) if isinstance(part, Serde) else part for part in arguments
    )
    return serde if all(map(is_, bound, arguments)) else make(*bound)


def depends_on_topic(serde: Serde[Any]) -> bool:
    """True if the serde, or one inside of it, is of a schema registry."""
    inside = serde.recipe[1] if serde.recipe else ()
    return serde.bind is not None or isinstance(serde, BoundSerde) or any(
        isinstance(part, Serde) and depends_on_topic(part)  # pyright: ignore[reportUnknownArgumentType]
        for part in inside
    )  # fmt: skip


def encode_part(serde: Serde[T], part: T | None, headers: Headers) -> tuple[bytes | None, Headers]:
    """The bytes of a key or a value, and the headers of its record, where the id of its schema may be."""
    if part is None:
        return None, headers
    if isinstance(serde, BoundSerde) and serde.encode_with_headers is not None:
        return serde.encode_with_headers(part, headers)
    return serde.encode(part), headers


def decode_part(serde: Serde[T], raw: bytes | None, headers: Headers) -> T | None:
    """The key or value of a record, in whose headers the id of its schema may be."""
    if raw is None:
        return None
    return serde.decode_with_headers(raw, headers) if isinstance(serde, BoundSerde) else serde.decode(raw)


def decode_column(serde: Serde[T], raws: Sequence[bytes | None], taken: Iterator[bytes | None]) -> Sequence[T | None]:
    """Decodes many keys or values; `taken` iterates over them.

    >>> from headrace.serde import LONG
    >>> raws = [bytes(8), None]
    >>> decode_column(LONG, raws, iter(raws))
    [0, None]
    """
    decode: Callable[[Any], T] = serde.decode
    if decode is bytes:
        return cast("Sequence[T | None]", raws)
    if not all(raws):  # null or empty
        return [None if raw is None else decode(raw) for raw in taken]
    if isinstance(serde, BoundSerde):
        return serde.decode_all(cast("Sequence[bytes]", raws), cast("Iterator[bytes]", taken))
    return list(map(decode, taken))


def encode_column(
    serde: Serde[T], values: Sequence[T | None], taken: Iterator[T | None] | None = None
) -> Sequence[bytes | None]:
    """Encodes many keys or values; `taken` iterates over them.

    >>> from headrace.serde import LONG
    >>> encode_column(LONG, [None])
    [None]
    """
    taken = iter(values) if taken is None else taken
    encode: Callable[[Any], bytes] = serde.encode
    types = set(map(type, values))
    if NoneType in types:
        return [None if value is None else encode(value) for value in taken]
    given = cast("Iterator[T]", taken)
    return list(map(encode, given)) if serde.encode_all is None else serde.encode_all(given, types)


def serde_of(
    encode: Callable[[T], bytes], decode: Callable[[bytes], T], *, name: str = "custom", immutable: bool = False
) -> Serde[T]:
    """A serde of two functions.

    >>> upper = serde_of(lambda text: text.upper().encode(), lambda raw: raw.decode())
    >>> upper.decode(upper.encode("a"))
    'A'
    """
    return Serde(name, encode, decode, immutable)


def never_changes(kind: Any) -> bool:
    """True if a value of the type, and whatever it holds, is immutable; False in doubt.

    >>> never_changes(tuple[int, str | None]), never_changes(tuple[list[int]])
    (True, False)
    """
    return _never_changes(kind, frozenset())


def _never_changes(kind: Any, seen: frozenset[Any]) -> bool:
    """A type that holds itself (`seen`) changes only if something else in it does."""
    if kind in _ATOMS or kind is None or kind is Ellipsis or kind in seen:
        return True
    origin = get_origin(kind)
    if origin is Literal:
        return True
    if origin in (Union, UnionType, tuple, frozenset):
        return all(_never_changes(part, seen) for part in get_args(kind))
    if not isinstance(kind, type):
        return False
    if _inherits(kind, Enum):
        return True
    return _is_frozen(kind) and all(_never_changes(hint, seen | {kind}) for hint in _hints(kind))


def _is_frozen(kind: Any) -> bool:
    if is_dataclass(kind):
        return cast("Any", kind).__dataclass_params__.frozen
    config = getattr(kind, "__struct_config__", None)
    return config.frozen if config is not None else _inherits(kind, tuple) and hasattr(kind, "_fields")


def _inherits(kind: Any, parent: type) -> bool:
    return issubclass(kind, parent)


def _hints(kind: Any) -> list[Any]:
    """The types of the fields; those that cannot be resolved here count as ones that change."""
    try:
        return list(get_type_hints(kind).values())
    except (NameError, TypeError, AttributeError):
        return [object]
