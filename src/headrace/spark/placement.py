"""Where tasks run, where their standbys are, and when they move: the part of the driver that places state.

    placement = Placement(stateful, replicas, last_change)
    placement.add_copies(registration, {task: batch, ...})     a slot has said which copies of state it has
    placement.assign(tasks, live)                              before every batch; True if slots must be told

A slot that is lost may come back before the next batch, on the same host or on another, with the state of its tasks or
without it. A slot that joins has nothing. Tasks go to such slots when these have made themselves
copies; until then they run where a copy is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from headrace.model.ids import TaskId
from headrace.spark.assignment import assign_standbys, assign_tasks, wait_for_copies
from headrace.spark.slot_registry import Registration

ACCEPTABLE_LAG = 100  # batches that a copy may be behind, so that its slot can run the task at once


class Placement:
    """The assignment in force. `last_change` says in which batch the state of a task changed last; -1 for none.

    >>> placement = Placement([TaskId(0, 0)], replicas=0, last_change=lambda task: 7)
    >>> first, second = Registration(0, 1, "a", 4000, 100), Registration(1, 2, "b", 4000, 100)
    >>> placement.assign([TaskId(0, 0)], {0: first}), placement.places[TaskId(0, 0)]
    (True, 0)
    >>> placement.assign([TaskId(0, 0)], {1: second}), placement.places[TaskId(0, 0)]
    (True, 1)
    >>> placement.moves
    1
    """

    def __init__(self, stateful: Collection[TaskId], replicas: int, last_change: Callable[[TaskId], int]) -> None:
        self._stateful, self._replicas, self._last_change = frozenset(stateful), replicas, last_change
        self.layout: dict[int, int] = {}  # registrations by slot, as all slots know them
        self.places: dict[TaskId, int] = {}
        self.standbys: dict[TaskId, tuple[int, ...]] = {}  # slots that keep copies, those that warm up among them
        self.moves = 0  # tasks that were given to another slot since the start
        self._warmups: dict[TaskId, int] = {}  # slots that are to run tasks, once they have copies of their state
        self._hosts: dict[int, str] = {}  # of the slots in the layout
        self._copies: dict[int, dict[TaskId, int]] = {}  # by registration: the last batch in its copies

    # ------------------------------------------------------------------------------------------------ what slots have
    def add_copies(self, registration: int, copies: Mapping[TaskId, int]) -> None:
        """A slot has copies of state, each with its last batch."""
        self._copies.setdefault(registration, {}).update(copies)

    def forget_copies(self, registration: int) -> None:
        """A slot is lost."""
        self._copies.pop(registration, None)

    def has_standbys(self, missing: Collection[int], live: Mapping[int, Registration]) -> bool:
        """Whether other slots can go on with the tasks of missing slots at once."""
        lost = [task for task, slot in self.places.items() if slot in missing and task in self._stateful]
        return self._replicas > 0 and all(
            any(slot in live and task in self._copies_of(live[slot]) for slot in self.standbys[task]) for task in lost
        )

    # ----------------------------------------------------------------------------------------------------- assignment
    def assign(self, tasks: Collection[TaskId], live: Mapping[int, Registration]) -> bool:
        """Assigns the tasks to the live slots. Returns whether anything has changed since the last call."""
        registrations = {slot: registration.number for slot, registration in live.items()}
        if registrations == self.layout and len(self.places) == len(tasks) and not self._is_warm(live):
            return False
        before = self.places
        self._place(tasks, live)
        self.moves += sum(before.get(task, slot) != slot for task, slot in self.places.items())
        self.layout = registrations
        self._hosts = {slot: registration.host for slot, registration in live.items()}
        self._place_standbys(before)
        return True

    def _place(self, tasks: Collection[TaskId], live: Mapping[int, Registration]) -> None:
        copies = {slot: self._copies_of(registration) for slot, registration in live.items()}
        warm = {task: {slot: some[task] for slot, some in copies.items() if task in some} for task in tasks}
        before: dict[TaskId, int] = {}
        ready: dict[TaskId, dict[int, int]] = {}
        for task in tasks:
            head = self._last_change(task)
            owner = live.get(self.places.get(task, -1))
            if task in self._stateful and head >= 0:
                ready[task] = {slot: number for slot, number in warm[task].items() if head - number <= ACCEPTABLE_LAG}
            if owner is not None and self._hosts.get(owner.slot) == owner.host:
                before[task] = owner.slot
                if task in ready and self.layout[owner.slot] == owner.number:  # slots of a host hand their copies over
                    ready[task] |= {slot: head for slot, some in live.items() if some.host == owner.host}
        self.places, self._warmups = wait_for_copies(assign_tasks(tasks, live.keys(), before, warm), ready)

    def _is_warm(self, live: Mapping[int, Registration]) -> bool:
        """Whether a slot has made itself a copy of a task that it is to run."""
        return any(
            self._last_change(task) - number <= ACCEPTABLE_LAG
            for task, slot in self._warmups.items()
            if (number := self._copies_of(live[slot]).get(task)) is not None
        )

    def _place_standbys(self, before: Mapping[TaskId, int]) -> None:
        places = {task: slot for task, slot in self.places.items() if task in self._stateful}
        had = {task: {*self.standbys.get(task, ()), before.get(task, places[task])} for task in places}
        found = assign_standbys(places, self._hosts, self._replicas, had)
        for task, slot in self._warmups.items():
            found[task] = (*found[task], *({slot} - set(found[task])))
        self.standbys = found

    # ---------------------------------------------------------------------------------------------------- what there is
    def tasks_of(self, slot: int) -> list[TaskId]:
        """The tasks that a slot runs."""
        return [task for task, at in self.places.items() if at == slot]

    def standbys_of(self, registration: Registration) -> dict[TaskId, int]:
        """The tasks that have a standby in a slot, with the number of batches that it is behind."""
        copies = self._copies_of(registration)
        return {
            task: max(0, self._last_change(task) - copies.get(task, -1))
            for task, slots in self.standbys.items()
            if registration.slot in slots
        }

    def _copies_of(self, registration: Registration) -> dict[TaskId, int]:
        return self._copies.get(registration.number, {})
