"""What a serde is: a way to bytes and a way back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Serde:
    """`encode` and `decode` never see None: a null key or value has no bytes, whatever its serde.

    `immutable` says that decoded values cannot be changed in place, so that one object may serve as a value in a store
    and as a value in flight at the same time. `recipe`, a function and its arguments, makes the serde again in another
    process, where closures and C objects cannot be sent; serdes of the same recipe are equal. `total`: there are no
    bytes that cannot be decoded, so what nobody looks at need not be.
    """

    name: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    immutable: bool = False
    recipe: tuple[Callable[..., Serde], tuple[Any, ...]] | None = field(default=None, compare=False)
    total: bool = False

    def __reduce__(self) -> tuple[Callable[..., Serde], tuple[Any, ...]]:
        return self.recipe or (Serde, (self.name, self.encode, self.decode, self.immutable, None, self.total))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Serde) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self.name)

    def _identity(self) -> tuple[Any, ...]:
        return self.recipe or (self.encode, self.decode, self.immutable)

    def __repr__(self) -> str:
        return f"<serde {self.name}>"


def serde_of(
    encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], *, name: str = "custom", immutable: bool = False
) -> Serde:
    """A serde of two functions.

    >>> upper = serde_of(lambda text: text.upper().encode(), lambda raw: raw.decode())
    >>> upper.decode(upper.encode("a"))
    'A'
    """
    return Serde(name, encode, decode, immutable)
