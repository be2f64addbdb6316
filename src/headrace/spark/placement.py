"""Which slot runs which task: where tasks run, where their standbys are, and when they move.

    group = SlotGroup(lease, Placement(stateful, replicas, last_change), committed)
    group.register(hello, now)       a process serves a slot
    group.make_ready(number, …)      it has loaded the application, or has new copies of state
    group.lose(number, now)          it is gone
    group.lay_out(tasks, now)        before every batch: the messages that tell slots their tasks

`Placement` assigns tasks to slots. The tasks of every sub-topology are spread over the slots on their own, because the
sub-topologies of a level run at the same time: seven tasks on three slots are three, two and two. A task moves only if
its slot is gone, or has more than its share of tasks. It then goes to a slot that has a copy of its state, if such a
slot has room.

`SlotGroup` decides when: which slots a batch waits for, and when it goes on without them. A slot that is lost may come
back before the next batch, on the same host or on another, with the state of its tasks or without it. A slot that joins
has no state. A task moves to a slot without its state only after that slot has made a copy (Kafka Streams: warm-up
replica); until then the task runs in a slot that has a copy.

Both are state machines, as is the `SlotRegistry`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from headrace.model.ids import TaskId
from headrace.spark.slot_messages import Committed, Hello, Layout, LocalState, Peer, Stop, ToSlot
from headrace.spark.slot_registry import Registration, SlotRegistry

ACCEPTABLE_LAG = 100  # batches that a copy may be behind, so that its slot can run the task at once
REPLACEMENT = 3.0  # seconds that tasks of a lost slot wait for it to come back, before other slots take them
FIRST_SLOTS = 10.0  # seconds that the first batch waits for all slots, once one is there

Messages = Sequence[tuple[int, ToSlot]]  # each with the registration of the slot that gets it


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
        self.standbys: dict[TaskId, tuple[int, ...]] = {}  # slots that keep copies, including those that warm up
        self.moves = 0  # tasks that were given to another slot since the start
        self._warmups: dict[TaskId, int] = {}  # slots that are to run tasks, once they have copies of their state
        self._hosts: dict[int, str] = {}  # of the slots in the layout
        self._copies: dict[int, dict[TaskId, int]] = {}  # by registration: the last batch in its copies

    # ------------------------------------------------------------------------------------------------ what slots have
    def add_copies(self, registration: int, copies: Mapping[TaskId, int]) -> None:
        """Records which copies of state a slot has, each with its last batch."""
        self._copies.setdefault(registration, {}).update(copies)

    def forget_copies(self, registration: int) -> None:
        """Forgets the copies of a slot that is lost."""
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
        """Whether a slot has made a copy of the state of a task that it is to run."""
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


# --------------------------------------------------------------------------------------------- how tasks are spread
def assign_tasks(
    tasks: Iterable[TaskId],
    slots: Collection[int],
    before: Mapping[TaskId, int] | None = None,
    warm: Mapping[TaskId, Mapping[int, int]] | None = None,
) -> dict[TaskId, int]:
    """Assigns every task to one of the slots. `before` is the assignment that was in force, if there was one.

    `warm` are the slots that have a copy of a task's state, each with the last batch in its copy.

    >>> tasks = [TaskId(0, 0), TaskId(0, 1), TaskId(1, 0), TaskId(1, 1)]
    >>> first = assign_tasks(tasks, [0, 1])
    >>> {str(task): slot for task, slot in first.items()}
    {'0_0': 0, '0_1': 1, '1_0': 0, '1_1': 1}
    >>> assign_tasks(tasks, [0], first)[TaskId(1, 1)]
    0
    >>> assign_tasks(tasks, [0, 1, 2], first) == first
    True
    >>> assign_tasks(tasks, [0, 2, 3], first, warm={TaskId(1, 1): {3: 7}})[TaskId(1, 1)]
    3
    """
    if not slots:
        raise ValueError("no slot is there to run tasks")
    before, warm = before or {}, warm or {}
    by_subtopology: dict[int, list[TaskId]] = defaultdict(list)
    for task in tasks:
        by_subtopology[task.subtopology].append(task)
    total = dict.fromkeys(sorted(slots), 0)
    found: dict[TaskId, int] = {}
    for some in by_subtopology.values():
        least, rest = divmod(len(some), len(total))  # `rest` slots have one more than `least`
        here = dict.fromkeys(total, 0)

        def has_room(slot: int | None, least: int = least, rest: int = rest, here: dict[int, int] = here) -> bool:
            if slot not in here or here[slot] > least:
                return False
            return here[slot] < least or sum(count > least for count in here.values()) < rest

        def place(task: TaskId, slot: int, here: dict[int, int] = here) -> None:
            found[task] = slot
            here[slot] += 1
            total[slot] += 1

        # If a slot has too many tasks, the tasks that have no copy of their state elsewhere stay.
        for task in sorted(some, key=lambda task: any(slot != before.get(task) for slot in warm.get(task, {}))):
            slot = before.get(task)
            if slot is not None and has_room(slot):
                place(task, slot)
        for task in (task for task in some if task not in found):
            copies = {slot: number for slot, number in warm.get(task, {}).items() if has_room(slot)}
            if copies:
                place(task, min(copies, key=lambda slot: (-copies[slot], here[slot], total[slot], slot)))
        for task in (task for task in some if task not in found):
            place(task, min(total, key=lambda slot: (here[slot], total[slot], slot)))
    return {task: found[task] for some in by_subtopology.values() for task in some}


def wait_for_copies(
    wanted: Mapping[TaskId, int], ready: Mapping[TaskId, Mapping[int, int]]
) -> tuple[dict[TaskId, int], dict[TaskId, int]]:
    """Keeps each task in a slot that has its state until the slot that is to run it has made a copy.

    `ready` are the slots that can run a task at once, each with the last batch in its copy. A task without such a slot
    is new, or its state is only in the checkpoint: it goes to the wanted slot at once. Returns the slots that run the
    tasks now, and the slots that make copies because they are to run tasks later.

    >>> places, warmups = wait_for_copies({TaskId(0, 0): 1, TaskId(0, 1): 1}, {TaskId(0, 0): {0: 7}})
    >>> {str(task): slot for task, slot in places.items()}, {str(task): slot for task, slot in warmups.items()}
    ({'0_0': 0, '0_1': 1}, {'0_0': 1})
    """
    places, warmups = dict(wanted), dict[TaskId, int]()
    total = Counter(wanted.values())
    for task, slot in wanted.items():
        copies = ready.get(task, {})
        if copies and slot not in copies:
            places[task] = min(copies, key=lambda at: (-copies[at], total[at], at))
            warmups[task] = slot
            total[places[task]] += 1
            total[slot] -= 1
    return places, warmups


def assign_standbys(
    places: Mapping[TaskId, int],
    hosts: Mapping[int, str],
    replicas: int,
    before: Mapping[TaskId, Collection[int]] | None = None,
) -> dict[TaskId, tuple[int, ...]]:
    """Chooses the slots that keep standbys of each task, at most `replicas` of them.

    `places` are the slots that run the tasks, `hosts` the hosts of all slots, and `before` the slots that have copies
    already. Standbys are on hosts other than the task's own, one on each: there are fewer than `replicas` if there are
    not enough hosts. If all slots are on one host, standbys are in other slots there.

    >>> hosts = {0: "a", 1: "a", 2: "b", 3: "b"}
    >>> standbys = assign_standbys({TaskId(0, 0): 0, TaskId(0, 1): 2}, hosts, replicas=1)
    >>> {str(task): slots for task, slots in standbys.items()}
    {'0_0': (2,), '0_1': (0,)}
    >>> assign_standbys({TaskId(0, 0): 0}, {0: "a", 1: "a"}, replicas=3)[TaskId(0, 0)]
    (1,)
    """
    before = before or {}
    one_host = len(set(hosts.values())) == 1
    tasks: dict[int, int] = defaultdict(int)  # of each sub-topology
    for task in places:
        tasks[task.subtopology] += 1
    total, here = defaultdict[int, int](int), defaultdict[tuple[int, int], int](int)
    for_owner = defaultdict[tuple[int, int, int], int](int)
    found: dict[TaskId, tuple[int, ...]] = {}
    for task, owner in places.items():
        chosen: list[int] = []
        used = set[str]() if one_host else {hosts[owner]}
        stage = task.subtopology
        most = -(-tasks[stage] * replicas // len(hosts))
        for _ in range(replicas):
            others = [slot for slot in sorted(hosts) if slot not in (owner, *chosen) and hosts[slot] not in used]
            if not others:
                break
            # The standbys of one slot's tasks are spread over the others, which then share its work when it is lost.
            # That may give a slot one more than its share.
            slot = min(
                others,
                key=lambda slot: (
                    here[stage, slot] > most,
                    slot not in before.get(task, ()),
                    for_owner[stage, owner, slot],
                    here[stage, slot],
                    total[slot],
                ),
            )
            chosen.append(slot)
            total[slot] += 1
            here[stage, slot] += 1
            for_owner[stage, owner, slot] += 1
            if not one_host:
                used.add(hosts[slot])
        found[task] = tuple(chosen)
    return found
