"""The iteration order of Java's collections, which Kafka Streams' descriptions show.

A `HashSet` iterates by hash code. A `TreeSet` is sorted, but Kafka Streams sorts nodes by a size that grows while nodes
are added. So the order depends on the sizes at the time of each addition, and on the shape of the red-black tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

LOAD = 0.75


def string_hash(text: str) -> int:
    """`String.hashCode`, with the upper half mixed in as `HashMap` does, without sign.

    >>> string_hash("a")
    97
    """
    units = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code ^ code >> 16


def hash_order(names: Iterable[str], *, room: int = 16) -> list[str]:
    """The names as a `HashSet` gives them that was made with room for so many.

    >>> hash_order(["topic-b", "topic-a"])
    ['topic-a', 'topic-b']
    """
    names = list(dict.fromkeys(names))
    table = 1
    while table < room or len(names) > LOAD * table:
        table *= 2
    return sorted(names, key=lambda name: string_hash(name) & table - 1)


def copied_order(names: Iterable[str]) -> list[str]:
    """The names as a `HashSet` gives them that was made as a copy, and so large enough at once."""
    names = list(dict.fromkeys(names))
    return hash_order(names, room=max(int(len(names) / LOAD) + 1, 16))


@dataclass(eq=False, slots=True)
class _Leaf:
    name: str
    up: _Leaf | None
    left: _Leaf | None = None
    right: _Leaf | None = None
    red: bool = True


class Tree:
    """A `TreeSet` of names; `before(a, b)` is negative, zero or positive at the moment it is asked."""

    __slots__ = ("_before", "_root")

    def __init__(self, before: Callable[[str, str], int]) -> None:
        self._before = before
        self._root: _Leaf | None = None

    def __iter__(self) -> Iterator[str]:
        passed: list[_Leaf] = []
        leaf = self._root
        while passed or leaf is not None:
            while leaf is not None:
                passed.append(leaf)
                leaf = leaf.left
            leaf = passed.pop()
            yield leaf.name
            leaf = leaf.right

    def add(self, name: str) -> None:
        parent, leaf, sign = None, self._root, 0
        while leaf is not None:
            sign = self._before(name, leaf.name)
            if sign == 0:
                return
            parent, leaf = leaf, leaf.left if sign < 0 else leaf.right
        new = _Leaf(name, parent)
        if parent is None:
            self._root = new
        elif sign < 0:
            parent.left = new
        else:
            parent.right = new
        self._balance(new)

    def _balance(self, leaf: _Leaf) -> None:
        """No red leaf under a red one."""
        while (parent := leaf.up) is not None and parent.red and (top := parent.up) is not None:
            on_left = parent is top.left
            uncle = top.right if on_left else top.left
            if uncle is not None and uncle.red:
                parent.red = uncle.red = False
                top.red = True
                leaf = top
                continue
            if leaf is (parent.right if on_left else parent.left):
                self._rotate(parent, leaf, to_left=on_left)
                leaf, parent = parent, leaf
            parent.red, top.red = False, True
            self._rotate(top, parent, to_left=not on_left)
        if self._root is not None:
            self._root.red = False

    def _rotate(self, leaf: _Leaf, child: _Leaf, *, to_left: bool) -> None:
        """A child takes the place of the leaf, which goes down to the side."""
        inner = child.left if to_left else child.right
        if to_left:
            leaf.right, child.left = inner, leaf
        else:
            leaf.left, child.right = inner, leaf
        if inner is not None:
            inner.up = leaf
        child.up, up = leaf.up, leaf.up
        if up is None:
            self._root = child
        elif up.left is leaf:
            up.left = child
        else:
            up.right = child
        leaf.up = child
