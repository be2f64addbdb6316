"""One attempt at a batch in the driver: which slots take part, which results have come back, and how it ended.

An attempt has a number, which its orders, rows and results carry; messages with another number are ignored. The attempt
succeeds when all slots have returned their results. It is broken as soon as one slot is lost or cannot run it: then
nothing of it is committed, and the batch is planned again, as another attempt.

`BatchAttempt` is a state machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.spark.slot_messages import AtRecord, BatchBroken, BatchDone


@dataclass
class BatchAttempt:
    """One attempt. `slots` has the registration of each slot that takes part, by slot.

    >>> attempt = BatchAttempt(3, {0: 11, 1: 12})
    >>> attempt.finish(11, BatchDone(3, [b"receipt"], [1.0], [0.0]))
    >>> attempt.is_over
    False
    >>> attempt.lose(12)
    >>> attempt.is_over, attempt.broken
    (True, 'slot 1 was lost')
    """

    number: int
    slots: Mapping[int, int]
    results: dict[int, BatchDone] = field(default_factory=dict[int, BatchDone])
    broken: str | None = None  # why the batch has to be planned again
    at: dict[int, AtRecord] = field(default_factory=dict[int, AtRecord])  # the last reports, by registration
    suspect: AtRecord | None = None  # the call in which a slot was lost
    is_lost: bool = False  # a slot was lost

    def finish(self, registration: int, done: BatchDone) -> None:
        """Takes the results of a slot that has run all of its levels."""
        slot = self._slot(registration)
        if done.attempt == self.number and slot is not None:
            self.results[slot] = done

    def fail(self, registration: int, message: BatchBroken) -> None:
        """Breaks the attempt, because a slot could not run it."""
        slot = self._slot(registration)
        if message.attempt == self.number and slot is not None and not self.is_over:
            self.broken = message.reason

    def report(self, registration: int, message: AtRecord) -> None:
        """Remembers that a slot is about to call a node."""
        if message.attempt == self.number:
            self.at[registration] = message

    def lose(self, registration: int) -> None:
        """Breaks the attempt, because a slot is gone, unless the slot has returned its results."""
        slot = self._slot(registration)
        if slot is not None and slot not in self.results and self.broken is None:
            self.broken, self.is_lost = f"slot {slot} was lost", True
            self.suspect = self.at.get(registration)

    @property
    def is_over(self) -> bool:
        return self.broken is not None or self.results.keys() == self.slots.keys()

    @property
    def messages(self) -> list[bytes]:
        """The messages that the slots have returned."""
        return [raw for slot in sorted(self.results) for raw in self.results[slot].messages]

    @property
    def level_times(self) -> list[float]:
        """The ms that every level took, in the slot where it took longest."""
        return [max(some) for some in zip(*(done.levels for done in self.results.values()), strict=True)]

    @property
    def exchange_time(self) -> float:
        """The ms that the slots waited for rows of others, in the slot that waited longest."""
        return max((sum(done.waits) for done in self.results.values()), default=0.0)

    def _slot(self, registration: int) -> int | None:
        return next((slot for slot, number in self.slots.items() if number == registration), None)
