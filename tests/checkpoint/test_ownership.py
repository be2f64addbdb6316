"""One instance runs on a checkpoint; the next one comes when it is gone."""

import os
import subprocess
import sys
import threading

import pytest

from headrace.checkpoint.ownership import LeaseHolder, Ownership, has_exited, this_process
from headrace.checkpoint.storage import DiskStorage, ObjectStorage
from headrace.errors import AlreadyRunningError, FencedError
from tests.clocks import ManualClock

HERE, THERE = LeaseHolder("one", "m1", 11, "t1"), LeaseHolder("two", "m2", 22, "t2")
LEASE = 900


@pytest.fixture(params=["disk", "objects"])
def storage(request, tmp_path):
    return DiskStorage(tmp_path) if request.param == "disk" else ObjectStorage.at("memory:///", {})


@pytest.fixture
def clock():
    return ManualClock(1_000_000)


def claim(storage, clock, me=THERE, has_exited=lambda holder, observer: False, **more) -> Ownership:
    return Ownership.claim(storage, clock, process=me, lease_ms=LEASE, has_exited=has_exited, **more)


def test_a_second_instance_is_refused_while_the_first_is_alive(storage, clock):
    claim(storage, clock, HERE)
    clock.advance(300)
    with pytest.raises(AlreadyRunningError) as caught:
        claim(storage, clock)
    assert "another instance runs on" in str(caught.value)
    assert "process 11 on one, 300 ms ago" in str(caught.value)
    assert "this works in 600 ms" in str(caught.value)
    assert caught.value.retriable


def test_an_instance_that_is_silent_for_its_lease_may_be_followed(storage, clock):
    assert claim(storage, clock, HERE).epoch == 1
    clock.advance(LEASE)
    assert claim(storage, clock).epoch == 2


def test_signs_of_life_keep_others_away(storage, clock):
    first = claim(storage, clock, HERE)
    for _ in range(20):
        clock.advance(LEASE // 2)
        first.renew()
        with pytest.raises(AlreadyRunningError):
            claim(storage, clock)
    assert len(storage.names("owners/")) == 2
    clock.advance(LEASE)
    assert claim(storage, clock).epoch == 2


def test_signs_of_life_are_not_given_more_often_than_needed(storage, clock):
    first = claim(storage, clock, HERE)
    for _ in range(100):
        clock.advance(2)
        first.renew()
    assert len(storage.names("owners/")) == 1


def test_an_instance_that_was_stopped_may_be_followed_at_once(storage, clock):
    claim(storage, clock, HERE).release()
    assert claim(storage, clock).epoch == 2


def test_a_process_that_is_known_to_be_gone_may_be_followed_at_once(storage, clock):
    claim(storage, clock, HERE)
    asked = []
    claim(storage, clock, has_exited=lambda holder, observer: not asked.append((holder, observer)))
    assert asked == [(HERE, THERE)]


def test_one_that_was_followed_learns_it_from_its_next_sign_of_life(storage, clock):
    first = claim(storage, clock, HERE)
    clock.advance(LEASE)
    claim(storage, clock)
    with pytest.raises(FencedError, match="another instance has taken over"):
        first.renew()


def test_of_two_that_come_at_once_one_is_refused(storage, clock):
    barrier, epochs, refused = threading.Barrier(6), [], []

    def come(number):
        barrier.wait()
        try:
            epochs.append(claim(storage, clock, LeaseHolder("x", "m", number, "t")).epoch)
        except AlreadyRunningError as error:
            refused.append(error)

    threads = [threading.Thread(target=come, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert epochs == [1]
    assert len(refused) == 5


def test_epochs_go_on_from_the_manifests_if_the_files_are_gone(storage, clock):
    claim(storage, clock, HERE)
    for name in storage.names("owners/"):
        storage.delete(name)
    assert claim(storage, clock, last_epoch=7).epoch == 8


@pytest.mark.parametrize("damage", [b"", b"x", b"HRW1 and then nonsense"])
def test_a_damaged_sign_of_life_is_none(storage, clock, damage, caplog):
    claim(storage, clock, HERE)
    storage.delete("owners/000000000001")
    storage.create("owners/000000000001", damage)
    assert claim(storage, clock).epoch == 2
    assert "owners/000000000001" in caplog.text


def test_earlier_epochs_are_forgotten(storage, clock):
    first = claim(storage, clock, HERE)
    clock.advance(LEASE // 2)
    first.renew()
    first.release()
    second = claim(storage, clock)
    second.delete_earlier_epochs()
    assert storage.names("owners/") == ["owners/000000000002"]


# ------------------------------------------------------------------------------------------------------- processes
def test_we_know_ourselves_and_are_not_gone():
    me = this_process()
    assert me.process == os.getpid()
    assert not has_exited(me, me)


def test_a_process_that_ended_is_gone_and_one_that_runs_is_not():
    program = "import sys; from headrace.checkpoint.ownership import this_process"
    code = f"{program}; print(tuple(this_process())); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin
        assert child.stdout
        holder = LeaseHolder(*eval(child.stdout.readline()))  # noqa: S307
        assert not has_exited(holder, this_process())
        child.stdin.close()
        child.wait()
    assert has_exited(holder, this_process())


def test_of_other_machines_nothing_is_known():
    me = this_process()
    assert not has_exited(me._replace(machine="another", process=999_999_999), me)
    assert not has_exited(me._replace(machine=""), me._replace(machine=""))


def test_a_number_that_was_given_to_another_process_is_no_sign_of_life():
    me = this_process()
    assert has_exited(me._replace(started="long ago"), me)
