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
        due = some.next_submission()
        assert due is not None
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
