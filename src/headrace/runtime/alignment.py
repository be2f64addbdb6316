"""Several inputs of one task, in the order of time.

As in Kafka Streams the input whose next record is the oldest goes first, so that a backlog gives what the records
would have given one by one. An input that has used up its rows though the log holds more of it stops them all: nobody
knows how old its next record is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from headrace.model.ids import TopicPartition
from headrace.runtime.environment import Row
from headrace.runtime.operators.source_sink import Decoded
from headrace.runtime.partition_batch import PartitionBatch
from headrace.runtime.time_heap import TimeHeap

AT_ONCE, NEVER = float("-inf"), float("inf")


class Input(NamedTuple):
    """Records of one partition, in the order of their offsets; `more`: the log holds more than these.

    Offsets before `end` that have no record are none: compaction took them, or they mark a transaction.
    """

    stretches: Iterable[PartitionBatch]
    more: bool
    end: int | None = None


class Aligned:
    """Gives the rows of all inputs by time; `positions` says up to where each input has been consumed.

    `read` gives the rows of an input, each with what it was decoded to, or None if it is left out.
    """

    def __init__(
        self,
        inputs: dict[TopicPartition, Input],
        read: Callable[[Iterable[PartitionBatch]], Iterator[tuple[Row, Decoded | None]]],
    ) -> None:
        self._inputs = inputs
        self._rows = {at: read(given.stretches) for at, given in inputs.items()}
        self.positions: dict[TopicPartition, int] = {}
        self._heads: dict[TopicPartition, tuple[Row, Decoded]] = {}
        self._by_time = TimeHeap[TopicPartition]()

    def __iter__(self) -> Iterator[tuple[Row, Decoded]]:
        known = [self._begin(at) for at in self._inputs]
        if not all(known):
            return
        while len(self._by_time):
            _, at = self._by_time.pop()
            row, decoded = self._heads.pop(at)
            yield row, decoded
            until = self._turn()
            for row, decoded in self._rows[at]:
                if decoded is None:
                    continue
                if decoded[2] >= until:
                    self.positions[at] = row[2]
                    self._wait(at, row, decoded)
                    break
                yield row, decoded
            else:
                if not self._use_up(at, row[2] + 1):
                    return

    def _turn(self) -> float:
        """Until when the input that goes first may go on: several others may change places in the heap each time."""
        waiting = self._by_time
        return NEVER if not len(waiting) else waiting.peek()[0] if len(waiting) == 1 else AT_ONCE

    def _begin(self, at: TopicPartition) -> bool:
        """Reads on until a row is not left out; False if there must be one, but not among these rows."""
        for row, decoded in self._rows[at]:
            if decoded is not None:
                self._wait(at, row, decoded)
                return True
            self.positions[at] = row[2] + 1
        return self._use_up(at, self.positions.get(at))

    def _wait(self, at: TopicPartition, row: Row, decoded: Decoded) -> None:
        self._heads[at] = row, decoded
        self._by_time.push(decoded[2], at)

    def _use_up(self, at: TopicPartition, position: int | None) -> bool:
        """No row is left; False if the log holds more."""
        _, more, end = self._inputs[at]
        position = position if end is None else end
        if position is not None:
            self.positions[at] = position
        return not more
