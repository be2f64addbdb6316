"""Consecutive records of one partition, still in columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, repeat
from typing import Any

from headrace.log.protocol import Chunk, Records
from headrace.model.ids import TopicPartition
from headrace.runtime.environment import Row


class PartitionBatch:
    """Records of one partition. A row's order is the largest timestamp so far, then its place.

    >>> from headrace.log.protocol import Records
    >>> chunk = Chunk([7, 8], Records([b"a", b"b"], [b"1", b"2"], [20, 10]))
    >>> PartitionBatch(TopicPartition("in", 0), chunk, largest=-1).row(1)
    ('in', 0, 8, b'b', b'2', 10, (), (20, 'in', 0, 8))
    """

    def __init__(self, at: TopicPartition, chunk: Chunk, largest: int) -> None:
        """`largest` is the largest timestamp of the batches before."""
        self.at, self.offsets, self.records = at, chunk.offsets, chunk.records
        self.largest = list(accumulate(self.records.timestamps, max, initial=largest))[1:]

    def row(self, index: int) -> Row:
        (topic, partition), offset, records = self.at, self.offsets[index], self.records
        headers = records.headers[index] if records.headers else ()
        order = (self.largest[index], topic, partition, offset)
        key, value, timestamp = records.keys[index], records.values[index], records.timestamps[index]
        return topic, partition, offset, key, value, timestamp, headers, order

    def rows(self) -> Iterator[Row]:
        (topic, partition), offsets, records = self.at, self.offsets, self.records
        # Tuples that `zip` makes are made in half the time of those that a loop makes.
        orders = zip(self.largest, repeat(topic), repeat(partition), offsets)
        headers = records.headers or repeat(())
        times = records.timestamps
        return zip(repeat(topic), repeat(partition), offsets, records.keys, records.values, times, headers, orders)


def partition_batches(at: TopicPartition, chunks: Iterable[Chunk]) -> Iterator[PartitionBatch]:
    """The partition batches of a range of the log."""
    largest = -1
    for chunk in chunks:
        if len(chunk):
            batch = PartitionBatch(at, chunk, largest)
            largest = batch.largest[-1]
            yield batch


def joined(parts: Iterable[PartitionBatch]) -> Iterator[PartitionBatch]:
    """Joins consecutive partition batches into one; yields nothing if there are none."""
    some = list(parts)
    if some:
        with_headers = any(part.records.headers for part in some)
        records = Records(
            flat(part.records.keys for part in some),
            flat(part.records.values for part in some),
            flat(part.records.timestamps for part in some),
            flat(part.records.headers or [()] * len(part.offsets) for part in some) if with_headers else None,
        )
        yield PartitionBatch(some[0].at, Chunk(flat(part.offsets for part in some), records), largest=-1)


def flat(columns: Iterable[Iterable[Any]]) -> list[Any]:
    return list(chain.from_iterable(columns))
