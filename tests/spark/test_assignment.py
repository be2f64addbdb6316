"""Which slot runs which task: evenly, and with as few moves as that allows."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.model.ids import TaskId
from headrace.spark.placement import assign_standbys, assign_tasks

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
        assert {count // len(there), -(-count // len(there))} >= {some[slot] for slot in there}


@given(counts, slots, slots)
def test_slots_that_join_and_leave_one_after_the_other_leave_the_tasks_spread_evenly(partitions, before, after):
    found = assign_tasks(tasks_of(partitions), before)
    there = set(before)
    for slot in sorted(after - before):
        there.add(slot)
        found = assign_tasks(tasks_of(partitions), there, found)
    for slot in sorted(before - after):
        there.discard(slot)
        found = assign_tasks(tasks_of(partitions), there, found)
    for stage, count in enumerate(partitions):
        some = Counter(slot for task, slot in found.items() if task.subtopology == stage)
        assert {count // len(there), -(-count // len(there))} >= {some[slot] for slot in there}


@given(counts, slots, slots)
def test_as_few_tasks_move_as_an_even_spread_allows(partitions, before, after):
    tasks = tasks_of(partitions)
    first = assign_tasks(tasks, before)
    second = assign_tasks(tasks, after, first)
    assert assign_tasks(tasks, after, second) == second
    for stage, count in enumerate(partitions):
        had = Counter(slot for task, slot in first.items() if task.subtopology == stage)
        stay = sum(first[task] == second[task] for task in tasks if task.subtopology == stage)
        least, rest = divmod(count, len(after))
        shares = [least + 1] * rest + [least] * (len(after) - rest)
        assert stay == sum(map(min, sorted((had[slot] for slot in after), reverse=True), shares))


def test_without_slots_there_is_no_assignment():
    with pytest.raises(ValueError, match="no slot"):
        assign_tasks([TaskId(0, 0)], [])


def test_a_task_that_must_move_goes_to_the_slot_with_its_latest_copy():
    tasks = tasks_of([6])
    before = assign_tasks(tasks, [0, 1, 2])
    warm = {TaskId(0, 1): {0: 4, 2: 9}, TaskId(0, 4): {0: 8}, TaskId(0, 0): {2: 9}}
    found = assign_tasks(tasks, [0, 2], before, warm)
    assert {task: found[task] for task in warm} == {TaskId(0, 1): 2, TaskId(0, 4): 0, TaskId(0, 0): 0}


def test_of_too_many_tasks_those_move_that_have_a_copy_elsewhere():
    tasks = tasks_of([4])
    before = dict.fromkeys(tasks, 0)
    warm = {TaskId(0, 0): {1: 5}, TaskId(0, 2): {1: 5}}
    assert assign_tasks(tasks, [0, 1], before, warm) == {task: int(task in warm) for task in tasks}


def test_after_a_restart_tasks_go_to_the_hosts_that_have_their_state():
    tasks = tasks_of([4, 2])
    warm = {task: {task.partition % 2: 10} for task in tasks}  # slot 0 has the even partitions, slot 1 the odd ones
    assert assign_tasks(tasks, [0, 1], None, warm) == {task: task.partition % 2 for task in tasks}


hosts = st.dictionaries(st.integers(0, 7), st.sampled_from("abcd"), min_size=1)


@given(counts, hosts, st.integers(0, 3))
def test_standbys_are_on_other_hosts_or_in_other_slots_if_there_is_one_host(partitions, where, replicas):
    places = assign_tasks(tasks_of(partitions), where)
    found = assign_standbys(places, where, replicas)
    others = len(set(where.values())) - 1
    for task, slots in found.items():
        assert places[task] not in slots
        assert len(set(slots)) == len(slots) == min(replicas, others or len(where) - 1)
        if others:
            there = {where[slot] for slot in slots}
            assert len(there) == len(slots)
            assert where[places[task]] not in there


@given(counts, st.integers(2, 6))
@example([9, 8], 4)
def test_the_standbys_of_a_slot_are_spread_and_take_over_without_a_move_of_others(partitions, slots):
    tasks, where = tasks_of(partitions), dict.fromkeys(range(slots), "here")
    places = assign_tasks(tasks, where)
    standbys = assign_standbys(places, where, 1)
    left = set(where) - {0}
    warm = {task: dict.fromkeys(set(some) & left, 1) for task, some in standbys.items()}
    after = assign_tasks(tasks, left, places, warm)
    for task in tasks:
        if places[task] != 0:
            assert after[task] == places[task]
    for stage in range(len(partitions)):
        lost = [task for task in tasks if places[task] == 0 and task.subtopology == stage]
        kept = Counter(standbys[task][0] for task in lost)
        assert max(kept.values(), default=0) - min((kept[slot] for slot in left), default=0) <= 1


@given(counts, hosts, st.integers(1, 2))
def test_standbys_stay_where_they_are(partitions, where, replicas):
    places = assign_tasks(tasks_of(partitions), where)
    first = assign_standbys(places, where, replicas)
    assert assign_standbys(places, where, replicas, first) == first
