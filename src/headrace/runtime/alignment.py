"""Merges the inputs of one task in the order of time.

As in Kafka Streams, the input whose next record has the smallest timestamp goes first, so that a backlog gives the
same results as records that arrive one by one. When an input has no rows left but the log holds more of its
partition, the merge stops for all inputs, because the timestamp of its next record is not known.
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
    """Records of one partition, in the order of their offsets; `more` is true when the log holds records after these.

    An offset before `end` may have no record: compaction removed it, or it marks the end of a transaction.
    """

    partition_batches: Iterable[PartitionBatch]
    more: bool
    end: int | None = None


class Aligned:
    """Iterates over the rows of all inputs by time; `positions` holds the offset up to which each input is consumed.

    `read` returns the rows of an input, each with its decoded form, or with None if the record is dropped.
    """

    def __init__(
        self,
        inputs: dict[TopicPartition, Input],
        read: Callable[[Iterable[PartitionBatch]], Iterator[tuple[Row, Decoded | None]]],
    ) -> None:
        self._inputs = inputs
        self._rows = {at: read(given.partition_batches) for at, given in inputs.items()}
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
        """The time up to which the first input may go on before another input comes first."""
        waiting = self._by_time
        return NEVER if not len(waiting) else waiting.peek()[0] if len(waiting) == 1 else AT_ONCE

    def _begin(self, at: TopicPartition) -> bool:
        """Reads until a row is not dropped; False if the log holds more rows, but none is at hand."""
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
        """Marks the input as consumed; False if the log holds more of it."""
        _, more, end = self._inputs[at]
        position = position if end is None else end
        if position is not None:
            self.positions[at] = position
        return not more
