"""The slots of an application as a whole: which are there, which tasks they run, and when to go on without some.

    group.register(hello, now)       a process serves a slot
    group.make_ready(number, …)      it has loaded the application, or has new copies of state
    group.lose(number, now)          it is gone
    group.lay_out(tasks, now)        before every batch: the messages that tell slots their tasks

`SlotGroup` is a state machine, like the `SlotRegistry` and the `Placement` that it consists of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.model.ids import TaskId
from headrace.spark.placement import Placement
from headrace.spark.slot_messages import Committed, Hello, Layout, LocalState, Peer, Stop, ToSlot
from headrace.spark.slot_registry import Registration, SlotRegistry

REPLACEMENT = 3.0  # seconds that tasks of a lost slot wait for it to come back, before other slots take them
FIRST_SLOTS = 10.0  # seconds that the first batch waits for all slots, once one is there

Messages = Sequence[tuple[int, ToSlot]]  # each with the registration of the slot that gets it


class SlotGroup:
    """The slots of an application. Times are seconds of any clock that never goes back.

    >>> group = SlotGroup(10.0, Placement([], replicas=0, last_change=lambda task: -1), committed=7)
    >>> group.registry.want(1)
    >>> group.lay_out([TaskId(0, 0)], now=0.0) is None
    True
    >>> registration, _ = group.register(Hello(0, "host", 7001, process=5), now=1.0)
    >>> group.make_ready(registration.number, LocalState([]), now=2.0)
    >>> [(number, type(message).__name__) for number, message in group.lay_out([TaskId(0, 0)], now=2.0)]
    [(1, 'Layout')]
    >>> group.lay_out([TaskId(0, 0)], now=3.0)
    []
    """

    def __init__(self, lease: float, placement: Placement, committed: int) -> None:
        self.registry, self.placement = SlotRegistry(lease), placement
        self._committed = committed  # the last batch
        self._first_at = self._lost_at = 0.0

    @property
    def has_started(self) -> bool:
        """True once a slot was ready."""
        return self._first_at > 0

    # ----------------------------------------------------------------------------------------------------- what happens
    def register(self, hello: Hello, now: float) -> tuple[Registration | None, Registration | None]:
        """Returns the registration of a process, None if it has to end; and the registration that it replaces."""
        before = self.registry.registered(hello.slot)
        registration = self.registry.register(hello.slot, hello.host, hello.port, hello.process, now)
        if registration is None or before is None:
            return registration, None
        self.placement.forget_copies(before.number)
        return registration, before

    def make_ready(self, number: int, state: LocalState, now: float) -> None:
        """Records which copies of tasks' state a slot has; the slot can run tasks from then on."""
        copies = {TaskId(stage, partition): batch for stage, partition, batch in state.copies}
        self.placement.add_copies(number, copies)
        self._first_at = self._first_at or now
        self.registry.make_ready(number)

    def lose(self, number: int, now: float) -> None:
        """Removes a registration whose process is gone, or counts as gone."""
        self.placement.forget_copies(number)
        self.registry.lose(number, now)
        self._lost_at = now

    def commit(self, number: int) -> Messages:
        """Records that a batch is committed. Returns messages to slots that bring their standbys to it."""
        self._committed = number
        self.registry.reach_all()
        if not any(self.placement.standbys.values()):
            return []
        return [(registration, Committed(number)) for registration in self.placement.layout.values()]

    # ----------------------------------------------------------------------------------------------------------- layout
    def lay_out(self, tasks: list[TaskId], now: float) -> Messages | None:
        """Assigns the tasks to the live slots. Returns the messages to slots if something has changed.

        Returns None while slots are expected, and it is better to wait for them.
        """
        live, placement = self.registry.live, self.placement
        if not self._is_settled(live, now):
            return None
        if not placement.assign(tasks, live):
            return []
        peers = [Peer(slot, some.number, some.host, some.port) for slot, some in live.items()]
        places = [(task.subtopology, task.partition, slot) for task, slot in placement.places.items()]
        standbys = [(task.subtopology, task.partition, at) for task, some in placement.standbys.items() for at in some]
        layout = Layout(peers, places, standbys, self._committed)
        return [
            *((registration.number, layout) for registration in live.values()),
            *((registration.number, Stop()) for registration in self.registry.unwanted),
        ]

    def _is_settled(self, live: Mapping[int, Registration], now: float) -> bool:
        """Whether the next batch can begin with the live slots, without waiting for others."""
        layout, waiting = self.placement.layout, self.registry.waiting
        if not live:
            return False
        if not layout:
            return not waiting or now - self._first_at > FIRST_SLOTS
        missing = layout.keys() - live.keys()
        expected = missing & set(waiting)
        return not expected or now - self._lost_at > REPLACEMENT or self.placement.has_standbys(missing, live)
