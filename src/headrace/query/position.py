"""How far an answer is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.model.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class Position:
    """The batch that an answer is as of, and the offset of every source partition up to which it has been read.

    >>> Position(7).reaches(6), Position(7).reaches(Position(7, {TopicPartition("in", 0): 10}))
    (True, False)
    """

    batch: int
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])

    def reaches(self, other: Position | int) -> bool:
        """Whether it is at least as far as another one, or as a batch."""
        if isinstance(other, int):
            return self.batch >= other
        offsets = self.offsets
        return self.batch >= other.batch and all(offsets.get(at, 0) >= to for at, to in other.offsets.items())

    def __str__(self) -> str:
        return f"batch {self.batch}"


@dataclass(frozen=True, slots=True)
class QueryResult:
    """An answer, and as of when it is; of many entries `result` is an iterator, all of them as of the same batch."""

    result: Any
    position: Position
