"""The rows that go into a task and come out of it, and how the rows of several inputs are merged.

    log ──────────── Input ────────┐
    other tasks ──── received ─────┤ Inputs ──▶ Task.run ──▶ Result
    batch before ─── carried ──────┘

Rows travel in columns (`PartitionBatch`), so that a task decodes many at once. While a task processes them they are
plain tuples: a batch has many, and a named tuple takes ten times as long to make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, groupby, repeat
from operator import itemgetter
from typing import Any, NamedTuple

from headrace.log.protocol import Chunk, Records
from headrace.model.ids import TopicPartition
from headrace.model.record import Headers
from headrace.runtime.punctuation import TimeHeap

# The place of a record in its batch: the largest timestamp of its partition so far, topic, partition and offset. Every
# row inherits the order of the record that caused it. Rows that no record caused have the empty order, which is first.
Order = tuple[Any, ...]

# (topic, partition, offset, key, value, timestamp, headers, order): a record as it was read. The offset of a row of
# another task is its place among the outputs of that task.
Row = tuple[str, int, int, bytes | None, bytes | None, int, Headers, Order]

# (topic, partition, key, value, timestamp, headers, order): a record to be written. The partition is None where the
# hash of the key decides. The value of a `CountOutput` is the number of records that it stands for.
Output = tuple[str, int | None, bytes | None, bytes | None, int, Headers, Order]
CountOutput = tuple[str, int | None, bytes | None, int, int, Headers, Order]

# (row, key, value, timestamp, emit): a row that has been decoded, and the operator that takes it.
Decoded = tuple[Row, Any, Any, int, Callable[[Any, Any, int, Headers], None]]

AT_ONCE, NEVER = float("-inf"), float("inf")


class PartitionBatch:
    """Rows of one partition, in columns. With `counts`, each row stands for that number of records and has no value.

    >>> batch = PartitionBatch(TopicPartition("in", 0), [7, 8], Records([b"a", b"b"], [b"1", b"2"], [20, 10]))
    >>> batch.row(1)
    ('in', 0, 8, b'b', b'2', 10, (), (20, 'in', 0, 8))
    """

    __slots__ = ("_orders", "at", "counts", "largest", "offsets", "records")

    def __init__(
        self,
        at: TopicPartition,
        offsets: Sequence[int],
        records: Records,
        orders: Sequence[Order] | None = None,
        counts: Sequence[int] | None = None,
        *,
        largest: int = -1,
    ) -> None:
        """Without `orders`, rows get orders as records of the log; `largest` is the largest earlier timestamp."""
        self.at, self.offsets, self.records, self._orders, self.counts = at, offsets, records, orders, counts
        self.largest = list(accumulate(records.timestamps, max, initial=largest))[1:] if orders is None else []

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def orders(self) -> Iterable[Order]:
        if self._orders is not None:
            return self._orders
        # `zip` makes tuples in half the time of a loop.
        return zip(self.largest, repeat(self.at.topic), repeat(self.at.partition), self.offsets)

    def orders_at(self, places: Sequence[int]) -> Iterable[Order]:
        """The orders of the rows at some places."""
        if self._orders is not None:
            return [self._orders[place] for place in places]
        largest, offsets, (topic, partition) = self.largest, self.offsets, self.at
        times = map(largest.__getitem__, places)
        return zip(times, repeat(topic), repeat(partition), map(offsets.__getitem__, places))

    def row(self, index: int) -> Row:
        (topic, partition), offset, records = self.at, self.offsets[index], self.records
        headers = records.headers[index] if records.headers else ()
        orders = self._orders
        order = (self.largest[index], topic, partition, offset) if orders is None else orders[index]
        key, value, timestamp = records.keys[index], records.values[index], records.timestamps[index]
        return topic, partition, offset, key, value, timestamp, headers, order

    def rows(self) -> Iterator[Row]:
        (topic, partition), records = self.at, self.records
        keys, values, times, headers = records.keys, records.values, records.timestamps, records.headers or repeat(())
        return zip(repeat(topic), repeat(partition), self.offsets, keys, values, times, headers, self.orders)


def read_batches(at: TopicPartition, chunks: Iterable[Chunk]) -> Iterator[PartitionBatch]:
    """The partition batches of a range of the log."""
    largest = -1
    for chunk in chunks:
        if len(chunk):
            batch = PartitionBatch(at, chunk.offsets, chunk.records, largest=largest)
            largest = batch.largest[-1]
            yield batch


def join_batches(parts: Iterable[PartitionBatch]) -> Iterator[PartitionBatch]:
    """Joins consecutive partition batches of the log into one; yields nothing if there are none."""
    some = list(parts)
    if some:
        with_headers = any(part.records.headers for part in some)
        records = Records(
            flat(part.records.keys for part in some),
            flat(part.records.values for part in some),
            flat(part.records.timestamps for part in some),
            flat(part.records.headers or [()] * len(part) for part in some) if with_headers else None,
        )
        yield PartitionBatch(some[0].at, flat(part.offsets for part in some), records)


def flat(columns: Iterable[Iterable[Any]]) -> list[Any]:
    return list(chain.from_iterable(columns))


def batch_outputs(
    at: TopicPartition,
    outputs: Sequence[Output] | Sequence[CountOutput],
    places: Sequence[int],
    *,
    are_counts: bool = False,
) -> PartitionBatch:
    """The outputs of a task at the given places, all for one partition.

    Each output gets the largest order so far, so that a merge keeps the sequence of the outputs.

    >>> outputs = [("t", 0, b"k", b"v", 5, (), (9, "in", 0, 1)), ("t", 0, b"k", b"w", 6, (), (8, "in", 0, 0))]
    >>> list(batch_outputs(TopicPartition("t", 0), outputs, [0, 1]).orders)
    [(9, 'in', 0, 1), (9, 'in', 0, 1)]
    """
    chosen = outputs if len(places) == len(outputs) else [outputs[place] for place in places]
    _, _, keys, values, timestamps, headers, orders = zip(*chosen, strict=True)
    given = headers if any(headers) else None
    records = Records(keys, [None] * len(keys) if are_counts else values, timestamps, given)
    return PartitionBatch(at, places, records, list(accumulate(orders, max)), values if are_counts else None)


def split_batch(batch: PartitionBatch, partition_of: Callable[[bytes | None], int]) -> dict[int, PartitionBatch]:
    """Splits rows by a function of their keys. They keep their topic, partition, offsets and orders.

    >>> batch = PartitionBatch(TopicPartition("in", 0), [7, 8], Records([b"a", b"b"], [b"1", b"2"], [20, 10]))
    >>> [(number, part.offsets) for number, part in split_batch(batch, lambda key: len(key or b"")).items()]
    [(1, [7, 8])]
    """
    places: dict[int, list[int]] = {}
    for place, key in enumerate(batch.records.keys):
        places.setdefault(partition_of(key), []).append(place)
    orders, all_of, headers = list(batch.orders), batch.records, batch.records.headers
    found: dict[int, PartitionBatch] = {}
    for partition, some in places.items():
        records = Records(
            [all_of.keys[place] for place in some],
            [all_of.values[place] for place in some],
            [all_of.timestamps[place] for place in some],
            None if headers is None else [headers[place] for place in some],
        )
        counts = None if batch.counts is None else [batch.counts[place] for place in some]
        offsets = [batch.offsets[place] for place in some]
        found[partition] = PartitionBatch(batch.at, offsets, records, [orders[place] for place in some], counts)
    return found


def batch_rows(rows: Iterable[Row]) -> list[PartitionBatch]:
    """Partition batches of rows, in the sequence of the rows."""
    found: list[PartitionBatch] = []
    for place, some in groupby(rows, itemgetter(0, 1)):
        _, _, offsets, keys, values, timestamps, headers, orders = zip(*some, strict=True)
        records = Records(keys, values, timestamps, headers if any(headers) else None)
        found.append(PartitionBatch(TopicPartition(*place), offsets, records, orders))
    return found


# --------------------------------------------------------------------------------------------------------------- input
class Input(NamedTuple):
    """A range of one partition of the log; `more` is true when the log holds records after it.

    An offset before `end` may have no record: compaction removed it, or it marks the end of a transaction.
    """

    batches: Iterable[PartitionBatch]
    end: int
    more: bool = False


class Inputs(NamedTuple):
    """What a task gets in a batch. Carried rows go first, by order; then all others."""

    log: Mapping[TopicPartition, Input] = {}
    received: Sequence[PartitionBatch] = ()  # from other tasks, in this batch
    carried: Sequence[PartitionBatch] = ()  # from the batch before
    decoded: Sequence[Decoded] = ()  # by `Task.read`: a test driver has to know the time of a record before its turn


def merge_by_order(batches: Iterable[Iterable[Decoded]]) -> Iterable[Decoded]:
    """Merges rows of several tasks and partitions by their order. The rows of a batch are in their order already."""
    some = list(batches)
    return some[0] if len(some) == 1 else sorted(chain.from_iterable(some), key=_order)


def _order(decoded: Decoded) -> tuple[Order, int]:
    return decoded[0][7], decoded[0][2]


class MergedByTime:
    """Iterates over the rows of all inputs; `positions` holds the offset up to which each input is consumed.

    As in Kafka Streams, the input whose next record has the smallest timestamp goes first, so that a backlog gives the
    same results as records that arrive one by one. When an input has no rows left but the log holds more of its
    partition, the merge stops for all inputs, because the timestamp of its next record is not known.
    """

    def __init__(
        self,
        inputs: Mapping[TopicPartition, Input],
        decode: Callable[[Iterable[PartitionBatch]], Iterator[Decoded]],
    ) -> None:
        """`decode` leaves out the records that are dropped."""
        self._inputs = inputs
        self._rows = {at: decode(given.batches) for at, given in inputs.items()}
        self.positions: dict[TopicPartition, int] = {}
        self._heads: dict[TopicPartition, Decoded] = {}
        self._by_time = TimeHeap[TopicPartition]()

    def __iter__(self) -> Iterator[Decoded]:
        known = [self._advance(at) for at in self._inputs]
        if not all(known):
            return
        while len(self._by_time):
            _, at = self._by_time.pop()
            yield self._heads.pop(at)
            until = self._turn()
            for decoded in self._rows[at]:
                if decoded[3] >= until:
                    self._wait(at, decoded)
                    break
                yield decoded
            else:
                if not self._use_up(at):
                    return

    def _turn(self) -> float:
        """The time up to which the first input may go on before another input comes first."""
        waiting = self._by_time
        # With three or more other inputs, every row goes through the heap: push and pop may rearrange it, and so change
        # the order of equal times.
        return NEVER if not len(waiting) else waiting.peek()[0] if len(waiting) <= 2 else AT_ONCE

    def _advance(self, at: TopicPartition) -> bool:
        """Reads the first row; False if the log holds more rows, but none is at hand."""
        first = next(self._rows[at], None)
        if first is None:
            return self._use_up(at)
        self._wait(at, first)
        return True

    def _wait(self, at: TopicPartition, head: Decoded) -> None:
        self.positions[at] = head[0][2]
        self._heads[at] = head
        self._by_time.push(head[3], at)

    def _use_up(self, at: TopicPartition) -> bool:
        """Marks the input as consumed; False if the log holds more of it."""
        self.positions[at] = self._inputs[at].end
        return not self._inputs[at].more
