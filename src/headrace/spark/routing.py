"""Where the outputs of a task go: to tasks of later levels, to tasks that run again in the next batch, to the log."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from headrace.log.chunk_format import record_length
from headrace.log.protocol import Log
from headrace.log.validation import check_record_length
from headrace.model.ids import TaskId
from headrace.model.partitioner import known_partition
from headrace.runtime.environment import Output, Result, Row
from headrace.spark.job import Job

NO_LIMIT = 2**62
_TOPIC, _KEY, _VALUE, _HEADERS = itemgetter(0), itemgetter(2), itemgetter(3), itemgetter(5)


class Routed(NamedTuple):
    """Rows by the task that gets them, in this batch or in the next one, and records for the log."""

    sent: dict[TaskId, list[Row]]
    carried: dict[TaskId, list[Row]]
    outbox: list[Output]


class Router:
    """Sorts the outputs of tasks out."""

    def __init__(self, job: Job, log: Log) -> None:
        self._job, self._log = job, log
        self._roads: dict[str, tuple[int, int] | None] = {}  # by topic: the stage that reads it and its partitions
        self._limits: dict[str, int] = {}

    def route(self, result: Result, origin: TaskId) -> Routed:
        roads = {topic: self._road(topic) for topic in set(map(_TOPIC, result.outputs))}
        inside = {topic: road for topic, road in roads.items() if road is not None}
        outbox = [output for output in result.outputs if output[0] not in inside] if inside else result.outputs
        routed = Routed({}, {}, self._fitting(outbox, sorted(roads.keys() - inside.keys()), result))
        if inside:
            self._send(result.outputs, inside, origin, routed)
        return routed

    def _road(self, topic: str) -> tuple[int, int] | None:
        if topic not in self._roads:
            self._roads[topic] = self._job.route(topic)
        return self._roads[topic]

    def _send(
        self, outputs: Sequence[Output], inside: dict[str, tuple[int, int]], origin: TaskId, routed: Routed
    ) -> None:
        level, targets = self._job.level_of(origin), dict[tuple[int, int], list[Row]]()
        for sequence, (topic, chosen, key, value, timestamp, headers, order) in enumerate(outputs):
            if topic not in inside:
                continue
            stage, count = inside[topic]
            partition = known_partition(key, count) if chosen is None else chosen
            if partition is None:
                partition = origin.partition % count
            rows = targets.get((stage, partition))
            if rows is None:
                target = TaskId(stage, partition)
                is_later = self._job.level_of(target) > level
                rows = targets[stage, partition] = (routed.sent if is_later else routed.carried)[target] = []
            rows.append((topic, partition, sequence, key, value, timestamp, headers, order))

    # ---------------------------------------------------------------------------------------- records for the log
    def _fitting(self, outputs: list[Output], topics: Sequence[str], result: Result) -> list[Output]:
        """The records that the log will take. What is committed must be delivered, so it is known before."""
        if not outputs or self._surely_fit(outputs, min(map(self._limit, topics))):
            return outputs
        return [output for output in outputs if self._fits(output, result)]

    def _surely_fit(self, outputs: Sequence[Output], limit: int) -> bool:
        """Whether even the longest key and the longest value together would."""
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
