"""What a serde is: a function to bytes and a function back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic

from typing_extensions import TypeVar

T = TypeVar("T", default=Any)


@dataclass(frozen=True, slots=True, eq=False)
class Serde(Generic[T]):
    """How objects of type `T` become bytes and come back. `serde.STRING` is a `Serde[str]`.

    `encode` and `decode` never see None: a null key or value has no bytes, whatever its serde.

    `immutable` says that decoded values cannot be changed in place, so that one object may serve as a value in a store
    and as a value in flight at the same time. `recipe`, a function and its arguments, makes the serde again in another
    process, where closures and C objects cannot be sent; serdes of the same recipe are equal. `total`: there are no
    bytes that cannot be decoded, so what nobody looks at need not be.
    """

    name: str
    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]
    immutable: bool = False
    recipe: tuple[Callable[..., Serde[Any]], tuple[Any, ...]] | None = field(default=None, compare=False)
    total: bool = False

    def __reduce__(self) -> tuple[Callable[..., Serde[Any]], tuple[Any, ...]]:
        return self.recipe or (Serde, (self.name, self.encode, self.decode, self.immutable, None, self.total))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Serde) and self._identity() == other._identity()  # pyright: ignore[reportUnknownMemberType]

    def __hash__(self) -> int:
        return hash(self.name)

    def _identity(self) -> tuple[Any, ...]:
        return self.recipe or (self.encode, self.decode, self.immutable)

    def __repr__(self) -> str:
        return f"<serde {self.name}>"


def serde_of(
    encode: Callable[[T], bytes], decode: Callable[[bytes], T], *, name: str = "custom", immutable: bool = False
) -> Serde[T]:
    """A serde of two functions.

    >>> upper = serde_of(lambda text: text.upper().encode(), lambda raw: raw.decode())
    >>> upper.decode(upper.encode("a"))
    'A'
    """
    return Serde(name, encode, decode, immutable)
