"""What is counted of an attempt at a task, where rows come in and where they go out: by chunk, never row by row.

What tasks have counted since the application was made, added up.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from headrace.checkpoint.receipt import Receipt
from headrace.log.protocol import Chunk
from headrace.model.ids import TaskId, TopicPartition
from headrace.model.record import Sample
from headrace.query.history import LatencyHistogram
from headrace.query.metrics import NodeIndex
from headrace.runtime.environment import Output, Row
from headrace.runtime.operators.bulk_counts import COUNTED
from headrace.spark import wire_format

AT_MOST = 250  # timestamps of a task and batch whose ages are told: enough for a histogram
LOOKED_AT = 64  # of the last rows, for records to be shown
CUT = 1000  # bytes of a key or a value that are shown
_Part = tuple[int, bytes | None, bytes | None, int]  # offset, key, value, timestamp
_topic = itemgetter(0)


class TaskStats:
    """Of one attempt; `keep` is how many records of each topic are kept to be shown."""

    def __init__(self, ranges: Sequence[wire_format.Range], keep: int) -> None:
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
        receipt: Receipt,
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
        tally = wire_format.Tally(
            stage=receipt.task.subtopology,
            partition=receipt.task.partition,
            attempt=receipt.attempt,
            read=self._read,
            written=self.written,
            ages=ages,
            aged=aged,
            restored=self.restored,
            came=self._came,
            went=went,
            sizes={at.topic: range_.size for at, range_ in self._ranges.items() if range_.timestamps},
        )
        return wire_format.encode(tally)


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


SHOWN = 8  # records of a node


class ApplicationStats:
    """Of all runs of an application; whoever watches it asks from another thread."""

    def __init__(self, index: NodeIndex, dead_letters: str | None) -> None:
        self._index, self._dead_letters, self._lock = index, dead_letters, threading.Lock()
        self._nodes: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by node and task
        self._read, self._sent = Counter[str](), Counter[str]()  # by topic
        self._stream_times: dict[str, int] = {}
        self._dropped: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by task and reason
        self._restored, self._restored_entries, self._restored_ms = Counter[str](), 0, 0.0
        self._latencies = LatencyHistogram()
        self._samples: defaultdict[str, deque[Sample]] = defaultdict(lambda: deque(maxlen=SHOWN))
        self._batches = 0
        self.sizes: dict[str, int] = {}  # bytes of a record, by topic, in the last batch that had any

    def add(self, receipts: Iterable[Receipt], tallies: Iterable[wire_format.Tally], clock: int, now: int) -> None:
        """Of a batch that was committed `now`; its own clock stood at `clock` when it was planned."""
        attempts, sizes = {receipt.attempt: receipt for receipt in receipts}, dict[str, int]()
        with self._lock:
            self._batches += 1
            for receipt in attempts.values():
                if receipt.stream_time >= 0:
                    self._stream_times[str(receipt.task)] = receipt.stream_time
                if receipt.dropped:
                    self._dropped[str(receipt.task)].update(receipt.dropped)
            for tally in tallies:
                if tally.attempt in attempts:
                    self._count(tally)
                    for topic, size in tally.sizes.items():
                        sizes[topic] = max(size, sizes.get(topic, 0))
                    self._latencies.add(tally.ages, tally.aged, now - clock)
            self.sizes = {**self.sizes, **sizes}

    def _count(self, tally: wire_format.Tally) -> None:
        index, task = self._index, str(TaskId(tally.stage, tally.partition))
        for topic, count in tally.read.items():
            node = index.source_of(tally.stage, topic)
            self._read[topic] += count * (not index.is_internal(topic))
            if node is not None:
                self._nodes[node][task] += count
        for topic, count in tally.written.items():
            node = index.sink_of(tally.stage, topic)
            self._sent[topic] += count * (not index.is_internal(topic))
            if node is not None:
                self._nodes[node][task] += count
        if tally.restored is not None:
            how, entries, took = tally.restored
            self._restored[how] += 1
            self._restored_entries += entries
            self._restored_ms += took
        for samples, node_of in ((tally.came, index.source_of), (tally.went, index.sink_of)):
            for sample in samples:
                node = node_of(tally.stage, sample.topic)
                if node is not None:
                    self._samples[node].append(sample)

    def observed(self) -> dict[str, Any]:
        """What an observation has of it."""
        with self._lock:
            tasks: Mapping[str, Mapping[str, int]] = {node: dict(some) for node, some in self._nodes.items()}
            nodes = {node: sum(some.values()) for node, some in tasks.items()}
            dead = None if self._dead_letters is None else self._sent[self._dead_letters]
            known = {
                "batches": self._batches,
                "nodes": nodes,
                "tasks": tasks,
                "read": +self._read,
                "sent": +self._sent,
                "dropped": {task: dict(reasons) for task, reasons in self._dropped.items()},
                "dead_letters": dead,
                "stream_times": dict(self._stream_times),
                "restored": dict(self._restored),
                "restored_entries": self._restored_entries,
                "restored_seconds": self._restored_ms / 1000,
                "latency": self._latencies.copy(),
            }
        return {**known, "edges": self._index.count_edges(nodes)}

    def samples(self, node: str) -> list[Sample]:
        """The last records that went into a source or out of a sink, oldest first."""
        with self._lock:
            return list(self._samples[node]) if node in self._samples else []
