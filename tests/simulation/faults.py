"""Which faults happen: a seed decides, and a run may allow fewer of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.simulation.scheduler import Scheduler

# What may happen, and how often of 1,000 times that it could, at most.
KINDS = {
    "kill a driver": 0,  # these come from `Chaos`, which kills, pauses and moves clocks now and then
    "kill a slot": 0,
    "stop the machine": 0,
    "pause a process": 0,
    "move a clock": 0,
    "kill at a step": 25,
    "pause before a manifest": 60,
    "storage fails": 12,
    "storage loses its answer": 12,
    "storage asks twice": 30,  # a client that got no answer repeats its request, which then finds its own file
    "storage is slow": 20,
    "log fails": 10,
    "log loses its answer": 10,
    "log is slow": 20,
    "a share outlives its driver": 40,  # it is slow, and its slot does not learn that the driver is gone
    "the sink fails": 80,
    "the sink loses its answer": 100,
    "the sink is slow": 20,
    "rows are lost": 80,  # a connection between slots breaks
    "the end of a transaction is delayed": 60,
    "the broker aborts a transaction": 30,
    "the broker loses an answer": 30,
    "the broker is busy": 30,
    "restart the broker": 0,
    "change the number of slots": 0,
}


class Faults:
    """Decides for every operation whether it fails. `most` faults happen in a run, of kinds not in `without`."""

    def __init__(self, scheduler: Scheduler, most: int, without: Iterable[str] = ()) -> None:
        self._scheduler, self.most, self.without = scheduler, most, frozenset(without)
        self.happened = Counter[str]()
        # A run has some kinds of faults and lacks others: where all happen, none gets far.
        random = scheduler.random
        self._rates = {kind: rate / 1000 * random.choice([0, 0.3, 1, 1]) for kind, rate in KINDS.items()}

    @property
    def are_over(self) -> bool:
        return self.happened.total() >= self.most

    def happens(self, kind: str, rate: float | None = None) -> bool:
        chance = self._rates[kind] if rate is None else rate
        drawn = self._scheduler.random.random()
        if drawn >= chance or self.are_over or kind in self.without:
            return False
        self.happened[kind] += 1
        return True
