"""Which slots there are: registrations, leases, backoff, and old processes that come back."""

from __future__ import annotations

from headrace.spark.slot_registry import FIRST_BACKOFF, LONGEST_BACKOFF, Registration, SlotRegistry


def registry(slots: int = 2) -> SlotRegistry:
    some = SlotRegistry(lease=10.0)
    some.want(slots)
    return some


def registered(some: SlotRegistry, slot: int, now: float = 0.0) -> Registration:
    found = some.register(slot, "host", 7000 + slot, process=100 + slot, now=now)
    assert found is not None
    some.make_ready(found.number)
    return found


def test_the_job_of_a_wanted_slot_is_submitted_once():
    some = registry()
    assert some.to_submit(0.0) == [0, 1]
    assert some.to_submit(5.0) == []
    assert some.waiting == [0, 1]


def test_a_slot_that_is_not_heard_of_expires_and_a_heartbeat_keeps_it():
    some = registry(1)
    first = registered(some, 0, now=0.0)
    some.heard(first.number, now=8.0)
    assert some.expired(now=17.0) == []
    assert some.expired(now=18.5) == [first]


def test_a_driver_that_stood_still_does_not_take_it_for_the_silence_of_slots():
    registry = SlotRegistry(lease=10.0)
    registry.want(1)
    registry.register(0, "host", 7001, process=5, now=1.0)
    registry.extend_leases(30.0)
    assert registry.expired(now=41.0) == []
    assert [lost.slot for lost in registry.expired(now=41.1)] == [0]


def test_a_process_that_registers_again_replaces_its_predecessor():
    some = registry(1)
    old, new = registered(some, 0), registered(some, 0)
    assert old.number < new.number
    assert some.live == {0: new}
    some.heard(old.number, now=50.0)
    assert some.expired(now=50.0) == [new], "a heartbeat of the old process must not keep the new one alive"
    assert some.lose(old.number, now=1.0) is None
    assert some.live == {0: new}


def test_the_job_of_a_lost_slot_is_submitted_again_with_longer_and_longer_pauses():
    some, now, pauses = registry(1), 0.0, []
    for _ in range(9):
        some.to_submit(now)
        some.lose(registered(some, 0, now).number, now)
        some.end_job(0, now)
        due = some._slots[0].submit_at
        assert some.to_submit(due - 0.01) == []
        pauses.append(round(due - now, 3))
        now = due
    assert pauses[0] >= FIRST_BACKOFF
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_BACKOFF


def test_losses_are_forgotten_after_a_long_life():
    some = registry(1)
    for now in (0.0, 1.0, 2.0):
        some.lose(registered(some, 0, now).number, now)
    assert some.losses(0) == 3
    some.lose(registered(some, 0, 10.0).number, 1000.0)
    assert some.losses(0) == 1


def test_fewer_slots_are_drained_and_more_are_submitted():
    some = registry(2)
    some.to_submit(0.0)
    kept, drained = registered(some, 0), registered(some, 1)
    some.want(1)
    assert some.live == {0: kept}
    assert some.unwanted == [drained]
    some.lose(drained.number, 1.0)
    some.end_job(1, 1.0)
    assert some.register(1, "host", 7001, process=5, now=2.0) is None
    some.want(3)
    assert some.to_submit(3.0) == [1, 2]


def test_a_slot_that_registered_runs_tasks_when_it_is_ready():
    some = registry(1)
    found = some.register(0, "host", 7000, process=100, now=0.0)
    assert found is not None
    assert (some.live, some.waiting, some.registered(0)) == ({}, [0], found)
    some.make_ready(found.number)
    assert (some.live, some.waiting) == ({0: found}, [])


def test_a_slot_that_another_one_does_not_reach_twice_in_a_row_is_replaced():
    some = registry(2)
    first, second = registered(some, 0), registered(some, 1)
    assert some.fail_to_reach(first.number, 1, attempt=1) is None
    assert some.fail_to_reach(second.number, 0, attempt=1) is None, "both say so in the same attempt"
    some.reach_all()
    assert some.fail_to_reach(first.number, 1, attempt=3) is None, "a batch has run meanwhile"
    assert some.fail_to_reach(first.number, 1, attempt=4) == second
    again = registered(some, 1)
    assert some.fail_to_reach(first.number, 1, attempt=5) is None, "that is another process"
    assert some.live[1] == again


def test_a_slot_that_is_cut_off_from_several_is_replaced_though_it_complains_itself():
    some = registry(3)
    cut_off = registered(some, 0)
    registered(some, 1)
    registered(some, 2)
    assert some.fail_to_reach(cut_off.number, 1, attempt=1) is None
    assert some.fail_to_reach(cut_off.number, 2, attempt=2) is None
    assert some.fail_to_reach(cut_off.number, 2, attempt=3) == cut_off


def test_complaints_of_and_about_processes_that_are_gone_change_nothing():
    some = registry(2)
    first, second = registered(some, 0), registered(some, 1)
    some.lose(second.number, 1.0)
    for attempt in range(5):
        assert some.fail_to_reach(first.number, 1, attempt) is None
        assert some.fail_to_reach(second.number, 0, attempt) is None


def test_a_slot_is_unserved_from_the_submission_of_its_job_or_the_loss_of_its_process_on():
    some = registry(3)
    assert some.unserved(since=0.0) == [], "nothing is submitted yet"
    some.to_submit(1.0)
    assert (some.unserved(since=0.5), some.unserved(since=1.0)) == ([], [0, 1, 2])
    first = registered(some, 0, now=2.0)
    assert some.unserved(since=4.0) == [1, 2]
    some.lose(first.number, now=5.0)
    assert (some.unserved(since=4.0), some.unserved(since=5.0)) == ([1, 2], [0, 1, 2])
    some.end_job(0, now=6.0)
    assert some.unserved(since=7.0) == [1, 2], "it has no job"
    some.want(2)
    assert some.unserved(since=7.0) == [1]
