"""What is counted of an attempt at a task, where rows come in and where they go out: by chunk, never row by row."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from headrace.commit.handing import Attempt
from headrace.log.protocol import Chunk
from headrace.model.ids import TopicPartition
from headrace.model.record import Sample
from headrace.runtime.batch import Output, Row
from headrace.runtime.counting import COUNTED
from headrace.spark import wire

AT_MOST = 250  # timestamps of a task and batch whose ages are told: enough for a histogram
LOOKED_AT = 64  # of the last rows, for records to be shown
CUT = 1000  # bytes of a key or a value that are shown
_Part = tuple[int, bytes | None, bytes | None, int]  # offset, key, value, timestamp
_topic = itemgetter(0)


class Notes:
    """Of one attempt; `keep` is how many records of each topic are kept to be shown."""

    def __init__(self, ranges: Sequence[wire.Range], keep: int) -> None:
        self._stride = max(1, -(-sum(range_.end - range_.start for range_ in ranges) // AT_MOST))
        self._keep, self._ranges = keep, dict[TopicPartition, _Range]()
        self._read, self._came = dict[str, int](), list[Sample]()
        self.written: Mapping[str, int] = {}  # records by topic
        self.restored: tuple[str, int, float] | None = None  # how state came here, its entries, and ms

    def reading(self, at: TopicPartition, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """Looks at chunks while they pass."""
        range_ = self._ranges[at] = _Range(self._stride)
        for chunk in chunks:
            range_.begin(chunk)
            yield chunk

    def received(self, rows: Sequence[Sequence[Row]], topics: Sequence[str]) -> None:
        """Rows of other tasks, of an earlier batch and of this one; `topics` are those of which there can be any."""
        _add(self._read, counted(rows, topics))
        self._came += [sample for some in rows for sample in _samples(some, self._keep, _of_row)]

    def tally(
        self,
        attempt: Attempt,
        clock: int,
        positions: Mapping[TopicPartition, int],
        outputs: Sequence[Output],
    ) -> bytes:
        """All of it, once it is known up to where the log was read."""
        ages: list[int] = []
        aged = 0
        for at, range_ in self._ranges.items():
            range_.end(positions.get(at, 0))
            _add(self._read, {at.topic: range_.count})
            ages += [clock - timestamp for timestamp in range_.timestamps]
            aged += range_.count
            self._came += range_.samples(at, self._keep)
        went = _samples(outputs, self._keep, _of_output)
        tally = wire.Tally(
            stage=attempt.task.subtopology,
            partition=attempt.task.partition,
            attempt=attempt.id,
            read=self._read,
            written=self.written,
            ages=ages,
            aged=aged,
            restored=self.restored,
            came=self._came,
            went=went,
            sizes={at.topic: range_.size for at, range_ in self._ranges.items() if range_.timestamps},
        )
        return wire.encode(tally)


class _Range:
    """A range of the log. Whoever reads it takes a chunk only when the one before is used up."""

    def __init__(self, stride: int) -> None:
        self._stride = stride
        self._last: Chunk | None = None
        self._used = 0  # records of the last chunk
        self.count, self.timestamps, self._bytes = 0, list[int](), 0

    def begin(self, chunk: Chunk) -> None:
        if self._last is not None:
            self._use(len(self._last))
        self._last = chunk

    def end(self, position: int) -> None:
        """Of the last chunk, what lies before a position was used."""
        if self._last is not None:
            self._use(bisect_left(self._last.offsets, position))

    def _use(self, upto: int) -> None:
        if self._last is not None:
            first = -self.count % self._stride
            records, some = self._last.records, slice(first, upto, self._stride)
            self.timestamps += records.timestamps[some]
            self._bytes += sum(map(len, filter(None, (*records.keys[some], *records.values[some]))))
            self.count += upto
            self._used = upto

    @property
    def size(self) -> int:
        """Bytes of a record, on average."""
        return self._bytes // len(self.timestamps)

    def samples(self, at: TopicPartition, keep: int) -> Iterator[Sample]:
        """The last records that were used."""
        if self._last is None or not keep:
            return
        records, offsets = self._last.records, self._last.offsets
        for i in range(max(0, self._used - keep), self._used):
            yield _sample(at.topic, at.partition, offsets[i], records.keys[i], records.values[i], records.timestamps[i])


def counted(rows: Sequence[Sequence[Any]], topics: Sequence[str]) -> dict[str, int]:
    """Rows by topic, which is their first part; `topics` are those of which there can be any.

    >>> counted([[("a", 1), ("b", 2)], [("a", 3)]], ["a", "b"]), counted([[("a", 1)]], ["a"])
    ({'a': 2, 'b': 1}, {'a': 1})
    """
    if len(topics) == 1:  # nothing to look at
        number = sum(map(len, rows))
        return {topics[0]: number} if number else {}
    found = dict[str, int]()
    for topic, number in Counter(map(_topic, chain.from_iterable(rows))).items():
        _add(found, {topic.removesuffix(COUNTED): number})
    return found


def _add(counts: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count


def _samples(rows: Sequence[Any], keep: int, part: Callable[[Any], _Part]) -> list[Sample]:
    """The last rows of every topic, as far as they are among the last of all."""
    found: dict[str, list[Sample]] = {}
    for row in rows[: -LOOKED_AT - 1 : -1] if keep else ():
        some = found.setdefault(row[0], [])
        if len(some) < keep and not row[0].endswith(COUNTED):  # numbers are no records
            some.append(_sample(row[0], row[1] if row[1] is not None else -1, *part(row)))
    return [sample for some in found.values() for sample in reversed(some)]


def _of_row(row: Row) -> _Part:
    _, _, _, key, value, timestamp, _, _ = row
    return -1, key, value, timestamp  # it is not in the log


def _of_output(output: Output) -> _Part:
    _, _, key, value, timestamp, _, _ = output
    return -1, key, value, timestamp


def _sample(topic: str, partition: int, offset: int, key: bytes | None, value: bytes | None, timestamp: int) -> Sample:
    is_cut = len(key or b"") > CUT or len(value or b"") > CUT
    return Sample(topic, partition, offset, key and key[:CUT], value and value[:CUT], timestamp, is_cut)
