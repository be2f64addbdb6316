"""The recorder: it samples an application every second, and keeps the last 15 minutes for the dashboard's charts.

    recorder = Recorder(view, interval=1.0, stop=stop)
    recorder.start()                 # samples in a thread until `stop` is set
    recorder.points_after(0)         # what the charts show
    recorder.rates                   # the rates of the headline, of nodes and of edges

All rates come from the same two counts, so the headline, the graph and the last point of the chart agree.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import mean, median
from typing import Any, NamedTuple

from headrace.errors import StreamsError
from headrace.model.ids import TopicPartition
from headrace.query.status import ApplicationReport, describe_latency
from headrace.web.dashboard_json import ApplicationView, list_topics

KEPT = 900  # points: 15 minutes
SPAN = 5000  # ms over which a rate is taken
OLD = (
    3_600_000  # ms: a timestamp that is older says when something happened, not when the record was written to the log
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What an application had counted at a time: records read and written, by node and by edge."""

    at: int
    read: int
    written: int | None  # None if the application runs in another process
    nodes: Mapping[str, int]
    edges: Mapping[tuple[str, str], int]

    def goes_on_from(self, earlier: Counts) -> bool:
        """False if the application was created again since then, or its checkpoint reset."""
        return self.at > earlier.at and self.read >= earlier.read and (self.written or 0) >= (earlier.written or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Records per second over the last seconds."""

    read: float | None = None
    written: float | None = None
    nodes: Mapping[str, float] = field(default_factory=dict[str, float])
    edges: Mapping[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])

    @classmethod
    def between(cls, earlier: Counts, now: Counts) -> Rates:
        def per_second(before: float, after: float) -> float:
            return round(1000 * (after - before) / (now.at - earlier.at), 2)

        written = None if now.written is None else per_second(earlier.written or 0, now.written)
        return cls(
            read=per_second(earlier.read, now.read),
            written=written,
            nodes={node: per_second(earlier.nodes.get(node, 0), count) for node, count in now.nodes.items()},
            edges={edge: per_second(earlier.edges.get(edge, 0), count) for edge, count in now.edges.items()},
        )

    def to_json(self) -> dict[str, Any]:
        edges = [[*edge, rate] for edge, rate in self.edges.items()]
        return {"read": self.read, "written": self.written, "nodes": dict(self.nodes), "edges": edges}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point of the charts. What is not known is None.

    Latencies are those of the batches since the point before: `p50` is the median of their medians, `p99` that of the
    slowest batch. `parts` says where the time went, in ms, as an average over these batches. If timestamps are older
    than an hour, `has_wait` is False: the wait in the log is not known, and left out of all of them.
    """

    at: int
    read: float | None
    written: float | None
    lag: int | None
    p50: float | None
    p99: float | None
    parts: Mapping[str, float]
    has_wait: bool = True


class Latency(NamedTuple):
    """The latency of the batches since the last point, with the meaning of the fields of `Point`."""

    p50: float | None = None
    p99: float | None = None
    parts: Mapping[str, float] = {}
    has_wait: bool = True


class Recorder:
    """Samples an application. `record` may be called from one thread, the other methods from any."""

    def __init__(self, view: ApplicationView, interval: float, stop: threading.Event) -> None:
        self._view, self._interval, self._stop = view, interval, stop
        self._points = deque[Point](maxlen=KEPT)
        self._counts = deque[Counts]()  # of the last `SPAN`, oldest first
        self._timed = -1  # the last batch whose latency is in a point
        self._start_lock, self._is_started = threading.Lock(), False
        self.rates = Rates()

    def start(self) -> None:
        """Sample in a thread until `stop` is set. A second call has no effect."""
        with self._start_lock:
            if self._is_started:
                return
            self._is_started = True
        threading.Thread(target=self._run, name="headrace recorder", daemon=True).start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.record()
            except StreamsError as error:  # before the first batch, or while the log or the checkpoint is away
                _log.debug("the dashboard's charts lack a point: %s", error)
            except Exception:  # noqa: BLE001 - the charts go on with the next point
                if not self._stop.is_set():  # else the application has closed what is read here
                    _log.exception("the dashboard's charts lack a point")
            self._stop.wait(self._interval)

    def record(self) -> None:
        """Take a sample."""
        view = self._view
        report, snapshot = view.report(), view.follower.snapshot
        self._add_counts(_count(view, report, snapshot.position.offsets))
        lag = None
        if report.ends:
            offsets = snapshot.position.offsets
            lag = sum(max(0, end - offsets.get(at, 0)) for at, end in report.ends.items())
        rates, now = self.rates, self._counts[-1].at
        latency = self._latency(report)._asdict()
        self._points.append(Point(at=now, read=rates.read, written=rates.written, lag=lag, **latency))

    def _add_counts(self, now: Counts) -> None:
        counts = self._counts
        if counts and not now.goes_on_from(counts[-1]):
            counts.clear()
        counts.append(now)
        while len(counts) > 2 and counts[1].at <= now.at - SPAN:
            counts.popleft()
        if len(counts) > 1:
            self.rates = Rates.between(counts[0], now)

    def _latency(self, report: ApplicationReport) -> Latency:
        """Return the latency of the batches that were delivered since the last point."""
        numbers = sorted(number for number in report.latencies if "deliver" in report.phases.get(number, {}))
        if numbers and numbers[-1] < self._timed:
            self._timed = -1  # the batches began anew
        numbers = [number for number in numbers if number > self._timed]
        if not numbers:
            return Latency()
        self._timed = numbers[-1]
        has_wait = all(report.latencies[number].wait <= OLD for number in numbers)
        found = [latency for number in numbers if (latency := describe_latency(report, number)) is not None]
        if not has_wait:  # from the begin of the batch
            found = [dict.fromkeys(("p50", "p99"), latency["p50"] - latency["wait"]) for latency in found]
        waits = [report.latencies[number].wait if has_wait else None for number in numbers]
        parts = [split_time(report.phases[number], wait) for number, wait in zip(numbers, waits, strict=True)]
        names = dict.fromkeys(name for each in parts for name in each)
        return Latency(
            round(median(latency["p50"] for latency in found), 2),
            round(max(latency["p99"] for latency in found), 2),
            {name: round(mean(each.get(name, 0.0) for each in parts), 2) for name in names},
            has_wait,
        )

    def points_after(self, at: int) -> list[dict[str, Any]]:
        """Return the points after a time, oldest first."""
        return [asdict(point) for point in list(self._points) if point.at > at]


def _count(view: ApplicationView, report: ApplicationReport, offsets: Mapping[TopicPartition, int]) -> Counts:
    now = view.clock.now()
    if view.application is not None:
        read, written = sum(report.read.values()), sum(report.sent.values())
        return Counts(at=now, read=read, written=written, nodes=report.nodes, edges=report.edges)
    by_topic = dict[str, int]()
    for at, offset in offsets.items():
        by_topic[at.topic] = by_topic.get(at.topic, 0) + offset
    nodes = [node for group in view.topology.subtopologies for node in group.nodes] if view.topology else []
    sources = {node.name: [t for t in list_topics(node) if t in by_topic] for node in nodes if node.kind == "Source"}
    counted = {name: sum(by_topic[topic] for topic in topics) for name, topics in sources.items() if topics}
    return Counts(at=now, read=sum(by_topic.values()), written=None, nodes=counted, edges={})


def split_time(phases: Mapping[str, float], wait: float | None) -> dict[str, float]:
    """Return where the time of a batch's records went, in ms, in the order in which it passed; without an unknown wait.

    The levels and the exchange are parts of the run. The rest of the run is the way of orders and receipts between
    the driver and the slots.

    >>> split_time({"plan": 2, "run": 20, "level 0": 9, "level 1": 4, "commit": 4, "deliver": 10}, 5)
    {'wait': 5, 'plan': 2, 'level 0': 9, 'level 1': 4, 'orders and receipts': 7, 'commit': 4, 'deliver': 10}
    >>> split_time({"plan": 2, "run": 20, "commit": 4, "deliver": 10}, 5)
    {'wait': 5, 'plan': 2, 'run': 20, 'commit': 4, 'deliver': 10}
    """
    levels = {name: took for name, took in phases.items() if name.startswith("level ")}
    exchange = {"exchange": phases["exchange"]} if phases.get("exchange") else {}
    inside = sum(levels.values()) + sum(exchange.values())
    rest = {"orders and receipts" if levels else "run": max(0, phases.get("run", 0) - inside)}
    return {
        **({} if wait is None else {"wait": max(0, wait)}),
        "plan": phases.get("plan", 0),
        **levels,
        **exchange,
        **rest,
        "commit": phases.get("commit", 0),
        "deliver": phases.get("deliver", 0),
    }
