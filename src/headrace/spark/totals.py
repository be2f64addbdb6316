"""What tasks have counted since the application was made, added up."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.commit.receipt import Receipt
from headrace.model.ids import TaskId
from headrace.model.record import Sample
from headrace.query.flows import Flows
from headrace.query.latencies import Latencies
from headrace.spark import wire

SHOWN = 8  # records of a node


class Totals:
    """Of all runs of an application; whoever watches it asks from another thread."""

    def __init__(self, flows: Flows, dead_letters: str | None) -> None:
        self._flows, self._dead_letters, self._lock = flows, dead_letters, threading.Lock()
        self._nodes: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by node and task
        self._read, self._sent = Counter[str](), Counter[str]()  # by topic
        self._stream_times: dict[str, int] = {}
        self._dropped: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by task and reason
        self._restored, self._restored_entries, self._restored_ms = Counter[str](), 0, 0.0
        self._latencies = Latencies()
        self._samples: defaultdict[str, deque[Sample]] = defaultdict(lambda: deque(maxlen=SHOWN))
        self._batches = 0
        self.sizes: dict[str, int] = {}  # bytes of a record, by topic, in the last batch that had any

    def add(self, receipts: Iterable[Receipt], tallies: Iterable[wire.Tally], clock: int, now: int) -> None:
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

    def _count(self, tally: wire.Tally) -> None:
        flows, task = self._flows, str(TaskId(tally.stage, tally.partition))
        for topic, count in tally.read.items():
            node = flows.source_of(tally.stage, topic)
            self._read[topic] += count * (not flows.is_internal(topic))
            if node is not None:
                self._nodes[node][task] += count
        for topic, count in tally.written.items():
            node = flows.sink_of(tally.stage, topic)
            self._sent[topic] += count * (not flows.is_internal(topic))
            if node is not None:
                self._nodes[node][task] += count
        if tally.restored is not None:
            how, entries, took = tally.restored
            self._restored[how] += 1
            self._restored_entries += entries
            self._restored_ms += took
        for samples, node_of in ((tally.came, flows.source_of), (tally.went, flows.sink_of)):
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
        return {**known, "edges": self._flows.edges(nodes)}

    def samples(self, node: str) -> list[Sample]:
        """The last records that went into a source or out of a sink, oldest first."""
        with self._lock:
            return list(self._samples[node]) if node in self._samples else []
