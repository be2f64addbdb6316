"""A simulated system behind a sink: it stores records together with the tokens of their batches, and loses answers.

The real `SinkDelivery` and `PartWriter` write to it, in the driver or in slots.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.errors import SinkUnavailableError
from headrace.model.sink import Sink, SinkBatch, SinkContext, SinkWriter
from tests.simulation.faults import Faults
from tests.simulation.scheduler import Scheduler

NAME = "target"


@dataclass(eq=False)
class Target:
    """What is stored: rows in the order in which they came, and the last batch of each part."""

    rows: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])
    tokens: dict[str, int] = field(default_factory=dict[str, int])
    scheduler: Scheduler | None = None  # these two are known when the run begins
    faults: Faults | None = None

    def store(self, batch: SinkBatch) -> None:
        """Stores what is new of a batch, in one transaction."""
        new = batch.without(self.tokens)
        self.rows += [(record.key, record.value) for record in new.records()]
        self.tokens |= dict.fromkeys(new.part_names, new.number)


@dataclass(frozen=True)
class SimulatedSink(Sink):
    """The sink as the topology has it."""

    target: Target
    guarantee = "atomic"

    def open(self, context: SinkContext) -> SinkWriter:
        return _Writer(self.target)


class _Writer(SinkWriter):
    def __init__(self, target: Target) -> None:
        self._target = target

    def _pass_time(self, what: str, fault: str) -> None:
        scheduler, faults = self._target.scheduler, self._target.faults
        assert scheduler is not None
        assert faults is not None
        process = scheduler.current.process
        process.check()
        scheduler.note(f"{process} {what}")
        is_slow = faults.happens("the sink is slow")
        process.sleep(scheduler.random.uniform(0.5, 15.0) if is_slow else scheduler.random.expovariate(500))
        if faults.happens(fault):
            raise SinkUnavailableError(f"{what}: {fault}")

    def write(self, batch: SinkBatch) -> int:
        what = f"writes {batch.part_names} of batch {batch.number}"
        self._pass_time(f"begins and {what}", "the sink fails")
        self._target.store(batch)
        self._pass_time(what, "the sink loses its answer")
        return len(batch)
