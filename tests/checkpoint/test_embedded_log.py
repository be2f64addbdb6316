"""The same on the embedded log: what is delivered and that it was delivered are one transaction."""

from __future__ import annotations

import threading

import pytest

from headrace.checkpoint.coordinator import CommitHooks, Coordinator
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.steps import BATCH, DELIVERY, MANIFEST, MARKER
from headrace.checkpoint.storage import open_storage
from headrace.errors import ProducerFencedError
from headrace.log.chunk_format import pack
from headrace.log.embedded.file_log import FileLog
from headrace.log.protocol import Log, Records
from headrace.model.ids import TopicPartition
from tests.checkpoint.cluster import ME, Cluster, Ground, Killed, Killer, eager, outputs, run_to_end
from tests.checkpoint.programs import TAGS, WORDS, Program
from tests.clocks import ManualClock


def filled(place, program: Program) -> FileLog:
    log = FileLog(place / "log", clock=ManualClock(5), clean_every=None)
    log.create_topic("lines")
    log.create_topic("out")
    program.feed(log)
    return log


@pytest.fixture(scope="module")
def undisturbed():
    ground = Ground(log=WORDS.log(), storage=open_storage("memory:///"))
    cluster = run_to_end(ground, WORDS)
    assert [row[1:4] for row in outputs(ground.log)["out", 0]] == WORDS.expected()
    return outputs(ground.log), cluster.stores()


def test_it_is_a_log_that_a_coordinator_can_deliver_to(tmp_path):
    log: Log = FileLog(tmp_path / "log", clean_every=None)
    hooks = CommitHooks(clock=ManualClock(), process=ME)
    storage = open_storage(tmp_path / "checkpoint")
    with Coordinator.open(storage, log, "app", Fingerprint((), (), {}), hooks=hooks) as coordinator:
        coordinator.commit(1, 0, [])
    assert log.delivered("app") == 1
    log.close()


@pytest.mark.parametrize("step", [step for step in BATCH if step in {MANIFEST, DELIVERY, MARKER}])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_killed_host_goes_on_where_it_was(when, step, tmp_path, undisturbed):
    with filled(tmp_path, WORDS) as log:
        ground = Ground(log=log, storage=open_storage(tmp_path / "checkpoint"), state=tmp_path / "state")
        killer = Killer(f"{when} {step}", 2, 3)
        cluster = run_to_end(ground, WORDS, killer)
        assert killer.landed == 2
        assert (outputs(log), cluster.stores()) == undisturbed
        cluster.close()


def test_committed_outputs_are_what_is_delivered(tmp_path):
    with filled(tmp_path, TAGS) as log:
        ground = Ground(log=log, storage=open_storage(tmp_path / "checkpoint"))
        cluster = Cluster(ground, TAGS, limit=2, at_step=Killer(f"before {DELIVERY}", 3))
        with pytest.raises(Killed):
            cluster.run()
        cluster.kill()
        (committed,) = cluster.coordinator.ledger.outboxes[cluster.coordinator.number - 1]
        raw = ground.storage.read(committed.blob.name, committed.blob.offset, committed.blob.size)
        Cluster(ground, TAGS).kill()
        written = outputs(log)["out", 0]
        last = [row[1:] for row in written[-2:]]
        assert pack(Records.from_rows(last)) in raw


def test_the_one_before_may_still_be_delivering_while_it_is_followed(tmp_path):
    """It was slow, not dead: each of its batches arrives once, from either instance."""
    with filled(tmp_path, WORDS) as log:
        ground = Ground(log=log, storage=open_storage(tmp_path / "checkpoint"), state=tmp_path / "state")
        go, caught = threading.Event(), []
        slow = Ground(log=Slow(log, go), storage=ground.storage, clock=ground.clock)
        zombie = Cluster(slow, WORDS, limit=1, options=eager(max_undelivered=3))
        zombie.run(3)

        def hurry(moment):
            if moment == f"before {DELIVERY}" and not go.is_set():
                go.set()
                caught.append(zombie.coordinator.drain())

        owner = Cluster(ground, WORDS, limit=1, at_step=hurry)
        owner.run()
        assert caught == [None]
        assert [row[2] for row in outputs(log)["out", 0]].count(b"A B A") == 1
        assert len(outputs(log)["out", 0]) == 22
        with pytest.raises(ProducerFencedError):
            log.deliver("app", 2, [(TopicPartition("out", 0), Records([b"k"], [b"v"], [1]))])
        zombie.kill()
        owner.close()


class Slow:
    """A log that delivers only when it is told to."""

    def __init__(self, log: FileLog, go: threading.Event) -> None:
        self._log, self._go = log, go

    def __getattr__(self, name):
        return getattr(self._log, name)

    def begin_delivery(self, application, number, items):
        if number:
            self._go.wait()
        return self._log.begin_delivery(application, number, items)
