"""Metrics in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.errors import StoreNotReadyError
from headrace.query.status import Observation
from headrace.query.views import Snapshot
from headrace.web.application_view import ApplicationView

TEXT = "text/plain; version=0.0.4; charset=utf-8"
STATES = (
    "CREATED",
    "REBALANCING",
    "RUNNING",
    "PAUSED",
    "PENDING_SHUTDOWN",
    "NOT_RUNNING",
    "PENDING_ERROR",
    "ERROR",
    "UNKNOWN",
)


def routes(board: ApplicationView) -> list[Route]:
    registry = CollectorRegistry()
    registry.register(Collector(board))

    def metrics(request: Request) -> Response:  # not `async`, so in a thread: the log is asked for its ends
        return Response(generate_latest(registry), media_type=TEXT)

    return [Route("/metrics", metrics)]


class Collector:
    """Reads everything at the moment it is asked for."""

    def __init__(self, board: ApplicationView) -> None:
        self._board = board

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        seen = self._board.observe()
        yield _state(seen)
        try:
            snapshot = self._board.follower.snapshot
        except StoreNotReadyError:
            return
        yield from _batches(self._board, snapshot, seen)
        yield from _records(snapshot, seen)
        yield from _states(snapshot, seen)
        yield from _times(snapshot, seen)


def _state(seen: Observation) -> Metric:
    family = GaugeMetricFamily("headrace_state", "1 for the state of the application", labels=["state"])
    state = "PAUSED" if seen.paused else seen.state
    for name in STATES:
        family.add_metric([name], float(name == state))
    return family


def _batches(board: ApplicationView, snapshot: Snapshot, seen: Observation) -> Iterable[Metric]:
    delivered = snapshot.delivered if seen.delivered is None else seen.delivered
    age = board.follower.freshness.age(board.clock.now())
    yield GaugeMetricFamily("headrace_batch", "The last batch that was committed", snapshot.batch)
    yield GaugeMetricFamily("headrace_batch_delivered", "The last batch that the log has", delivered)
    yield GaugeMetricFamily("headrace_epoch", "How often an instance took over", snapshot.epoch)
    yield GaugeMetricFamily("headrace_copy_age_seconds", "Since the copy was certainly the last batch", age / 1000)
    phases = GaugeMetricFamily("headrace_batch_phase_seconds", "Phases of the last batch", labels=["phase"])
    for phase, ms in sorted(seen.phases[max(seen.phases)].items()) if seen.phases else ():
        phases.add_metric([phase], ms / 1000)
    yield phases


def _records(snapshot: Snapshot, seen: Observation) -> Iterable[Metric]:
    read = CounterMetricFamily("headrace_records_in", "Offset up to which a partition was read", labels=["partition"])
    lag = GaugeMetricFamily("headrace_lag_records", "Records that wait in the log", labels=["partition"])
    for at, offset in sorted(snapshot.position.offsets.items()):
        read.add_metric([str(at)], offset)
        if at in seen.ends:
            lag.add_metric([str(at)], max(0, seen.ends[at] - offset))
    sent = CounterMetricFamily("headrace_records_out", "Records written", labels=["topic"])
    for topic, count in sorted(seen.sent.items()):
        sent.add_metric([topic], count)
    dropped = CounterMetricFamily("headrace_dropped_records", "Records left out", labels=["reason"])
    for reason, count in sorted(snapshot.dropped.items()):
        dropped.add_metric([reason], count)
    nodes = CounterMetricFamily("headrace_node_records", "Into a source, out of a sink", labels=["node", "task"])
    for node, tasks in sorted(seen.tasks.items()):
        for task, count in sorted(tasks.items()):
            nodes.add_metric([node, task], count)
    yield from (read, lag, sent, dropped, nodes)
    if seen.dead_letters is not None:
        yield CounterMetricFamily("headrace_dead_letters", "Records for the dead letter topic", seen.dead_letters)


def _states(snapshot: Snapshot, seen: Observation) -> Iterable[Metric]:
    size = GaugeMetricFamily("headrace_state_bytes", "State in the checkpoint", labels=["task"])
    for task, bytes_ in sorted(snapshot.sizes.items()):
        size.add_metric([str(task)], bytes_)
    entries = GaugeMetricFamily("headrace_store_entries", "Entries of a store", labels=["store"])
    for name in sorted(snapshot.catalog.shelves):
        entries.add_metric([name], snapshot.count(name))
    restored = CounterMetricFamily("headrace_restores", "How state came to a worker", labels=["how"])
    for how, count in sorted(seen.restored.items()):
        restored.add_metric([how], count)
    yield from (size, entries, restored)
    yield CounterMetricFamily("headrace_restored_entries", "Entries of state that were restored", seen.restored_entries)
    yield CounterMetricFamily("headrace_restore_seconds", "Time that it took to restore state", seen.restored_seconds)


def _times(snapshot: Snapshot, seen: Observation) -> Iterable[Metric]:
    late = GaugeMetricFamily("headrace_stream_time_lag_seconds", "Clock minus stream time", labels=["task"])
    for task, time in sorted(seen.stream_times.items()):
        late.add_metric([task], max(0, snapshot.clock - time) / 1000)
    yield late
    if seen.latency.count:
        buckets = [*((str(ms / 1000), count) for ms, count in seen.latency.up_to()), ("+Inf", seen.latency.count)]
        yield HistogramMetricFamily(
            "headrace_end_to_end_latency_seconds",
            "From the timestamp of a record until its batch is committed",
            buckets=buckets,
            sum_value=seen.latency.sum / 1000,
        )
