"""Which slot runs which task: evenly, and so that a task stays where its state is.

    assign_tasks(tasks, slots, before)

The tasks of every sub-topology are spread over the slots on their own, because the sub-topologies of a level run at
the same time. A task moves only if its slot is gone, or has more of them than others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from headrace.model.ids import TaskId


def assign_tasks(
    tasks: Iterable[TaskId], slots: Collection[int], before: Mapping[TaskId, int] | None = None
) -> dict[TaskId, int]:
    """Assigns every task to one of the slots. `before` is the assignment that was in force, if there was one.

    >>> tasks = [TaskId(0, 0), TaskId(0, 1), TaskId(1, 0), TaskId(1, 1)]
    >>> first = assign_tasks(tasks, [0, 1])
    >>> {str(task): slot for task, slot in first.items()}
    {'0_0': 0, '0_1': 1, '1_0': 0, '1_1': 1}
    >>> assign_tasks(tasks, [0], first)[TaskId(1, 1)]
    0
    >>> assign_tasks(tasks, [0, 1, 2], first) == first
    True
    """
    if not slots:
        raise ValueError("no slot is there to run tasks")
    before = before or {}
    by_subtopology: dict[int, list[TaskId]] = defaultdict(list)
    for task in tasks:
        by_subtopology[task.subtopology].append(task)
    total = dict.fromkeys(sorted(slots), 0)
    found: dict[TaskId, int] = {}
    for some in by_subtopology.values():
        most = -(-len(some) // len(total))
        here = dict.fromkeys(total, 0)
        moving: list[TaskId] = []
        for task in some:
            slot = before.get(task)
            if slot is not None and here.get(slot, most) < most:
                found[task] = slot
                here[slot] += 1
                total[slot] += 1
            else:
                moving.append(task)
        for task in moving:
            slot = min(total, key=lambda slot: (here[slot], total[slot], slot))
            found[task] = slot
            here[slot] += 1
            total[slot] += 1
    return {task: found[task] for some in by_subtopology.values() for task in some}
