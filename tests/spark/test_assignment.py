"""Which slot runs which task: evenly, and with as few moves as that allows."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.ids import TaskId
from headrace.spark.assignment import assign_tasks

counts = st.lists(st.integers(1, 9), min_size=1, max_size=4)
slots = st.sets(st.integers(0, 7), min_size=1)


def tasks_of(partitions: list[int]) -> list[TaskId]:
    return [TaskId(stage, partition) for stage, count in enumerate(partitions) for partition in range(count)]


@given(counts, slots)
def test_the_tasks_of_every_subtopology_are_spread_evenly(partitions, there):
    found = assign_tasks(tasks_of(partitions), there)
    assert set(found) == set(tasks_of(partitions))
    for stage, count in enumerate(partitions):
        some = Counter(slot for task, slot in found.items() if task.subtopology == stage)
        assert some.keys() <= there
        assert max(some.values()) == -(-count // len(there))


@given(counts, slots, slots)
def test_a_task_moves_only_if_its_slot_is_gone_or_has_too_many(partitions, before, after):
    tasks = tasks_of(partitions)
    first = assign_tasks(tasks, before)
    second = assign_tasks(tasks, after, first)
    assert assign_tasks(tasks, after, second) == second
    for task in tasks:
        if first[task] in after and second[task] != first[task]:
            kept = [some for some in tasks if some.subtopology == task.subtopology and second[some] == first[task]]
            assert len(kept) == -(-partitions[task.subtopology] // len(after))


def test_without_slots_there_is_no_assignment():
    with pytest.raises(ValueError, match="no slot"):
        assign_tasks([TaskId(0, 0)], [])
