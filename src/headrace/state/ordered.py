"""Keys kept in order: `sortedcontainers`, which has no type hints, behind the few methods that are used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from sortedcontainers import SortedList  # pyright: ignore[reportMissingTypeStubs]


class OrderedKeys(Protocol):
    """Keys in the order of their bytes."""

    def __len__(self) -> int: ...

    def add(self, value: bytes) -> None: ...

    def remove(self, value: bytes) -> None: ...

    def update(self, iterable: Iterable[bytes]) -> None: ...

    def irange(
        self, minimum: bytes | None, maximum: bytes | None, inclusive: tuple[bool, bool], reverse: bool
    ) -> Iterator[bytes]: ...


def ordered_keys(keys: Iterable[bytes] = ()) -> OrderedKeys:
    """
    >>> list(ordered_keys([b"b", b"a"]).irange(b"a", b"b", (True, False), False))
    [b'a']
    """
    found: Any = SortedList(keys)
    return found
