"""Where tasks run while slots are lost, come back and join."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.model.ids import TaskId
from headrace.spark.placement import ACCEPTABLE_LAG, Placement
from headrace.spark.slot_registry import Registration

TASKS = [TaskId(0, partition) for partition in range(4)]
HEAD = 1000  # the batch in which the state of every task changed last


class Cluster:
    """Slots on hosts, and the placement of four tasks with state."""

    def __init__(self, *hosts: str, replicas: int = 0, head: int = HEAD) -> None:
        self.placement = Placement(TASKS, replicas, lambda task: head)
        self.live: dict[int, Registration] = {}
        self.registrations = 0
        for slot, host in enumerate(hosts):
            self.join(slot, host)
        self.placement.assign(TASKS, self.live)

    def join(self, slot: int, host: str, copies: dict[TaskId, int] | None = None) -> None:
        """A process registers for a slot, and says which copies of state it has found."""
        self.registrations += 1
        self.live[slot] = Registration(slot, self.registrations, host, 4000, 100)
        self.have(slot, copies or {})

    def have(self, slot: int, copies: dict[TaskId, int]) -> None:
        self.placement.add_copies(self.live[slot].number, copies)

    def lose(self, slot: int) -> None:
        self.placement.forget_copies(self.live.pop(slot).number)

    def places(self) -> list[int]:
        self.placement.assign(TASKS, self.live)
        return [self.placement.places[task] for task in TASKS]


def test_a_slot_that_comes_back_without_its_state_gets_its_tasks_when_it_has_copied_it():
    cluster = Cluster("a", "a", replicas=1)
    assert cluster.places() == [0, 1, 0, 1]
    cluster.have(0, dict.fromkeys([TASKS[1], TASKS[3]], HEAD))
    cluster.lose(1)
    cluster.join(1, "a")
    assert cluster.places() == [0, 0, 0, 0]
    assert all(1 in cluster.placement.standbys[task] for task in TASKS)
    cluster.have(1, {TASKS[3]: HEAD - ACCEPTABLE_LAG - 1})
    assert cluster.places() == [0, 0, 0, 0], "its copy is too old"
    cluster.have(1, {TASKS[1]: HEAD, TASKS[3]: HEAD - ACCEPTABLE_LAG})
    assert cluster.places() == [0, 1, 0, 1]
    assert cluster.placement.moves == 4


def test_a_slot_that_comes_back_and_finds_its_state_keeps_its_tasks():
    cluster = Cluster("a", "b", replicas=1)
    cluster.have(0, dict.fromkeys([TASKS[1], TASKS[3]], HEAD))
    cluster.lose(1)
    cluster.join(1, "b", dict.fromkeys([TASKS[1], TASKS[3]], HEAD))
    assert cluster.places() == [0, 1, 0, 1]
    assert cluster.placement.moves == 0


def test_a_slot_that_comes_back_gets_its_tasks_at_once_if_nobody_has_their_state():
    cluster = Cluster("a", "b")
    cluster.lose(1)
    cluster.join(1, "b")
    assert cluster.places() == [0, 1, 0, 1]


def test_a_slot_that_joins_on_another_host_warms_up_before_it_gets_tasks():
    cluster = Cluster("a")
    cluster.join(1, "b")
    assert cluster.places() == [0, 0, 0, 0]
    waiting = [task for task in TASKS if cluster.placement.standbys[task] == (1,)]
    assert len(waiting) == 2, "no standbys are configured: the slot copies what it is to run, and no more"
    cluster.have(1, {waiting[0]: HEAD})
    assert Counter(cluster.places()) == {0: 3, 1: 1}
    cluster.have(1, {waiting[1]: HEAD})
    assert Counter(cluster.places()) == {0: 2, 1: 2}
    assert not any(cluster.placement.standbys.values())
    assert not cluster.placement.assign(TASKS, cluster.live)


def test_a_slot_that_joins_on_the_same_host_gets_tasks_at_once():
    cluster = Cluster("a")
    cluster.join(1, "a")
    assert Counter(cluster.places()) == {0: 2, 1: 2}


def test_tasks_without_state_do_not_wait():
    cluster = Cluster("a", head=-1)
    cluster.join(1, "b")
    assert Counter(cluster.places()) == {0: 2, 1: 2}


@given(st.lists(st.tuples(st.sampled_from(["join", "lose", "copy"]), st.integers(0, 3), st.sampled_from("abc"))))
def test_every_task_always_runs_in_a_live_slot_and_in_the_end_evenly(events):
    cluster = Cluster("a", "b", replicas=1)
    for kind, slot, host in events:
        if kind == "join":
            if slot in cluster.live:
                cluster.lose(slot)
            cluster.join(slot, host)
        elif kind == "lose" and slot in cluster.live and len(cluster.live) > 1:
            cluster.lose(slot)
        elif kind == "copy" and slot in cluster.live:
            cluster.have(slot, cluster.placement.standbys_of(cluster.live[slot]) and dict.fromkeys(TASKS, HEAD))
        assert set(cluster.places()) <= cluster.live.keys()
    for _ in range(len(TASKS)):
        for slot, registration in cluster.live.items():
            cluster.have(slot, dict.fromkeys(cluster.placement.standbys_of(registration), HEAD))
        cluster.places()
    spread = Counter(cluster.places())
    assert {spread[slot] for slot in cluster.live} <= {
        len(TASKS) // len(cluster.live),
        -(-len(TASKS) // len(cluster.live)),
    }
    assert not cluster.placement.assign(TASKS, cluster.live)
