"""Routes the outputs of a task: to tasks of later levels, to tasks that have already run (carried rows), or to the log.

A record that is too large for its topic is found here, before the commit: what is committed must be delivered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from headrace.checkpoint.outbox import group_by_partition
from headrace.log.chunk_format import record_length
from headrace.log.protocol import Log
from headrace.log.validation import check_record_length
from headrace.model.ids import TaskId, TopicPartition
from headrace.runtime.environment import Result
from headrace.runtime.rows import CountOutput, Output, PartitionBatch, batch_outputs
from headrace.spark.job import Job

NO_LIMIT = 2**62
_TOPIC, _KEY, _VALUE, _HEADERS = itemgetter(0), itemgetter(2), itemgetter(3), itemgetter(5)


class Routed(NamedTuple):
    """Rows for tasks of this batch, rows for tasks of the next batch, and records for the log."""

    sent: dict[TaskId, list[PartitionBatch]]
    carried: dict[TaskId, list[PartitionBatch]]
    outbox: list[Output]


class Router:
    """Routes the outputs of tasks; it remembers where each topic leads, and how large its records may be."""

    def __init__(self, job: Job, log: Log) -> None:
        self._job, self._log = job, log
        self._routes: dict[str, tuple[int, int] | None] = {}  # by topic: the stage that reads it and its partitions
        self._limits: dict[str, int] = {}

    def route(self, result: Result, origin: TaskId) -> Routed:
        """Routes the outputs of the task `origin`. Records that the log would reject are counted as dropped."""
        outputs, counts = result.outputs, result.counts
        routes = {topic: self._route_of(topic) for topic in set(map(_TOPIC, chain(outputs, counts)))}
        inside = {topic: route for topic, route in routes.items() if route is not None}
        outside = routes.keys() - inside.keys()
        outbox = [output for output in outputs if output[0] in outside] if inside else outputs
        routed = Routed({}, {}, self._drop_oversized(outbox, sorted(outside), result))
        if inside:
            rows = [output for output in outputs if output[0] in inside] if outside else outputs
            self._send(rows, inside, origin, routed, are_counts=False)
            self._send(counts, inside, origin, routed, are_counts=True)
        return routed

    def _route_of(self, topic: str) -> tuple[int, int] | None:
        if topic not in self._routes:
            self._routes[topic] = self._job.route(topic)
        return self._routes[topic]

    def _send(
        self,
        outputs: Sequence[Output] | Sequence[CountOutput],
        inside: Mapping[str, tuple[int, int]],
        origin: TaskId,
        routed: Routed,
        *,
        are_counts: bool,
    ) -> None:
        level = self._job.level_of(origin)
        groups = group_by_partition(outputs, lambda topic: inside[topic][1], origin.partition)
        for (topic, partition), places in groups.items():
            at = TopicPartition(topic, partition or 0)
            target = TaskId(inside[topic][0], at.partition)
            batches = routed.sent if self._job.level_of(target) > level else routed.carried
            batches.setdefault(target, []).append(batch_outputs(at, outputs, places, are_counts=are_counts))

    # ---------------------------------------------------------------------------------------- records for the log
    def _drop_oversized(self, outputs: list[Output], topics: Sequence[str], result: Result) -> list[Output]:
        """Returns the records that the log accepts; raises an error for others, or counts them as dropped."""
        if not outputs or self._all_fit(outputs, min(map(self._limit, topics))):
            return outputs
        return [output for output in outputs if self._fits(output, result)]

    def _all_fit(self, outputs: Sequence[Output], limit: int) -> bool:
        """True if even the longest key with the longest value is within the limit: a check of all records at once."""
        longest_key = max(len(key) if key else 0 for key in map(_KEY, outputs))
        longest_value = max(len(value) if value else 0 for value in map(_VALUE, outputs))
        return longest_key + longest_value <= limit and not any(map(_HEADERS, outputs))

    def _limit(self, topic: str) -> int:
        if topic not in self._limits:
            found = self._log.topics().get(topic)
            self._limits[topic] = int(found.config.get("max.message.bytes", NO_LIMIT)) if found else NO_LIMIT
        return self._limits[topic]

    def _fits(self, output: Output, result: Result) -> bool:
        topic, _, key, value, _, headers, _ = output
        length, limit = record_length(key, value, headers), self._limit(topic)
        if length <= limit:
            return True
        if self._job.config.production_exception_handler == "fail":
            check_record_length(topic, length, limit)
        result.dropped["production error"] = result.dropped.get("production error", 0) + 1
        return False
