"""An instance that is overtaken in the middle of its start or of a commit. The simulation has found each of these."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.checkpoint import coordinator, recovery
from headrace.checkpoint.coordinator import CommitHooks, Coordinator
from headrace.checkpoint.files import MANIFESTS, manifest_name
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.ledger import manifest_numbers, read_ledger
from headrace.checkpoint.manifest import decode_manifest, encode_manifest
from headrace.checkpoint.receipt import Receipt, complete_receipt, new_attempt
from headrace.checkpoint.steps import MANIFEST, TAKEOVER
from headrace.checkpoint.storage import DiskStorage, ObjectStorage
from headrace.errors import CheckpointCorruptedError, FencedError, LogBusyError, ProducerFencedError
from headrace.model.ids import TaskId, TopicPartition
from headrace.model.threads import SystemThreads
from headrace.state.delta import Delta
from tests.checkpoint.cluster import ME, eager
from tests.checkpoint.memory_log import MemoryLog
from tests.clocks import ManualClock

OPTIONS = eager(keep=1, purge_every=1)


class Watched:
    """Something whose method calls a function, once, before or after it runs."""

    def __init__(self, inner: Any) -> None:
        self._inner, self._hooks = inner, dict[tuple[str, str], Any]()

    def once(self, when: str, method: str, call: Any) -> None:
        self._hooks[when, method] = call

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*given: Any, **named: Any) -> Any:
            self._hooks.pop(("before", name), lambda *_: None)(*given)
            result = found(*given, **named)
            self._hooks.pop(("after", name), lambda *_: None)(*given)
            return result

        return call


@pytest.fixture
def storage():
    return ObjectStorage.at("memory:///", {})


@pytest.fixture
def log():
    return MemoryLog()


class StandingThreads(SystemThreads):
    """Their clock stands still, so that time passes only by the clocks of the test."""

    now = 0.0

    def seconds(self) -> float:
        return self.now


def opened(
    storage: Any, log: Any, *, at_step=lambda moment: None, options=OPTIONS, clock=None, threads=None
) -> Coordinator:
    hooks = CommitHooks(
        clock=clock or ManualClock(),
        process=ME,
        has_exited=lambda holder, observer: True,
        at_step=at_step,
        threads=threads or StandingThreads(),
    )
    return Coordinator.open(storage, log, "app", Fingerprint((), (), {}), options=options, hooks=hooks)


OUTPUT: Any = ("t", 0, b"key", b"value", 5, (), ())


def commit(coordinator: Coordinator, storage: Any, outputs: Any = ()) -> None:
    """Commits a batch in which a task has written a file."""
    task, number = TaskId(0, 0), coordinator.number
    base = coordinator.ledger.head(task).version
    receipt = Receipt(task=task, level=0, number=number, attempt=new_attempt(), base=base)
    delta = Delta(receipt.version, ((b"key", b"%d" % number),))
    coordinator.commit(number, 0, [complete_receipt(storage, receipt, delta, outputs, {}, lambda _: 1, inline=0)])


def test_an_owner_that_was_overtaken_during_its_takeover_does_not_go_on(storage, log):
    later: list[Coordinator] = []

    def overtake(moment: str) -> None:
        if moment == f"before {TAKEOVER}" and not later:
            later.append(opened(storage, log))

    with pytest.raises(FencedError, match="another instance has taken over"):
        opened(storage, log, at_step=overtake)
    commit(later[0], storage)
    assert [read_ledger(storage, number).epoch for number in manifest_numbers(storage)] == [2]


def test_the_previous_owner_may_deliver_and_commit_while_the_next_one_reads_the_marker(storage, log):
    owner = opened(storage, log)
    watched = Watched(log)
    watched.once("after", "delivered", lambda application: [commit(owner, storage) for _ in range(3)])
    with opened(storage, watched) as second:
        assert second.ledger.delivered == 3
        commit(second, storage)
    assert log.delivered("app") == 5


@pytest.mark.parametrize("batches", [0, 1])
def test_the_previous_owner_may_purge_the_state_that_the_next_one_brings_to_a_new_form(
    storage, log, monkeypatch, batches
):
    owner = opened(storage, log)

    def carry_over(*_given: Any, **_named: Any) -> None:
        monkeypatch.undo()
        for _ in range(batches):
            commit(owner, storage)
        raise CheckpointCorruptedError("a file is missing", file="deltas/0_0/1")

    monkeypatch.setattr(coordinator, "carry_over", carry_over)
    if batches:
        with opened(storage, log) as second:
            assert second.number == 3
    else:  # nobody has committed: the file is really missing
        with pytest.raises(CheckpointCorruptedError, match="a file is missing"):
            opened(storage, log)


def test_a_broker_that_has_just_started_may_show_an_earlier_marker_for_a_moment(storage, log):
    owner = opened(storage, log)
    for _ in range(3):
        commit(owner, storage)
    marker, log.markers["app"] = log.markers["app"], 0
    watched, looks = Watched(log), list[str]()

    def look(application: str) -> None:
        looks.append(application)
        if len(looks) == 3:
            log.markers["app"] = marker
        watched.once("after", "delivered", look)

    watched.once("after", "delivered", look)
    with opened(storage, watched, options=replace(OPTIONS, marker_timeout_ms=60_000)) as second:
        assert second.ledger.delivered == 3
        assert len(looks) == 5


def test_the_owner_may_purge_the_manifests_that_a_starting_instance_reads(storage, log):
    owner = opened(storage, log)
    commit(owner, storage)
    watched, purged = Watched(storage), manifest_name(1)

    def go_on(prefix: str = "") -> None:
        if prefix == MANIFESTS:
            commit(owner, storage)
        else:
            watched.once("after", "names", go_on)

    watched.once("after", "names", go_on)
    with opened(watched, log) as second:
        assert purged not in storage.names()
        assert second.ledger.head(TaskId(0, 0)).version is not None


@pytest.mark.parametrize("suspended", ["when it creates the manifest", "before that", ""])
def test_a_manifest_that_was_purged_and_is_created_again_by_a_replaced_owner_does_no_harm(storage, log, suspended):
    watched, clock, names = Watched(storage), ManualClock(), list[str]()
    steps = Watched(SimpleNamespace(reach=lambda moment: None))
    options = replace(OPTIONS, max_undelivered=2, purge_delay_ms=2_000)
    zombie = opened(watched, log, clock=clock, options=options, at_step=steps.reach)
    commit(zombie, watched)
    zombie.drain()

    def overtake_at(moment: str) -> None:
        if moment == f"before {MANIFEST}":
            overtake(manifest_name(zombie.number), b"")
        else:
            steps.once("before", "reach", overtake_at)

    def overtake(name: str, data: bytes) -> None:
        """Takes over, commits and purges while the other owner is about to create its manifest."""
        if not name.startswith(MANIFESTS):
            watched.once("before", "create", overtake)
            return
        owner = opened(storage, log)
        for _ in range(4):
            commit(owner, storage)
        names.extend(storage.names())
        assert name not in names
        clock.advance(zombie._options.lease_ms if suspended else 0)

    if suspended == "before that":
        steps.once("before", "reach", overtake_at)
    else:
        watched.once("before", "create", overtake)
    if suspended:
        with pytest.raises(FencedError):
            commit(zombie, watched)
    else:
        commit(zombie, watched)
    assert set(names) <= set(storage.names())
    with opened(storage, log) as again:
        commit(again, storage)


@pytest.mark.parametrize("seconds", [0.0, 2.0])
def test_an_owner_is_fenced_whose_lease_counts_as_expired_because_another_clock_is_ahead(storage, log, seconds):
    """It was never suspended, and its lease has just begun. The other owner purges the number that it creates next."""
    options, threads = replace(OPTIONS, purge_delay_ms=2_000), StandingThreads()
    owner = opened(storage, log, options=options, threads=threads)
    commit(owner, storage)
    later = opened(storage, log, options=options, threads=threads)
    threads.now += seconds
    for _ in range(4):
        commit(later, storage)
    assert (manifest_name(owner.number) in storage.names()) == (seconds < 2)
    with pytest.raises(FencedError, match="another instance has taken over"):
        commit(owner, storage)
    commit(later, storage)


def test_an_owner_that_was_suspended_before_it_links_its_manifest_is_fenced(log, tmp_path, monkeypatch):
    storage, clock, link = DiskStorage(tmp_path), ManualClock(), os.link
    zombie = opened(storage, log, clock=clock)
    commit(zombie, storage)

    def overtake(draft, target):
        if target.parent.name != "manifests":
            return link(draft, target)
        monkeypatch.undo()
        owner = opened(storage, log)
        for _ in range(4):
            commit(owner, storage)
        assert not draft.exists()
        clock.advance(zombie._options.lease_ms)
        return link(draft, target)

    monkeypatch.setattr(os, "link", overtake)
    with pytest.raises(FencedError, match="another instance has taken over"):
        commit(zombie, storage)
    with opened(storage, log) as again:
        commit(again, storage)


def test_an_instance_that_was_suspended_after_it_read_the_checkpoint_does_not_take_over(storage, log, monkeypatch):
    owner, clock = opened(storage, log), ManualClock()
    commit(owner, storage)
    recover, claimed = recovery.recover_ledger, list[str]()

    def recover_and_suspend(*given: Any) -> Any:
        ledger = recover(*given)
        if claimed:
            monkeypatch.undo()
            overtake()
        return ledger

    def overtake() -> None:
        """Takes over, commits, and purges the number that the other instance is about to create."""
        later = opened(storage, log)
        for _ in range(4):
            commit(later, storage)
        assert manifest_name(owner.number) not in storage.names()
        clock.advance(OPTIONS.lease_ms)

    monkeypatch.setattr(recovery, "recover_ledger", recover_and_suspend)
    with pytest.raises(FencedError, match="another instance has taken over"):
        opened(storage, log, clock=clock, at_step=claimed.append)
    with opened(storage, log) as again:
        commit(again, storage)


def test_an_owner_that_wakes_up_between_its_records_and_their_marker_does_not_move_the_marker_back(storage, log):
    """With the guarantee "at least once" records and marker are two steps."""
    options, watched, later = replace(OPTIONS, exactly_once=False), Watched(log), list[Coordinator]()
    owner = opened(storage, watched, options=options)

    def overtake(application: str, number: int, *rest: Any) -> None:
        assert number == owner.ledger.number
        later.append(opened(storage, log, options=options))
        for _ in range(2):
            commit(later[0], storage)

    for method in ("begin_delivery", "mark_delivered"):  # whichever of them sets the marker
        watched.once("before", method, overtake)
    with pytest.raises(ProducerFencedError):
        commit(owner, storage)
    assert log.delivered("app") == later[0].ledger.number == 4
    later[0].close()
    with opened(storage, log, options=options) as again:
        commit(again, storage)


def test_an_instance_that_is_overtaken_while_it_catches_up_does_not_take_the_checkpoint_for_damaged(storage):
    log = MemoryLog(t=1)
    away, watched = Watched(log), Watched(storage)

    def refuse(*given: Any) -> None:
        away.once("before", "begin_delivery", refuse)
        raise LogBusyError("the log does not answer")

    owner = opened(storage, away)
    commit(owner, storage, [OUTPUT])
    away.once("before", "begin_delivery", refuse)
    with pytest.raises(LogBusyError):
        commit(owner, storage, [OUTPUT])

    def overtake(name: str, *rest: Any) -> None:
        """Another instance delivers, and purges, what this one is about to read."""
        if not name.startswith("outboxes/"):
            watched.once("before", "read", overtake)
            return
        with opened(storage, log) as later:
            commit(later, storage)
            commit(later, storage)
        assert name not in storage.names()

    watched.once("before", "read", overtake)
    with pytest.raises(FencedError, match="another instance has taken over"):
        opened(watched, log)
    assert len(log.rows[TopicPartition("t", 0)]) == 2


def test_a_broker_that_has_just_started_may_hide_the_delivery_of_a_batch_whose_outbox_is_purged(storage):
    log = MemoryLog(t=1)
    owner = opened(storage, log)
    commit(owner, storage, [OUTPUT])
    (outbox,) = storage.names("outboxes/")
    storage.delete(outbox)  # as the purge after the next batch does
    watched, looks = Watched(log), list[str]()
    marker, log.markers["app"] = log.markers["app"], 0

    def look(application: str) -> None:
        looks.append(application)
        if len(looks) == 4:
            log.markers["app"] = marker
        watched.once("after", "delivered", look)

    watched.once("after", "delivered", look)
    with opened(storage, watched, options=replace(OPTIONS, marker_timeout_ms=60_000)) as second:
        commit(second, storage, [OUTPUT])
    assert len(log.rows[TopicPartition("t", 0)]) == 2


def test_an_instance_with_an_old_list_of_manifests_may_meet_one_that_a_replaced_owner_has_created_again(storage, log):
    options = replace(OPTIONS, keep=2)
    owner = opened(storage, log, options=options)
    for _ in range(3):
        commit(owner, storage)
    watched, name = Watched(storage), manifest_name(2)
    replaced, _ = decode_manifest(storage.read(name), name)

    def go_on(prefix: str = "") -> None:
        if prefix != MANIFESTS:
            watched.once("after", "names", go_on)
            return
        commit(owner, storage)
        assert name not in storage.names()
        storage.create(name, encode_manifest(replace(replaced, clock=replaced.clock + 1)))

    watched.once("after", "names", go_on)
    with opened(watched, log, options=options) as second:
        assert second.ledger.number == 5
