"""The JSON of the dashboard: one application, seen through a follower, and directly if it runs in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.checkpoint.change_plan import ChangePlan
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.model.clock import Clock, SystemClock
from headrace.query.drops import describe_drops, explain_reason
from headrace.query.follower import Follower
from headrace.query.standby import read_report
from headrace.query.status import ApplicationReport, RunningApplication, build_status, encode_slots, summarize_batches
from headrace.secrets import mask_secrets
from headrace.topology.describe import DescribedNode, TopologyDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one request."""

    rows: int = 10_000  # of a page
    page_bytes: int = 8 * 1024 * 1024
    stream_bytes: int = 1024 * 1024 * 1024
    seconds: float = 30.0
    body_bytes: int = 4096
    key_bytes: int = 16 * 1024
    listeners: int = 16  # open streams of events


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationView:
    """An application as the dashboard shows it; `application` is there if it runs in this process.

    The dashboard shows `settings` too, with secrets masked, and what `plan` returns: the changes that the next start
    would make to the checkpoint.
    """

    follower: Follower
    application: RunningApplication | None = None
    topology: TopologyDescription | None = None
    plan: Callable[[], ChangePlan] | None = None
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    clock: Clock = field(default_factory=SystemClock)
    limits: Limits = field(default_factory=Limits)

    def report(self) -> ApplicationReport:
        """Return the application's report. If it runs elsewhere, that is what its last heartbeat says."""
        if self.application is not None:
            return self.application.report()
        follower = self.follower
        return read_report(follower.storage, follower.epoch, self.clock.now())

    def status(self, report: ApplicationReport | None = None) -> dict[str, Any]:
        status = asdict(build_status(self.follower, report or self.report(), self.clock.now()))
        status["verdict"] = mask_secrets(status["verdict"])
        status["error"] = None if status["error"] is None else mask_secrets(status["error"])
        return status

    def batches(self, report: ApplicationReport | None = None) -> list[dict[str, Any]]:
        return summarize_batches(self.follower, report or self.report())

    def topology_json(self) -> dict[str, Any]:
        """Return the topology with the topics and stores of its nodes.

        Without a topology, each sub-topology of the checkpoint is one node.
        """
        if self.topology is None:
            return {"subtopologies": _draw_subtopologies(self.follower.snapshot.fingerprint)}
        found = self.topology.as_dict()
        for group, described in zip(found["subtopologies"], self.topology.subtopologies, strict=True):
            for node, each in zip(group["nodes"], described.nodes, strict=True):
                node |= {"topics": list_topics(each), "stores": list_stores(each)}
        return found

    def plan_json(self) -> dict[str, Any]:
        """Return what the last start changed, and what the next one would change; None where that is not known."""
        plan = None if self.plan is None else self.plan().to_json()
        return {"last": self.report().changes, "next": plan}

    def drops(self) -> dict[str, Any]:
        """Return the dropped records: how many for each reason, and the last ones of each, the newest first."""
        snapshot = self.follower.snapshot
        return {
            "reasons": [
                {"reason": reason, "records": count, "why": explain_reason(reason)}
                for reason, count in sorted(snapshot.dropped.items())
            ],
            "last": describe_drops(snapshot.drops),
        }

    def dropped(self, report: ApplicationReport) -> dict[int, dict[str, int]]:
        """Return the records that each sub-topology dropped, by reason. The tasks of its sources are its tasks."""
        found: dict[int, dict[str, int]] = {}
        for group in self.topology.subtopologies if self.topology is not None else ():
            tasks = {task for node in group.nodes if node.kind == "Source" for task in report.tasks.get(node.name, {})}
            reasons = sum((Counter(report.dropped.get(task, {})) for task in tasks), Counter[str]())
            if reasons:
                found[group.number] = dict(sorted(reasons.items()))
        return found

    def node(self, name: str) -> dict[str, Any] | None:
        """Return a node with its tasks and its last records, or None if the topology has no such node."""
        groups = self.topology.subtopologies if self.topology is not None else ()
        group = next((group for group in groups if any(node.name == name for node in group.nodes)), None)
        if group is None:
            return None
        report = self.report()
        source_counts = [report.tasks.get(node.name, {}) for node in group.nodes if node.kind == "Source"]
        own, tasks = report.tasks.get(name, {}), sorted({task for counts in source_counts for task in counts})
        sizes = {str(task): size for task, size in self.follower.snapshot.sizes.items()}
        return {
            "name": name,
            "records": sum(own.values()) if own else None,  # only sources and sinks count records
            "tasks": [
                {
                    "task": task,
                    "records": own.get(task, 0) if own else None,
                    "taken": sum(counts.get(task, 0) for counts in source_counts),  # by the sources of the sub-topology
                    "state_bytes": sizes.get(task, 0),
                }
                for task in tasks
            ],
            "samples": [sample._asdict() for sample in self.application.samples(name)] if self.application else [],
        }

    def durability(self, report: ApplicationReport | None = None) -> dict[str, Any]:
        """Return what is durable, and an estimate of how long a restore would take."""
        snapshot, report = self.follower.snapshot, report or self.report()
        size = sum(snapshot.sizes.values())
        return {
            # The application may be one batch ahead of this copy.
            "delivered": min(snapshot.batch, snapshot.delivered if report.delivered is None else report.delivered),
            "batch": snapshot.batch,
            "epoch": snapshot.epoch,
            "clock": snapshot.clock,
            "checkpoint": snapshot.checkpoint,
            "place": self.follower.storage.describe(),
            "state_bytes": size,
            "tasks": {str(task): size for task, size in sorted(snapshot.sizes.items())},
            "restore_seconds": round(size / 50e6, 2),  # a restore reads and applies 50 MB of deltas a second
            "interval_ms": self.follower.history.interval(),
            **encode_slots(report.slots, report.moves, report.queued_slots),
            "sources": [source._asdict() for source in report.sources],
            "sinks": [sink._asdict() for sink in report.sinks],
        }


def list_topics(node: DescribedNode) -> list[str]:
    """Return the topics of a source, or the topic of a sink; none if a pattern or a function names them.

    >>> list_topics(DescribedNode("Source", "orders", "topics: [orders, returns]", (), ()))
    ['orders', 'returns']
    >>> list_topics(DescribedNode("Sink", "large", "topic: large", (), ()))
    ['large']
    """
    match node.kind:
        case "Source" if node.details.startswith("topics: ["):
            return node.details.removeprefix("topics: [").removesuffix("]").split(", ")
        case "Sink" if node.details.startswith("topic: "):
            return [node.details.removeprefix("topic: ")]
        case _:
            return []


def list_stores(node: DescribedNode) -> list[str]:
    """Return the stores of a processor.

    >>> list_stores(DescribedNode("Processor", "count", "stores: [counts]", (), ()))
    ['counts']
    """
    names = node.details.removeprefix("stores: [").removesuffix("]")
    return names.split(", ") if node.kind == "Processor" and names else []


def _draw_subtopologies(fingerprint: Fingerprint | None) -> list[dict[str, Any]]:
    """Return each sub-topology that a checkpoint describes as one node."""
    if fingerprint is None:
        return []
    return [
        {
            "id": group.number,
            "global": False,
            "nodes": [
                {
                    "kind": "Processor",
                    "name": f"sub-topology {group.number}",
                    "details": f"reads: {', '.join(group.reads)}",
                    "topics": list(group.reads),
                    "stores": [shape.name for shape in group.stores],
                    "to": [],
                    "from": [],
                }
            ],
        }
        for group in fingerprint.groups
    ]
