"""What an application has counted, in Kafka Streams' words."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.commit.ledger import Ledger
from headrace.query.status import Observation


def streams_metrics(seen: Observation, ledger: Ledger) -> dict[str, float]:
    """Times are in milliseconds. Parts of a count stand behind a slash: a topic, a partition, a task or a reason."""
    lag = {str(at): max(0, end - ledger.positions.get(at, 0)) for at, end in seen.ends.items()}
    late = {task: max(0, ledger.clock - time) for task, time in seen.stream_times.items()}
    latency, dead = seen.latency, seen.dead_letters
    return {
        "commit-total": seen.batches,
        **_average_and_most("commit-latency", [phases.get("commit", 0.0) for phases in seen.phases.values()]),
        **_average_and_most("process-latency", [phases.get("run", 0.0) for phases in seen.phases.values()]),
        "process-total": sum(seen.read.values()),
        **_summed("records-consumed-total", seen.read),
        **_summed("records-produced-total", seen.sent),
        **_summed("dropped-records-total", ledger.dropped),
        **({} if dead is None else {"dead-letter-records-total": dead}),
        **_summed("records-lag", lag),
        "records-lag-max": max(lag.values(), default=0),
        **{f"stream-time-lag/{task}": ms for task, ms in sorted(late.items())},
        "restore-total": seen.restored_entries,
        "restore-latency-total": 1000 * seen.restored_seconds,
        "record-e2e-latency-avg": latency.sum / latency.count if latency.count else 0,
        "record-e2e-latency-min": latency.least,
        "record-e2e-latency-max": latency.most,
    }


def _summed(name: str, parts: Mapping[str, int]) -> dict[str, int]:
    return {name: sum(parts.values()), **{f"{name}/{part}": count for part, count in sorted(parts.items())}}


def _average_and_most(name: str, ms: list[float]) -> dict[str, float]:
    return {f"{name}-avg": sum(ms) / len(ms) if ms else 0, f"{name}-max": max(ms, default=0)}
