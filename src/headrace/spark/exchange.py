"""Rows on their way between slots, as one slot sees them: which have arrived, and which level may begin.

In an attempt at a batch every slot runs its levels in order. After level L it sends each slot of the attempt the rows
for the tasks of that slot, and then the end of the level. So a slot may begin level L when it has the ends of all
levels below L, from all slots of the attempt.

    attempt 7   slots 0, 1                     slot 1 may begin
    slot 0 ──rows for level 1──▶ slot 1
    slot 0 ──end of level 0────▶ slot 1
    slot 1 ──end of level 0────▶ slot 1        level 1

Attempts are numbered. Rows of earlier attempts are dropped. Rows of a later attempt are kept until that attempt begins:
another slot may have received its orders earlier than this slot.

`Exchange` is a state machine. Rows above `memory` bytes go to a file that `make_file` makes, one for every attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import BinaryIO, NamedTuple


class Delivery(NamedTuple):
    """Messages for the tasks of a slot, and perhaps the end of a level."""

    attempt: int
    slot: int  # the sender
    level: int  # the level of the sender's tasks
    is_end: bool  # the sender has ended the level
    rows: Sequence[tuple[int, bytes]]  # the level of the receiving task, and encoded `wire_format.Rows`


class _Attempt:
    """The rows that have arrived for one attempt. For rows in the file, it keeps their start and their size."""

    def __init__(self) -> None:
        self.ends: dict[int, set[int]] = {}  # by level: the slots that have ended it
        self.rows: dict[int, list[bytes | tuple[int, int]]] = {}  # by the level that gets them
        self.held = 0  # bytes in memory
        self.file: BinaryIO | None = None

    def spill(self, raw: bytes, make_file: Callable[[], BinaryIO]) -> tuple[int, int]:
        if self.file is None:
            self.file = make_file()
        start = self.file.seek(0, 2)
        self.file.write(raw)
        return start, len(raw)

    def read(self, row: bytes | tuple[int, int]) -> bytes:
        if isinstance(row, bytes) or self.file is None:
            return bytes(row)
        start, size = row
        self.file.seek(start)
        return self.file.read(size)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


class Exchange:
    """The rows that a slot has received.

    >>> from io import BytesIO
    >>> exchange = Exchange(memory=1 << 20, make_file=BytesIO)
    >>> exchange.begin(7, {0, 1})
    >>> exchange.add(Delivery(7, 0, 0, True, [(1, b"row")]))
    >>> exchange.is_ready(1)
    False
    >>> exchange.add(Delivery(7, 1, 0, True, []))
    >>> exchange.is_ready(1), exchange.take(1)
    (True, [b'row'])
    """

    def __init__(self, memory: int, make_file: Callable[[], BinaryIO]) -> None:
        self._memory, self._make_file = memory, make_file
        self.attempt = 0
        self._slots: frozenset[int] = frozenset()
        self._attempts: dict[int, _Attempt] = {}

    def begin(self, attempt: int, slots: set[int] | frozenset[int]) -> None:
        """Begins an attempt in which these slots take part; the rows of earlier attempts are dropped."""
        self.attempt, self._slots = attempt, frozenset(slots)
        for number in [number for number in self._attempts if number < attempt]:
            self._attempts.pop(number).close()

    def abort(self, attempt: int) -> None:
        """Drops an attempt, and all before it: rows of these attempts that arrive later are not kept."""
        if attempt >= self.attempt:
            self.begin(attempt + 1, frozenset())

    def add(self, delivery: Delivery) -> None:
        """Keeps rows that have arrived, unless they are of an earlier attempt."""
        if delivery.attempt < self.attempt:
            return
        some = self._attempts.setdefault(delivery.attempt, _Attempt())
        for level, raw in delivery.rows:
            fits = some.held + len(raw) <= self._memory
            some.held += len(raw) if fits else 0
            some.rows.setdefault(level, []).append(raw if fits else some.spill(raw, self._make_file))
        if delivery.is_end:
            some.ends.setdefault(delivery.level, set()).add(delivery.slot)

    def is_ready(self, level: int) -> bool:
        """True when every slot of the attempt has ended all levels below this one."""
        some = self._attempts.get(self.attempt)
        ends = {} if some is None else some.ends
        return all(self._slots <= ends.get(below, set()) for below in range(level))

    def take(self, level: int) -> list[bytes]:
        """Returns the rows for a level, which `is_ready` says are complete."""
        some = self._attempts.get(self.attempt)
        if some is None:
            return []
        rows = some.rows.pop(level, [])
        some.held -= sum(len(raw) for raw in rows if isinstance(raw, bytes))
        return [some.read(row) for row in rows]
