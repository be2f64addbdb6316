"""One attempt at a batch in the driver: which slots take part, what has come back, and how it ended.

An attempt has a number of its own, on its orders, its rows and its results; what carries another one is ignored. It
ends well when all slots have handed back their results. It is broken as soon as one slot is lost or cannot run it: then
nothing of it is committed, and the batch is planned again, as another attempt.

`BatchAttempt` is a state machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.spark.slot_messages import AtRecord, BatchBroken, BatchDone


@dataclass
class BatchAttempt:
    """`slots` are the registrations of the slots that take part, by slot.

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
    broken: str | None = None  # why it has to be planned again
    at: dict[int, AtRecord] = field(default_factory=dict[int, AtRecord])  # what slots said last, by registration
    suspect: AtRecord | None = None  # the call in which a slot was lost
    is_lost: bool = False  # a slot was lost

    def finish(self, registration: int, done: BatchDone) -> None:
        """A slot has run all of its levels."""
        slot = self._slot(registration)
        if done.attempt == self.number and slot is not None:
            self.results[slot] = done

    def fail(self, registration: int, message: BatchBroken) -> None:
        """A slot could not run the attempt."""
        slot = self._slot(registration)
        if message.attempt == self.number and slot is not None and not self.is_over:
            self.broken = message.reason

    def report(self, registration: int, message: AtRecord) -> None:
        """A slot is about to call a node."""
        if message.attempt == self.number:
            self.at[registration] = message

    def lose(self, registration: int) -> None:
        """A slot is gone. If it has handed back its results, it is not needed for the attempt any more."""
        slot = self._slot(registration)
        if slot is not None and slot not in self.results and self.broken is None:
            self.broken, self.is_lost = f"slot {slot} was lost", True
            self.suspect = self.at.get(registration)

    @property
    def is_over(self) -> bool:
        return self.broken is not None or self.results.keys() == self.slots.keys()

    @property
    def messages(self) -> list[bytes]:
        """What all slots have handed back."""
        return [raw for slot in sorted(self.results) for raw in self.results[slot].messages]

    @property
    def level_times(self) -> list[float]:
        """The ms that every level took, in the slot where it took longest."""
        return [max(some) for some in zip(*(done.levels for done in self.results.values()), strict=True)]

    @property
    def exchange_time(self) -> float:
        """The ms that the slots waited for rows of others, at the most."""
        return max((sum(done.waits) for done in self.results.values()), default=0.0)

    def _slot(self, registration: int) -> int | None:
        return next((slot for slot, number in self.slots.items() if number == registration), None)
