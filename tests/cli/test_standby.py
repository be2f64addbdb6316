"""`headrace run --standby`: who stands by takes over when the application is gone, and not before."""

from __future__ import annotations

import signal
import threading
from contextlib import nullcontext

import pytest

from headrace import Application, serde
from headrace.cli.standby import stand_by
from headrace.commit.errors import AlreadyRunningError
from headrace.commit.objects import Objects
from headrace.commit.owner import Holder, Ownership
from headrace.log import Producer, open_log
from headrace.model.clock import ManualClock
from headrace.query import Follower
from headrace.query.standing_by import Watcher, is_held, wait_for_turn
from tests.cli.commands import records, started
from tests.query.programs import every_kind, finished

COUNTING = """
from headrace import Application, StreamsBuilder, serde

def app():
    builder = StreamsBuilder()
    words = builder.stream("words", key=serde.STRING, value=serde.STRING)
    counts = words.group_by_key(key=serde.STRING, value=serde.STRING).count(store="counts")
    counts.to_stream().to("counts", value=serde.LONG)
    return Application("counting", builder.build(), "file:log", checkpoint="checkpoint", state_dir="state")
"""
ONE, OTHER = Holder("here", "machine", 1, "10"), Holder("here", "machine", 2, "20")


def running(storage, clock):
    return Ownership.claim(storage, clock, me=ONE, lease=3000, gone=lambda holder, me: False)


@pytest.fixture
def storage():
    return Objects.at("memory:///", {})


def test_a_checkpoint_is_free_before_the_first_instance_and_after_it_was_released(storage):
    clock = ManualClock(0)
    watcher = Watcher(clock=clock, me=OTHER, gone=lambda holder, me: False)
    assert not is_held(storage, watcher)
    owner = running(storage, clock)
    assert is_held(storage, watcher)
    owner.release()
    assert not is_held(storage, watcher)


def test_it_is_held_until_the_lease_after_the_last_sign_of_life_is_over(storage):
    clock = ManualClock(0)
    watcher = Watcher(clock=clock, me=OTHER, gone=lambda holder, me: False)
    owner = running(storage, clock)
    clock.advance(2000)
    owner.beat()
    clock.advance(2999)
    assert is_held(storage, watcher)
    with pytest.raises(AlreadyRunningError):
        running(storage, clock)
    clock.advance(1)
    assert not is_held(storage, watcher)
    assert running(storage, clock).epoch == 2
    assert is_held(storage, watcher)


def test_a_process_that_is_known_to_be_gone_holds_nothing(storage):
    running(storage, clock := ManualClock(0))
    assert not is_held(storage, Watcher(clock=clock, me=OTHER, gone=lambda holder, me: holder == ONE))


def test_who_waits_has_a_copy_of_the_stores_when_the_turn_comes():
    cluster = finished(limit=3)
    follower = Follower(cluster.storage)
    over = threading.Event()
    turns = []

    def gone(holder, me):
        """The owner is there at the first looks, and then it is not."""
        turns.append(follower.snapshot.batch)
        return len(turns) == 3

    watcher = Watcher(clock=cluster.ground.clock, me=OTHER, gone=gone)
    assert wait_for_turn(follower, over, watcher, look=0)
    assert turns == [cluster.coordinator.ledger.number] * 3
    assert follower.store("counts").get("k1").value == 5
    over.set()
    assert not wait_for_turn(follower, over, watcher, look=0)


def test_who_was_not_the_quickest_goes_on_standing_by(tmp_path, monkeypatch, capsys):
    app = Application("app", every_kind(), f"file:{tmp_path}/log", checkpoint=str(tmp_path / "checkpoint"))
    outcomes = [AlreadyRunningError("another one was quicker"), None]

    def run():
        if (error := outcomes.pop(0)) is not None:
            raise error

    monkeypatch.setattr(app, "run", run)
    stand_by(app, lambda follower, observed: nullcontext())
    assert outcomes == []
    assert capsys.readouterr().err == 2 * "app stands by. Ctrl-C ends it.\n"


def test_once_and_standby_contradict_each_other(headrace):
    outcome = headrace("run", "shop:app", "--once", "--standby")
    assert (outcome.code, "--once ends, and --standby waits" in outcome.err) == (2, True)


def send(place, *words):
    with Producer(f"file:{place}/log", key_serde=serde.STRING, value_serde=serde.STRING) as producer:
        for word in words:
            producer.send("words", word, word)


def counts(place, many):
    found = records(f"file:{place}/log", "counts", many)
    return sorted((record.key.decode(), serde.LONG.decode(record.value)) for record in found)


@pytest.mark.spark
def test_a_killed_application_is_taken_over_and_the_output_is_exact(tmp_path):
    (tmp_path / "counting.py").write_text(COUNTING)
    log = open_log(f"file:{tmp_path}/log")
    for topic in ("words", "counts"):
        log.create_topic(topic, 2)
    send(tmp_path, "a", "b")
    command = ("run", "counting:app", "--master", "local[1]")
    with started(*command, cwd=tmp_path) as first:
        assert counts(tmp_path, 2) == [("a", 1), ("b", 1)]
        with started(*command, "--standby", cwd=tmp_path) as second:
            assert second.stderr.readline() == "counting stands by. Ctrl-C ends it.\n"
            send(tmp_path, "a", "c")
            assert counts(tmp_path, 4) == [("a", 1), ("a", 2), ("b", 1), ("c", 1)]
            send(tmp_path, "b")  # before, while or after it is killed
            first.kill()
            first.wait()
            assert second.stderr.readline().startswith("counting has taken over after batch ")
            assert counts(tmp_path, 5) == [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1)]
            send(tmp_path, "a")
            assert counts(tmp_path, 6) == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("c", 1)]
            second.send_signal(signal.SIGTERM)
            assert second.communicate(timeout=60) == ("", "counting has stopped.\n")
        assert second.returncode == 0
    assert sum(extent.end for extent in log.extents(["counts"]).values()) == 6
    log.close()
