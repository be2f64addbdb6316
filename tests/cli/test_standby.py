"""`headrace run --standby`: who stands by takes over when the application is gone, and not before."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest

from headrace import Application
from headrace.checkpoint.ownership import LeaseHolder, Ownership
from headrace.checkpoint.storage import ObjectStorage
from headrace.cli.run import run_standby
from headrace.errors import AlreadyRunningError
from headrace.query import Follower
from headrace.query.standby import OwnerCheck, wait_for_takeover
from tests.clocks import ManualClock
from tests.query.programs import every_kind, finished

ONE, OTHER = LeaseHolder("here", "machine", 1, "10"), LeaseHolder("here", "machine", 2, "20")


def running(storage, clock):
    return Ownership.claim(storage, clock, process=ONE, lease_ms=3000, has_exited=lambda holder, observer: False)


@pytest.fixture
def storage():
    return ObjectStorage.at("memory:///", {})


def test_a_checkpoint_is_free_before_the_first_instance_and_after_it_was_released(storage):
    clock = ManualClock(0)
    check = OwnerCheck(clock=clock, this_process=OTHER, process_gone=lambda holder, me: False)
    assert not check.is_owned(storage)
    owner = running(storage, clock)
    assert check.is_owned(storage)
    owner.release()
    assert not check.is_owned(storage)


def test_it_is_held_until_the_lease_after_the_last_sign_of_life_is_over(storage):
    clock = ManualClock(0)
    check = OwnerCheck(clock=clock, this_process=OTHER, process_gone=lambda holder, me: False)
    owner = running(storage, clock)
    clock.advance(2000)
    owner.renew()
    clock.advance(2999)
    assert check.is_owned(storage)
    with pytest.raises(AlreadyRunningError):
        running(storage, clock)
    clock.advance(1)
    assert not check.is_owned(storage)
    assert running(storage, clock).epoch == 2
    assert check.is_owned(storage)


def test_a_process_that_is_known_to_be_gone_holds_nothing(storage):
    running(storage, clock := ManualClock(0))
    check = OwnerCheck(clock=clock, this_process=OTHER, process_gone=lambda holder, me: holder == ONE)
    assert not check.is_owned(storage)


def test_who_waits_has_a_copy_of_the_stores_when_the_turn_comes():
    cluster = finished(limit=3)
    follower = Follower(cluster.storage)
    over = threading.Event()
    turns = []

    def gone(holder, me):
        """The owner is there at the first looks, and then it is not."""
        turns.append(follower.snapshot.batch)
        return len(turns) == 3

    check = OwnerCheck(clock=cluster.ground.clock, this_process=OTHER, process_gone=gone)
    assert wait_for_takeover(follower, over, check, interval=0)
    assert turns == [cluster.coordinator.ledger.number] * 3
    assert follower.store("counts").get("k1").value == 5
    over.set()
    assert not wait_for_takeover(follower, over, check, interval=0)


def test_who_was_not_the_quickest_goes_on_standing_by(tmp_path, monkeypatch, capsys):
    app = Application("app", every_kind(), f"file:{tmp_path}/log", checkpoint=str(tmp_path / "checkpoint"))
    outcomes = [AlreadyRunningError("another one was quicker"), None]

    def run():
        if (error := outcomes.pop(0)) is not None:
            raise error

    monkeypatch.setattr(app, "run", run)
    run_standby(app, lambda follower, running: nullcontext())
    assert outcomes == []
    assert capsys.readouterr().err == 2 * "app stands by. Ctrl-C ends it.\n"


def test_once_and_standby_contradict_each_other(headrace):
    outcome = headrace("run", "shop:app", "--once", "--standby")
    assert (outcome.code, "--once ends, and --standby waits" in outcome.err) == (2, True)
