"""A follower's copy is the state as of one batch, whatever happens to the checkpoint meanwhile."""

import threading
from types import SimpleNamespace

import pytest

from headrace import Application
from headrace.checkpoint.compaction import CompactionPolicy
from headrace.checkpoint.storage import ObjectStorage
from headrace.errors import CheckpointCorruptedError, CheckpointMismatchError
from headrace.query import (
    BatchNotKeptError,
    Follower,
    KeyQuery,
    Position,
    PositionNotReachedError,
    RangeQuery,
    StoreNotReadyError,
)
from headrace.query.replica import DiskReplica
from tests.checkpoint.cluster import Cluster, eager
from tests.checkpoint.programs import CONFIG, WORDS, Program
from tests.clocks import ManualClock
from tests.query.programs import ONE, ROWS, SHOWN, THREE, every_kind, feed, finished, started


@pytest.fixture(params=["in memory", "on disk"])
def follow(request, tmp_path):
    """Makes followers, which have their copies in memory or on disk."""
    made = []

    def follow(storage, *given, **options):
        where = tmp_path / f"copy-{len(made)}"
        replica = DiskReplica(where, boot="now", map_size=1 << 24) if request.param == "on disk" else None
        made.append(Follower(storage, *given, replica=replica, **options))
        return made[-1]

    yield follow
    for follower in made:
        follower.close()


def tables(snapshot):
    """Everything in all stores."""
    return {name: list(snapshot.store(name).all()) for name in SHOWN if name != "versions"}


def whole_state(cluster):
    """The state of every task as the checkpoint has it, read from nothing."""
    return {task: entries for task, entries in cluster.stores().items() if entries}


def held(follower):
    found = {task: list(at.scan(b"", None)) for task, at in follower.refresh().replicas.items()}
    return {task: entries for task, entries in found.items() if entries}


def test_a_copy_that_goes_on_batch_by_batch_equals_one_made_from_nothing(follow):
    cluster = started(limit=2)
    follower = follow(cluster.storage)
    while cluster.run_batch():
        assert held(follower) == whole_state(cluster)
        assert tables(follower.snapshot) == tables(Follower(cluster.storage).refresh())


@pytest.mark.slow
@pytest.mark.parametrize("seldom", [2, 7, 11])
def test_a_copy_that_is_refreshed_seldom_catches_up_though_deltas_were_merged_and_files_deleted(follow, seldom):
    cluster = started(
        rows=ROWS * 4, limit=1, options=eager(compaction=CompactionPolicy(max_deltas=2, min_bytes=10, max_age=2))
    )
    follower = follow(cluster.storage)
    while cluster.run(seldom) == seldom:
        assert held(follower) == whole_state(cluster)


def test_manifests_that_do_not_say_all_are_added_up(follow):
    cluster = started(rows=ROWS * 2, limit=1, options=eager(full_up_to=0))
    follower = follow(cluster.storage)
    while cluster.run(3) == 3:
        assert held(follower) == whole_state(cluster)
        assert follower.snapshot.position.offsets == dict(cluster.coordinator.ledger.positions)


def test_only_deltas_that_are_new_are_read(follow):
    read = list[str]()

    class Watched(ObjectStorage):
        def read(self, name, start=0, size=None):
            if size is not None:
                read.append(name)
            return super().read(name, start, size)

    cluster = started(ONE, storage=Watched.at("memory:///", {}), limit=1)
    cluster.run(3)
    follower = follow(cluster.storage)
    follower.refresh()
    read.clear()
    follower.refresh()
    assert read == []
    cluster.run(1)
    follower.refresh()
    assert set(read) == {f"manifests/{cluster.coordinator.ledger.number:012}"}


def test_what_is_held_does_not_change_when_the_copy_goes_on(follow):
    cluster = started(limit=1)
    cluster.run(3)
    follower = follow(cluster.storage)
    before = follower.refresh()
    begun = before.store("counts").all()
    first = next(begun)
    expected = tables(Follower(cluster.storage).refresh())
    cluster.run()
    assert follower.refresh().batch > before.batch
    assert [first, *begun] == expected["counts"]
    assert tables(before) == expected


def test_the_last_batches_can_be_asked_for_by_number_from_memory_or_from_the_checkpoint(follow):
    cluster = started(limit=1, options=eager(keep=10))
    follower = follow(cluster.storage)
    seen = {}
    while cluster.run_batch():
        snapshot = follower.refresh()
        seen[snapshot.batch] = tables(snapshot)
    late = Follower(cluster.storage)
    for batch in sorted(seen)[-5:]:
        assert tables(follower.snapshot_at(batch)) == tables(late.snapshot_at(batch)) == seen[batch]
        assert follower.query("counts", KeyQuery("k1"), as_of=batch).position.batch == batch


def test_a_batch_that_is_gone_or_has_not_happened_is_refused(follow):
    cluster = finished(limit=1)
    follower = follow(cluster.storage)
    with pytest.raises(BatchNotKeptError, match="not kept any more"):
        follower.query("counts", KeyQuery("k1"), as_of=1)
    with pytest.raises(BatchNotKeptError, match="has not happened"):
        follower.query("counts", KeyQuery("k1"), as_of=10_000)


