"""Several inputs of one task, in the order of time.

As in Kafka Streams the input whose next record is the oldest goes first, so that a backlog gives what the records
would have given one by one. An input that has used up its rows though the log holds more of it stops them all: nobody
knows how old its next record is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from headrace.model.ids import TopicPartition
from headrace.runtime.batch import Row
from headrace.runtime.heap import TimeHeap
from headrace.runtime.operators.edges import Decoded


class Input(NamedTuple):
    """Rows of one partition, in the order of their offsets; `more`: the log holds more than these.

    Offsets before `end` that have no row are none: compaction took them, or they mark a transaction.
    """

    rows: Iterator[Row]
    more: bool
    end: int | None = None


class Aligned:
    """Gives the rows of all inputs by time; `positions` says up to where each input has been consumed."""

    def __init__(self, inputs: dict[TopicPartition, Input], read: Callable[[Row], Decoded | None]) -> None:
        self._inputs, self._read = inputs, read
        self.positions: dict[TopicPartition, int] = {}
        self._heads: dict[TopicPartition, tuple[Row, Decoded]] = {}
        self._by_time = TimeHeap[TopicPartition]()

    def __iter__(self) -> Iterator[tuple[Row, Decoded]]:
        known = [self._look_at_next(at) for at in self._inputs]
        if not all(known):
            return
        while len(self._by_time):
            _, at = self._by_time.pop()
            row, decoded = self._heads.pop(at)
            self.positions[at] = row[2] + 1
            yield row, decoded
            if not self._look_at_next(at):
                return

    def _look_at_next(self, at: TopicPartition) -> bool:
        """Reads on until a row is not left out; False if there must be one, but not among these rows."""
        rows, more, end = self._inputs[at]
        for row in rows:
            decoded = self._read(row)
            if decoded is not None:
                self._heads[at] = (row, decoded)
                self._by_time.push(decoded[2], at)
                return True
            self.positions[at] = row[2] + 1
        if end is not None:
            self.positions[at] = end
        return not more
