"""Single values that are state: clocks, sequence numbers, the stream time of an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import StateCorruptedError

Content = int | bytes | None


class Cell:
    """One value; operators read and set `value`, a commit saves it if it changed."""

    __slots__ = ("default", "saved", "value")

    value: Any  # an int, bytes or None; Any, because it is the operator's to know which
    saved: Any  # as of the last commit

    def __init__(self, default: Content, saved: Content) -> None:
        self.default = default
        self.value = self.saved = saved


# none    | 0 |
# int     | 1 | as few bytes as it takes, big-endian, two's complement |
# bytes   | 2 | the bytes |
def encode_cell(content: Content) -> bytes:
    r"""
    >>> encode_cell(-1), encode_cell(b"x"), encode_cell(None)
    (b'\x01\xff', b'\x02x', b'\x00')
    """
    if content is None:
        return b"\x00"
    if isinstance(content, bytes):
        return b"\x02" + content
    return b"\x01" + content.to_bytes(content.bit_length() // 8 + 1, "big", signed=True)


def decode_cell(raw: bytes) -> Content:
    match raw[:1]:
        case b"\x00":
            return None
        case b"\x01":
            return int.from_bytes(raw[1:], "big", signed=True)
        case b"\x02":
            return raw[1:]
        case _:
            raise StateCorruptedError(f"a cell cannot be {raw!r}: delete the local state, the checkpoint restores it")


class Cells:
    """The cells of a task that are logged, or those that are not."""

    def __init__(self, prefix: bytes, load: Callable[[bytes], bytes | None]) -> None:
        self.prefix, self._load = prefix, load
        self._cells: dict[str, Cell] = {}

    def cell(self, name: str, default: Content) -> Cell:
        found = self._cells.get(name)
        if found is None:
            found = self._cells[name] = Cell(default, self._saved(name, default))
        return found

    def changes(self) -> list[tuple[bytes, bytes | None]]:
        changed = [(name, cell) for name, cell in self._cells.items() if cell.value != cell.saved]
        return sorted((self.prefix + name.encode(), encode_cell(cell.value)) for name, cell in changed)

    def settle(self, _changes: object) -> None:
        for cell in self._cells.values():
            cell.saved = cell.value

    def rollback(self) -> None:
        for cell in self._cells.values():
            cell.value = cell.saved

    def forget(self) -> None:
        """Read every cell anew: the engine was changed underneath."""
        for name, cell in self._cells.items():
            cell.value = cell.saved = self._saved(name, cell.default)

    def _saved(self, name: str, default: Content) -> Content:
        raw = self._load(self.prefix + name.encode())
        return default if raw is None else decode_cell(raw)
