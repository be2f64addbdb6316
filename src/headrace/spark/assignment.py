"""Which slot runs which task, and which slots keep standbys: evenly, and so that a task stays where its state is.

    wanted = assign_tasks(tasks, slots, before, warm)
    places, warmups = wait_for_copies(wanted, ready)
    standbys = assign_standbys(places, hosts, replicas, before)

The tasks of every sub-topology are spread over the slots on their own, because the sub-topologies of a level run at
the same time: seven tasks on three slots are three, two and two. A task moves only if its slot is gone, or has more
than its share of them; it then goes to a slot that has a copy of its state, if one of these has room. If the slot that
is to get it has no copy, the task runs where one is, until its slot has made itself a copy (Kafka Streams: warm-up
replica).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping

from headrace.model.ids import TaskId


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

        # Where a slot has too many, those stay that have no copy of their state elsewhere.
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
    """Leaves tasks with slots that have their state until the slots that are to get them have it, too.

    `ready` are the slots that can run a task at once, each with the last batch in its copy. A task that is in none of
    them is new, or its state is nowhere but in the checkpoint: it goes where it is wanted. Returns the slots that run
    the tasks now, and the slots that make copies because they are to run tasks later.

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