def test_an_answer_that_would_be_too_old_is_refused(follow):
    cluster = started(limit=1)
    cluster.run(2)
    follower = follow(cluster.storage)
    result = follower.query("counts", KeyQuery("k1"))
    assert follower.query("counts", KeyQuery("k1"), at_least=result.position).position == result.position
    with pytest.raises(PositionNotReachedError) as caught:
        follower.query("counts", KeyQuery("k1"), at_least=result.position.batch + 1)
    assert caught.value.retriable
    further = Position(result.position.batch, {at: end + 1 for at, end in result.position.offsets.items()})
    with pytest.raises(PositionNotReachedError):
        follower.query("counts", KeyQuery("k1"), at_least=further)
    cluster.run(1)
    assert follower.query("counts", KeyQuery("k1"), at_least=result.position.batch + 1).position.batch > 0


def test_without_a_batch_nothing_is_ready(follow):
    follower = follow(ObjectStorage.at("memory:///", {}))
    with pytest.raises(StoreNotReadyError, match="no batch yet"):
        follower.query("counts", KeyQuery("k1"))


def test_a_checkpoint_that_is_created_again_is_followed_from_nothing(follow):
    cluster = finished(limit=1)
    follower = follow(cluster.storage)
    assert follower.refresh().store("counts").get("k1").value > 1
    for name in cluster.storage.names():
        cluster.storage.delete(name)
    cluster.ground.log.mark_delivered("app", None)
    fresh = Cluster(cluster.ground, THREE, limit=1)
    fresh.run(2)
    assert held(follower) == whole_state(fresh)
    assert follower.snapshot.checkpoint == fresh.checkpoint


def test_another_topology_than_the_checkpoints_is_refused(follow):
    cluster = finished()
    with pytest.raises(CheckpointMismatchError, match="of another topology"):
        follow(cluster.storage, WORDS.build(), CONFIG).refresh()


def test_damage_is_told_and_the_copy_stays_as_it_was(follow):
    cluster = started(ONE, limit=1, options=eager(keep=100, purge_every=1000))
    cluster.run(4)
    clock = ManualClock(5_000)
    follower = follow(cluster.storage, clock=clock)
    before = follower.refresh().batch
    cluster.run(1)
    name = f"manifests/{before + 1:012}"
    whole = cluster.storage.read(name)
    cluster.storage.delete(name)
    cluster.storage.create(name, whole[:-3])
    clock.advance(1_000)
    with pytest.raises(CheckpointCorruptedError):
        follower.refresh()
    assert follower.snapshot.batch == before
    assert follower.freshness.age(clock.now()) == 1_000
    assert name in (follower.freshness.error or "")
    cluster.storage.delete(name)
    cluster.storage.create(name, whole)
    assert follower.refresh().batch == before + 1
    assert follower.freshness.error is None


def test_with_the_number_of_the_last_batch_at_hand_nothing_is_read_when_nothing_is_new(follow):
    cluster = finished()
    listed = list[str]()
    names = cluster.storage.names
    follower = follow(cluster.storage, latest=lambda: cluster.coordinator.ledger.number)
    follower.refresh()
    cluster.storage.names = lambda prefix="": listed.append(prefix) or names(prefix)  # type: ignore[method-assign]
    assert follower.store("counts").get("k1").value == 5
    assert listed == []


def test_no_thread_ever_sees_part_of_a_batch(follow):
    """Every batch moves a unit from one key to another, on different partitions: the sum is always the same."""
    program = Program(every_kind, {"lines": [], "states": []}, partitions=3)
    cluster = started(program, rows=[], limit=100)
    keys = [f"k{number}" for number in range(12)]
    feed(cluster.log, [(key, "x") for key in keys])
    cluster.run()
    follower = follow(cluster.storage)
    expected = {follower.refresh().batch: 1}
    torn, over = list[object](), threading.Event()

    def ask() -> None:
        while not over.is_set():
            found = follower.query("counts", RangeQuery())
            counts = {count for _, count in found.result}
            if len(counts) != 1:  # all keys are counted once in every batch
                torn.append((found.position, counts))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for batch in range(25):
        feed(cluster.log, [(key, "x") for key in keys])
        cluster.run()
        expected[cluster.coordinator.ledger.number] = batch + 2
    over.set()
    for thread in threads:
        thread.join()
    assert torn == []
    assert follower.store("counts").get("k0").value == 26


def test_a_thread_follows_and_says_when_a_batch_is_there(follow):
    cluster = started(limit=1)
    cluster.run(1)
    follower = follow(cluster.storage)
    with follower.following(interval=1):
        assert follower.wait_for(cluster.coordinator.ledger.number, timeout=60_000)
        cluster.run(2)
        assert follower.wait_for(cluster.coordinator.ledger.number, timeout=60_000)
    assert follower.snapshot.batch == cluster.coordinator.ledger.number


def test_the_history_says_how_many_records_each_batch_read(follow):
    cluster = started(ONE, limit=2)
    follower = follow(cluster.storage)
    while cluster.run_batch():
        follower.refresh()
    batches = follower.history.batches()
    assert [note.number for note in batches] == list(range(1, len(batches) + 1))
    read = [follower.history.records(note.number) for note in batches[1:]]
    assert read == [{"lines": 2, "states": 2}] * len(read)
    assert follower.history.rate(batches[-1].clock)["lines"] == pytest.approx(len(read) * 2 / 10)


def test_a_store_that_an_application_gave_is_that_of_whatever_run_there_is(tmp_path):
    app = Application("app", every_kind(), f"file:{tmp_path}/log")
    first, second = finished(rows=ROWS[:7]), finished()
    app._run = SimpleNamespace(follower=Follower(first.storage))  # type: ignore[assignment]
    counts = app.store("counts")
    assert counts.get("k1").value == 1
    app._run = SimpleNamespace(follower=Follower(second.storage))  # type: ignore[assignment]
    assert counts.get("k1").value == 5
