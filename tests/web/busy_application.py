"""An application of 30 nodes in which everything moves: rates, lag, latencies, drops, slots, sources and sinks.

The tests look at its dashboard in a browser. `python -m tests.web.busy_application` serves it, to look at it by hand.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from headrace import StreamsBuilder, TimeWindows, Topology, serde
from headrace.checkpoint.sink_delivery import SinkReport
from headrace.query import Follower
from headrace.query.history import BatchLatency
from headrace.query.status import SlotReport, SourceReport
from headrace.topology.describe import DescribedNode
from headrace.web import ApplicationView
from headrace.web.dashboard_json import list_topics
from tests.checkpoint.cluster import Cluster
from tests.checkpoint.programs import Program
from tests.query.programs import finished
from tests.web.servers import FakeApplication

TEXTS: dict[str, Any] = {"key": serde.STRING, "value": serde.STRING}
BATCHES = 5  # between two reports
STEP = {"lines": 90, "states": 7}  # records that come in between two reports, by topic


def build() -> Topology:
    """Four sub-topologies, names that Headrace generates, long names, stores, and sinks."""
    builder = StreamsBuilder()
    lines = builder.stream("lines", **TEXTS)
    states = builder.table("states", **TEXTS, store="states-by-customer")
    valid = lines.filter(lambda key, value: bool(value), name="only-lines-with-text")
    joined = valid.join(states, lambda line, state: f"{line} {state}")
    joined.map_values(str.upper).to("large-orders", **TEXTS)
    by_item = valid.select_key(lambda key, value: value).group_by_key(**TEXTS)
    by_item.count().to_stream().to("counts", key=serde.STRING, value=serde.LONG)
    by_item.windowed_by(TimeWindows.of(60_000)).count().to_stream().map(lambda key, n: (key.key, str(n))).to(
        "trends", **TEXTS
    )
    by_region = joined.group_by(lambda key, value: value[:2], **TEXTS)
    by_region.aggregate(str, lambda key, value, total: value, value=serde.STRING).to_stream().to("regions", **TEXTS)
    by_region.reduce(max, value=serde.STRING, store="largest-order-of-each-region-of-this-year").to_stream().to(
        "largest"
    )
    rare = valid.map_values(str.lower).filter_not(lambda key, value: value == "v1", name="rare")
    rare.to("audit-of-all-lines-that-are-neither-empty-nor-seen-before", **TEXTS)
    return builder.build()


class BusyApplication(FakeApplication):
    """Has read and written more whenever it is asked."""

    def __init__(self, cluster: Cluster, topology: Topology) -> None:
        super().__init__()
        self._nodes = [node for group in topology.describe().subtopologies for node in group.nodes]
        self._ends = {at: extent.end for at, extent in cluster.log.extents(["lines", "states"]).items()}
        self._step = 0
        self.behind = 4  # records, in each partition

    def report(self) -> Any:
        self._step += 1
        step = self._step
        last = step * BATCHES
        counts = {node.name: self._count(node, step) for node in self._nodes if node.kind != "Processor"}
        sources = [node for node in self._nodes if node.kind == "Source"]
        edges = {(node.name, other): counts[node.name] for node in sources for other in node.successors}
        numbers = range(max(0, last - 100), last)
        self.reported = replace(
            self.reported,
            batches=last,
            ends={at: end + self.behind for at, end in self._ends.items()},
            read={topic: count * step for topic, count in STEP.items()},
            sent={"counts": 110 * step},
            nodes=counts,
            edges=edges,
            dead_letters=step // 50,
            dead_letter_topic="failed-lines",
            phases={number: self._phases(number) for number in numbers},
            latencies={number: BatchLatency(6, 31 + number % 7, 60 + number % 40) for number in numbers},
            slots=[
                SlotReport(0, "worker-1.example.org", 4121, ("0_0", "0_2", "1_1"), {"0_1": 0, "1_0": 0}),
                SlotReport(1, "worker-2.example.org", 977, ("0_1", "1_0", "1_2"), {"0_0": 2, "1_1": 0}),
            ],
            moves=3,
            sources=[
                SourceReport("orders-of-the-old-shop", "lines", "RUNNING", 41_230 + step, 12, None),
                SourceReport("states", "states", "RETRYING", 9, None, "db.example.org refuses connections"),
            ],
            sinks=[
                SinkReport("warehouse", "exactly_once", last - 1, 1, 80_000 + step),
                SinkReport("search", "at_least_once", last - 9, 9, 70_000, 3, "HTTP 503", failures=4),
            ],
            changes={
                "application": "shop", "batch": 411, "decisions": 0,
                "changes": [
                    {"subject": "store", "name": "largest-order-of-each-region-of-this-year", "action": "new",
                     "before": None, "effect": "it begins empty", "decision": None, "entries": 0, "bytes": 0},
                    {"subject": "store", "name": "KSTREAM-AGGREGATE-STATE-STORE-0000000012", "action": "renamed",
                     "before": "KSTREAM-AGGREGATE-STATE-STORE-0000000009", "effect": "its entries get the new name",
                     "decision": None, "entries": 12_000, "bytes": 480_000},
                ],
            },
        )  # fmt: skip
        return self.reported

    def _count(self, node: DescribedNode, step: int) -> int:
        return step * sum(STEP.get(topic, 20) for topic in list_topics(node))

    def _phases(self, number: int) -> dict[str, float]:
        wave = 1 + 0.3 * math.sin(number / 40)
        return {
            "plan": 2.0, "run": 24.0 * wave, "level 0": 9.0 * wave, "level 1": 5.0, "exchange": 3.0, "commit": 5.0,
            "deliver": 8.0 * wave,
        }  # fmt: skip


def busy_view(partitions: int = 3) -> ApplicationView:
    """The application, with a checkpoint in memory in which it has run."""
    topology = build()
    cluster = finished(Program(build, {"lines": [], "states": []}, partitions), limit=3)
    follower = Follower(cluster.storage, topology, cluster.config)
    application = BusyApplication(cluster, topology)
    return ApplicationView(follower=follower, application=application, topology=topology.describe())


def main() -> None:
    import sys  # noqa: PLC0415

    from headrace.web import Server  # noqa: PLC0415

    with Server(busy_view(), insecure=True, interval=1000, port=int(sys.argv[1])) as server:
        print(server.url, flush=True)  # noqa: T201
        sys.stdin.read()


if __name__ == "__main__":
    main()
