"""The parts of a store that several tasks have, as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import chain
from typing import Any

from headrace.model.partitioner import partition_of

NOTHING: Any = object()
Pairs = Iterator[tuple[Any, Any]]


class Parts:
    """The stores of the tasks, by partition; `encode` gives the bytes of a key.

    Most keys are where Kafka's partitioning puts them: there one is looked for first. An application may have its own
    partitioning, so the other parts are asked, too.
    """

    def __init__(self, stores: Sequence[Any], encode: Callable[[Any], bytes]) -> None:
        self._stores, self.encode = stores, encode

    def one(self, key: Any, ask: Callable[[Any], Any]) -> Any:
        """The first answer that is not None."""
        for store in self._beginning_at(key):
            found = ask(store)
            if found is not None:
                return found
        return None

    def of_key(self, key: Any, ask: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        """The first answer that is not empty."""
        for store in self._beginning_at(key):
            found = ask(store)
            first = next(found, NOTHING)
            if first is not NOTHING:
                return chain([first], found)
        return iter(())

    def all(self, ask: Callable[[Any], Pairs], order: Callable[[Any], Any], *, reverse: bool = False) -> Pairs:
        """All answers in one order: that of `order` of the key, which each of them has already."""
        found = [ask(store) for store in self._stores]
        return found[0] if len(found) == 1 else merge(*found, key=lambda entry: order(entry[0]), reverse=reverse)

    def total(self, ask: Callable[[Any], int]) -> int:
        return sum(ask(store) for store in self._stores)

    def _beginning_at(self, key: Any) -> Iterator[Any]:
        stores = self._stores
        if len(stores) == 1 or key is None:
            return iter(stores)
        first = partition_of(self.encode(key), len(stores)) or 0
        return chain([stores[first]], (store for place, store in enumerate(stores) if place != first))
