"""/metrics: the metrics of an application in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.errors import StoreNotReadyError
from headrace.query.follower import Snapshot
from headrace.query.status import ApplicationReport, describe_latency
from headrace.web.dashboard_json import ApplicationView

TEXT = "text/plain; version=0.0.4; charset=utf-8"
STATES = (
    "CREATED", "REBALANCING", "RUNNING", "PAUSED", "PENDING_SHUTDOWN", "NOT_RUNNING", "PENDING_ERROR", "ERROR",
    "UNKNOWN",
)  # fmt: skip
_SOURCE_AWAY = {"RETRYING", "FENCED", "FAILED"}


def routes(view: ApplicationView) -> list[Route]:
    registry = CollectorRegistry()
    registry.register(ViewCollector(view))

    def metrics(request: Request) -> Response:  # not `async`, so it runs in a thread: it reads the log's end offsets
        return Response(generate_latest(registry), media_type=TEXT)

    return [Route("/metrics", metrics)]


class ViewCollector:
    """Collects the metrics of an application whenever Prometheus asks for them."""

    def __init__(self, view: ApplicationView) -> None:
        self._view = view

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        report = self._view.report()
        state = "PAUSED" if report.paused else report.state
        states = {name: float(name == state) for name in STATES}
        yield _gauge("headrace_state", "1 for the state of the application", "state", states)
        try:
            snapshot = self._view.follower.snapshot
        except StoreNotReadyError:
            return
        yield from _batch_metrics(self._view, snapshot, report)
        yield from _slot_metrics(report)
        yield from _source_metrics(report)
        yield from _sink_metrics(report)
        yield from _record_metrics(snapshot, report)
        yield from _store_metrics(snapshot, report)
        yield from _time_metrics(snapshot, report)


def _gauge(name: str, help_text: str, label: str, values: Mapping[str, float]) -> Metric:
    """Return a gauge with one value for each value of a label."""
    family = GaugeMetricFamily(name, help_text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _counter(name: str, help_text: str, label: str, values: Mapping[str, float]) -> Metric:
    """Return a counter with one value for each value of a label."""
    family = CounterMetricFamily(name, help_text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def _batch_metrics(view: ApplicationView, snapshot: Snapshot, report: ApplicationReport) -> Iterable[Metric]:
    delivered = snapshot.delivered if report.delivered is None else report.delivered
    age = view.follower.freshness.age(view.clock.now()) / 1000
    phases = report.phases.get(max(report.phases, default=-1), {})
    yield GaugeMetricFamily("headrace_batch", "The last batch that was committed", snapshot.batch)
    yield GaugeMetricFamily("headrace_batch_delivered", "The last batch that the log has", delivered)
    yield GaugeMetricFamily("headrace_epoch", "Number of instances that have owned the checkpoint", snapshot.epoch)
    yield GaugeMetricFamily("headrace_copy_age_seconds", "Seconds since the copy was certainly the last batch", age)
    seconds = {phase: ms / 1000 for phase, ms in sorted(phases.items())}
    yield _gauge("headrace_batch_phase_seconds", "Phases of the last batch", "phase", seconds)
    latency = describe_latency(report, max(report.latencies, default=-1))
    if latency is not None:
        quantiles = {"0.5": latency["p50"] / 1000, "0.99": latency["p99"] / 1000}
        yield _gauge("headrace_log_to_log_seconds", "Records of the last batch, from log to log", "quantile", quantiles)
        wait = latency["wait"] / 1000
        yield GaugeMetricFamily("headrace_log_wait_seconds", "Median wait in the log before the last batch", wait)


def _slot_metrics(report: ApplicationReport) -> Iterable[Metric]:
    tasks = GaugeMetricFamily("headrace_slot_tasks", "Tasks of a slot", labels=["slot", "host"])
    standbys = GaugeMetricFamily("headrace_slot_standbys", "Standbys in a slot", labels=["slot", "host"])
    lag = GaugeMetricFamily(
        "headrace_standby_lag_batches", "Batches that a standby is behind its task", labels=["slot", "task"]
    )
    for slot in report.slots:
        tasks.add_metric([str(slot.slot), slot.host], len(slot.tasks))
        standbys.add_metric([str(slot.slot), slot.host], len(slot.standbys))
        for task, behind in slot.standbys.items():
            lag.add_metric([str(slot.slot), task], behind)
    yield from (tasks, standbys, lag)
    yield CounterMetricFamily("headrace_task_moves", "Tasks that were given to another slot", report.moves)
    yield GaugeMetricFamily("headrace_queued_slots", "Slots that wait for a core of Spark", report.queued_slots)


def _source_metrics(report: ApplicationReport) -> Iterable[Metric]:
    sources = {source.name: source for source in report.sources}
    lag = {name: source.lag for name, source in sources.items() if source.lag is not None}
    yield _gauge("headrace_source_lag", "What a source has not read yet, in its own unit", "source", lag)
    away = {name: int(source.state in _SOURCE_AWAY) for name, source in sources.items()}
    yield _gauge("headrace_source_away", "1 while a source fails and is tried again", "source", away)
    records = {name: source.records for name, source in sources.items()}
    yield _counter("headrace_source_records", "Records that a source has written to the log", "source", records)
    failures = {name: source.failures for name, source in sources.items()}
    yield _counter("headrace_source_failures", "Attempts of a source that failed", "source", failures)


def _sink_metrics(report: ApplicationReport) -> Iterable[Metric]:
    labels = {sink.name: sink for sink in report.sinks}
    delivered = {name: sink.delivered for name, sink in labels.items()}
    yield _gauge("headrace_sink_batch", "The last batch that the target of a sink has", "sink", delivered)
    waiting = {name: sink.waiting for name, sink in labels.items()}
    yield _gauge("headrace_sink_waiting_batches", "Batches that a sink lacks", "sink", waiting)
    away = {name: int(sink.is_away) for name, sink in labels.items()}
    yield _gauge("headrace_sink_away", "1 while the target of a sink does not take batches", "sink", away)
    records = {name: sink.records for name, sink in labels.items()}
    yield _counter("headrace_sink_records", "Records that a sink has taken", "sink", records)
    rejected = {name: sink.rejected for name, sink in labels.items()}
    yield _counter("headrace_sink_rejected_records", "Records that a sink rejected", "sink", rejected)
    failures = {name: sink.failures for name, sink in labels.items()}
    yield _counter("headrace_sink_failures", "Attempts to write a batch that failed", "sink", failures)


def _record_metrics(snapshot: Snapshot, report: ApplicationReport) -> Iterable[Metric]:
    offsets = sorted(snapshot.position.offsets.items())
    lag = {str(at): max(0, report.ends[at] - offset) for at, offset in offsets if at in report.ends}
    read = {str(at): offset for at, offset in offsets}
    nodes = CounterMetricFamily("headrace_node_records", "Records by source and sink", labels=["node", "task"])
    for node, tasks in sorted(report.tasks.items()):
        for task, count in sorted(tasks.items()):
            nodes.add_metric([node, task], count)
    yield _counter("headrace_records_in", "Offset up to which a partition was read", "partition", read)
    yield _gauge("headrace_lag_records", "Records that wait in the log", "partition", lag)
    yield _counter("headrace_records_out", "Records written", "topic", report.sent)
    yield _counter("headrace_dropped_records", "Records dropped", "reason", snapshot.dropped)
    yield nodes
    if report.dead_letters is not None:
        yield CounterMetricFamily("headrace_dead_letters", "Records for the dead letter topic", report.dead_letters)


def _store_metrics(snapshot: Snapshot, report: ApplicationReport) -> Iterable[Metric]:
    sizes = {str(task): size for task, size in sorted(snapshot.sizes.items())}
    entries = {name: snapshot.count(name) for name in sorted(snapshot.catalog.stores)}
    yield _gauge("headrace_state_bytes", "State in the checkpoint", "task", sizes)
    yield _gauge("headrace_store_entries", "Entries of a store", "store", entries)
    yield _counter("headrace_restores", "Restores of state on workers", "how", report.restored)
    yield CounterMetricFamily("headrace_restored_entries", "Entries of state restored", report.restored_entries)
    yield CounterMetricFamily("headrace_restore_seconds", "Seconds spent on restoring state", report.restored_seconds)


def _time_metrics(snapshot: Snapshot, report: ApplicationReport) -> Iterable[Metric]:
    lag = {task: max(0, snapshot.clock - time) / 1000 for task, time in sorted(report.stream_times.items())}
    yield _gauge("headrace_stream_time_lag_seconds", "Clock minus stream time", "task", lag)
    if report.latency.count:
        buckets = [*((str(ms / 1000), count) for ms, count in report.latency.up_to()), ("+Inf", report.latency.count)]
        yield HistogramMetricFamily(
            "headrace_end_to_end_latency_seconds",
            "From the timestamp of a record until its batch is committed",
            buckets=buckets,
            sum_value=report.latency.sum / 1000,
        )
