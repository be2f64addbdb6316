"""What the pages are about: one application, seen through a follower, and directly if it runs in this process."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.checkpoint.fingerprint import Fingerprint
from headrace.model.clock import Clock, SystemClock
from headrace.query.follower import Follower
from headrace.query.standby import state_of
from headrace.query.status import Observation, Observed, batches_of, status_of
from headrace.query.views import Snapshot
from headrace.topology.describe import TopologyDescription
from headrace.web.responses import masked


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one request may ask for."""

    rows: int = 10_000  # of a page
    page_bytes: int = 8 * 1024 * 1024
    stream_bytes: int = 1024 * 1024 * 1024
    seconds: float = 30.0
    body_bytes: int = 4096
    key_bytes: int = 16 * 1024
    listeners: int = 16  # to events, at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationView:
    """An application to be shown. `settings` are shown too, without the secrets among them."""

    follower: Follower
    observed: Observed | None = None
    topology: TopologyDescription | None = None
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    clock: Clock = field(default_factory=SystemClock)
    limits: Limits = field(default_factory=Limits)

    def observe(self) -> Observation:
        """What the application says; if it runs elsewhere, what its checkpoint tells."""
        if self.observed is not None:
            return self.observed.observe()
        follower = self.follower
        return Observation(state=state_of(follower.storage, follower.epoch, self.clock.now()))

    def status(self, seen: Observation | None = None) -> dict[str, Any]:
        shown = asdict(status_of(self.follower, seen or self.observe(), self.clock.now()))
        shown["verdict"] = masked(shown["verdict"])
        shown["error"] = None if shown["error"] is None else masked(shown["error"])
        return shown

    def stores(self) -> list[dict[str, Any]]:
        snapshot = self.follower.snapshot
        return [self.store(snapshot, name) for name in sorted(snapshot.catalog.shelves)]

    def store(self, snapshot: Snapshot, name: str) -> dict[str, Any]:
        shelf = snapshot.catalog.shelf(name)
        return {
            "name": name,
            "kind": shelf.kind,
            "key": shelf.key.name,
            "value": shelf.value.name,
            "global": shelf.is_global,
            "tasks": [str(task) for task in shelf.tasks],
            "entries": snapshot.count(name),
        }

    def batches(self, seen: Observation | None = None) -> list[dict[str, Any]]:
        return batches_of(self.follower, seen or self.observe())

    def graph(self) -> dict[str, Any]:
        """The topology, with what each node has taken in; from the checkpoint alone, its sub-topologies."""
        snapshot = self.follower.snapshot
        if self.topology is not None:
            return {**self.topology.as_dict(), "counts": dict(self.observe().nodes)}
        return {"subtopologies": _coarse(snapshot.fingerprint), "counts": {}}

    def dropped(self, seen: Observation) -> dict[int, dict[str, int]]:
        """Records that each sub-topology left out, by reason; what runs there is known by what its sources took in."""
        found: dict[int, dict[str, int]] = {}
        for group in self.topology.subtopologies if self.topology is not None else ():
            tasks = {task for node in group.nodes if node.kind == "Source" for task in seen.tasks.get(node.name, {})}
            reasons = sum((Counter(seen.dropped.get(task, {})) for task in tasks), Counter[str]())
            if reasons:
                found[group.number] = dict(sorted(reasons.items()))
        return found

    def node(self, name: str) -> dict[str, Any] | None:
        """A node with its tasks and the last records that went through it; None if there is none of that name."""
        groups = self.topology.subtopologies if self.topology is not None else ()
        group = next((group for group in groups if any(node.name == name for node in group.nodes)), None)
        if group is None:
            return None
        seen = self.observe()
        taken = [seen.tasks.get(node.name, {}) for node in group.nodes if node.kind == "Source"]
        own, tasks = seen.tasks.get(name, {}), sorted({task for some in taken for task in some})
        sizes = {str(task): size for task, size in self.follower.snapshot.sizes.items()}
        return {
            "name": name,
            "records": sum(own.values()) if own else None,  # they are counted at the edges only
            "tasks": [
                {
                    "task": task,
                    "records": own.get(task, 0) if own else None,
                    "taken": sum(some.get(task, 0) for some in taken),  # by all of its sub-topology
                    "state_bytes": sizes.get(task, 0),
                }
                for task in tasks
            ],
            "samples": [] if self.observed is None else [each._asdict() for each in self.observed.samples(name)],
        }

    def durability(self, seen: Observation | None = None) -> dict[str, Any]:
        """What would be lost, and how long it would take to be back: nothing, and about this long."""
        snapshot, seen = self.follower.snapshot, seen or self.observe()
        size = sum(snapshot.sizes.values())
        return {
            # The application may be a batch ahead of this copy.
            "delivered": min(snapshot.batch, snapshot.delivered if seen.delivered is None else seen.delivered),
            "batch": snapshot.batch,
            "epoch": snapshot.epoch,
            "clock": snapshot.clock,
            "checkpoint": snapshot.checkpoint,
            "place": masked(self.follower.storage.describe()),
            "state_bytes": size,
            "tasks": {str(task): bytes for task, bytes in sorted(snapshot.sizes.items())},
            "restore_seconds": round(size / 50e6, 2),  # 50 MB of deltas are read and applied in a second
            "interval_ms": self.follower.history.interval(),
        }


def _coarse(fingerprint: Fingerprint | None) -> list[dict[str, Any]]:
    """Sub-topologies as a checkpoint describes them: each one a node."""
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
                    "details": f"reads: {', '.join(group.reads)}; stores: [{', '.join(s.name for s in group.stores)}]",
                    "to": [],
                    "from": [],
                }
            ],
        }
        for group in fingerprint.groups
    ]
