"""Statistics for the dashboard and metrics: `TaskStats` counts one attempt at a task, `ApplicationStats` adds them up.

    TaskStats, in a slot ── wire_format.Tally ──▶ ApplicationStats, in the driver ──▶ dashboard, metrics, batch sizes

Records are counted by chunk, never one by one, because every record passes here. Only tallies of attempts whose
receipts are committed count.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from headrace.checkpoint.receipt import Receipt
from headrace.log.protocol import Chunk
from headrace.model.ids import TaskId, TopicPartition
from headrace.model.record import Sample
from headrace.query.history import BatchLatency, LatencyHistogram
from headrace.query.metrics import NodeIndex
from headrace.runtime.rows import Output, PartitionBatch
from headrace.spark import wire_format

MAX_AGES = 250  # ages of records in a tally: enough for a histogram
LOOKED_AT = 64  # last rows that are searched for samples
CUT = 1000  # bytes of a key or a value that a sample keeps
_topic = itemgetter(0)


class TaskStats:
    """The statistics of one attempt at a task. `keep` is the number of samples of each topic."""

    def __init__(self, ranges: Sequence[wire_format.Range], keep: int) -> None:
        self._stride = max(1, -(-sum(range_.end - range_.start for range_ in ranges) // MAX_AGES))
        self._keep, self._ranges = keep, dict[TopicPartition, _Range]()
        self._read, self._samples_in = dict[str, int](), list[Sample]()
        self.written: Mapping[str, int] = {}  # records by topic
        self.restored: tuple[str, int, float] | None = None  # how state was restored, its entries, and ms

    def observe_chunks(self, at: TopicPartition, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """Passes chunks on, and counts them."""
        range_ = self._ranges[at] = _Range(self._stride)
        for chunk in chunks:
            range_.begin(chunk)
            yield chunk

    def add_received(self, batches: Sequence[PartitionBatch]) -> None:
        """Counts carried and received rows."""
        _add(self._read, count_by_topic(batches))
        for batch in batches:
            if batch.counts is None:  # counts have no values
                last = map(batch.row, range(max(0, len(batch) - self._keep), len(batch)))
                self._samples_in += [_sample(row[0], row[1], -1, row[3], row[4], row[5]) for row in last]

    def encode_tally(
        self,
        receipt: Receipt,
        clock: int,
        positions: Mapping[TopicPartition, int],
        outputs: Sequence[Output],
    ) -> bytes:
        """Returns the tally as a message. `positions` say up to where the task has read the log."""
        ages: list[int] = []
        aged = 0
        for at, range_ in self._ranges.items():
            range_.end(positions.get(at, 0))
            _add(self._read, {at.topic: range_.count})
            ages += [clock - timestamp for timestamp in range_.timestamps]
            aged += range_.count
            self._samples_in += range_.samples(at, self._keep)
        samples_out = _samples(outputs, self._keep)
        tally = wire_format.Tally(
            stage=receipt.task.subtopology,
            partition=receipt.task.partition,
            attempt=receipt.attempt,
            read=self._read,
            written=self.written,
            ages=ages,
            aged=aged,
            restored=self.restored,
            samples_in=self._samples_in,
            samples_out=samples_out,
            sizes={at.topic: range_.size for at, range_ in self._ranges.items() if range_.timestamps},
        )
        return wire_format.encode(tally)


class _Range:
    """Counts a range of the log. When a task takes the next chunk, it has processed the chunk before it."""

    def __init__(self, stride: int) -> None:
        self._stride = stride
        self._last: Chunk | None = None
        self._used = 0  # records of the last chunk that were processed
        self.count, self.timestamps, self._bytes = 0, list[int](), 0

    def begin(self, chunk: Chunk) -> None:
        if self._last is not None:
            self._use(len(self._last))
        self._last = chunk

    def end(self, position: int) -> None:
        """Counts the records of the last chunk that are before a position."""
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
        """The average bytes of a record."""
        return self._bytes // len(self.timestamps)

    def samples(self, at: TopicPartition, keep: int) -> Iterator[Sample]:
        """Yields the last records that were processed."""
        if self._last is None or not keep:
            return
        records, offsets = self._last.records, self._last.offsets
        for i in range(max(0, self._used - keep), self._used):
            yield _sample(at.topic, at.partition, offsets[i], records.keys[i], records.values[i], records.timestamps[i])


def count_by_topic(batches: Iterable[PartitionBatch]) -> dict[str, int]:
    """Counts rows by topic."""
    found = dict[str, int]()
    for batch in batches:
        _add(found, {batch.at.topic: len(batch)})
    return found


def count_outputs(outputs: Sequence[Output], topics: Sequence[str]) -> dict[str, int]:
    """Counts outputs by topic. `topics` are the topics that they can belong to, if known.

    >>> count_outputs([("a", 0, None, b"1", 5, (), ()), ("b", 0, None, b"2", 5, (), ())], ["a", "b"])
    {'a': 1, 'b': 1}
    """
    if len(topics) == 1:  # the outputs need not be read
        return {topics[0]: len(outputs)} if outputs else {}
    return dict(Counter(map(_topic, outputs)))


def _add(counts: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count


def _samples(outputs: Sequence[Output], keep: int) -> list[Sample]:
    """Returns samples of every topic, from the last `LOOKED_AT` outputs."""
    found: dict[str, list[Sample]] = {}
    for topic, partition, key, value, timestamp, _, _ in outputs[: -LOOKED_AT - 1 : -1] if keep else ():
        some = found.setdefault(topic, [])
        if len(some) < keep:
            some.append(_sample(topic, -1 if partition is None else partition, -1, key, value, timestamp))
    return [sample for some in found.values() for sample in reversed(some)]


def _sample(topic: str, partition: int, offset: int, key: bytes | None, value: bytes | None, timestamp: int) -> Sample:
    is_cut = len(key or b"") > CUT or len(value or b"") > CUT
    return Sample(topic, partition, offset, key and key[:CUT], value and value[:CUT], timestamp, is_cut)


SHOWN = 8  # samples of a node
REMEMBERED = 120  # batches whose latencies are kept


class ApplicationStats:
    """The statistics of all runs of an application. Its methods may be called from any thread."""

    def __init__(self, index: NodeIndex, dead_letters: str | None) -> None:
        self._index, self._dead_letters, self._lock = index, dead_letters, threading.Lock()
        self._nodes: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by node and task
        self._read, self._sent = Counter[str](), Counter[str]()  # by topic
        self._stream_times: dict[str, int] = {}
        self._dropped: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by task and reason
        self._restored, self._restored_entries, self._restored_ms = Counter[str](), 0, 0.0
        self._latencies = LatencyHistogram()
        self._batch_latencies: dict[int, BatchLatency] = {}
        self._samples: defaultdict[str, deque[Sample]] = defaultdict(lambda: deque(maxlen=SHOWN))
        self._batches = 0
        self.sizes: dict[str, int] = {}  # average bytes of a record, by topic, in the last batch that read the topic

    def add(self, receipts: Iterable[Receipt], tallies: Sequence[wire_format.Tally], clock: int, now: int) -> None:
        """Adds a batch that was planned at `clock` and committed at `now`."""
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
            counted = [(tally.ages, tally.aged) for tally in tallies if tally.attempt in attempts]
            latency = BatchLatency.of(counted, now - clock)
            if latency is not None:
                number = max(receipt.number for receipt in attempts.values())
                self._batch_latencies[number] = latency
                if len(self._batch_latencies) > REMEMBERED:
                    del self._batch_latencies[next(iter(self._batch_latencies))]

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
        for samples, node_of in ((tally.samples_in, index.source_of), (tally.samples_out, index.sink_of)):
            for sample in samples:
                node = node_of(tally.stage, sample.topic)
                if node is not None:
                    self._samples[node].append(sample)

    def observed(self) -> dict[str, Any]:
        """Returns the statistics as fields of an observation."""
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
                "dead_letter_topic": self._dead_letters,
                "stream_times": dict(self._stream_times),
                "restored": dict(self._restored),
                "restored_entries": self._restored_entries,
                "restored_seconds": self._restored_ms / 1000,
                "latency": self._latencies.copy(),
                "latencies": dict(self._batch_latencies),
            }
        return {**known, "edges": self._index.count_edges(nodes)}

    def samples(self, node: str) -> list[Sample]:
        """Returns the last records into a source or out of a sink, oldest first."""
        with self._lock:
            return list(self._samples[node]) if node in self._samples else []
