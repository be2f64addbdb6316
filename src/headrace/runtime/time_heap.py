"""A priority queue by time.

Java's `PriorityQueue`, move for move: among equal times the order of Kafka Streams is the order of that heap, and
programs see it (which of two punctuations fires first, which of two topics is read first).
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class TimeHeap(Generic[T]):
    """Items by time, smallest first.

    >>> heap = TimeHeap[str]()
    >>> heap.push(2, "b"); heap.push(1, "a"); heap.pop()
    (1, 'a')
    """

    def __init__(self) -> None:
        self._items: list[tuple[int, T]] = []

    def __len__(self) -> int:
        return len(self._items)

    def items(self) -> list[T]:
        """All items, in the order in which the heap holds them."""
        return [item for _, item in self._items]

    def arrange(self, items: list[tuple[int, T]]) -> None:
        """Restores an order that `items` returned."""
        self._items = items

    def peek(self) -> tuple[int, T]:
        return self._items[0]

    def push(self, time: int, item: T) -> None:
        items, at = self._items, len(self._items)
        items.append((time, item))
        while at > 0:
            parent = (at - 1) >> 1
            if time >= items[parent][0]:
                break
            items[at] = items[parent]
            at = parent
        items[at] = (time, item)

    def pop(self) -> tuple[int, T]:
        items = self._items
        first, last = items[0], items.pop()
        if items:
            self._sink(last)
        return first

    def _sink(self, moved: tuple[int, T]) -> None:
        """Moves `moved` from the root down to its place."""
        items, at, size = self._items, 0, len(self._items)
        while at < size >> 1:
            child = 2 * at + 1
            if child + 1 < size and items[child][0] > items[child + 1][0]:
                child += 1
            if moved[0] <= items[child][0]:
                break
            items[at] = items[child]
            at = child
        items[at] = moved
