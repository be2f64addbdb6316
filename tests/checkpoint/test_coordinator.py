"""Who may commit, what is refused, and what goes on beside the batches."""

import threading

import pytest

from headrace import StreamsBuilder, serde
from headrace.checkpoint.coordinator import CommitHooks, CommitOptions, Coordinator
from headrace.checkpoint.files import manifest_name
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.ledger import manifest_numbers, read_manifest
from headrace.checkpoint.manifest import Changelog
from headrace.checkpoint.steps import TAKEOVER
from headrace.checkpoint.storage import ObjectStorage, open_storage
from headrace.config import Config
from headrace.errors import AlreadyRunningError, FencedError, LogBusyError, LogUnavailableError, UnknownTopicError
from headrace.errors import ProducerFencedError as FencedByLog
from headrace.model.ids import TopicPartition
from headrace.serde import STRING
from tests.checkpoint.cluster import ME, Cluster, Ground, Killer, eager, outputs, run_to_end
from tests.checkpoint.memory_log import MemoryLog
from tests.checkpoint.programs import WORDS, Program
from tests.clocks import ManualClock

NOTHING = Fingerprint((), (), {})


@pytest.fixture
def ground(tmp_path):
    return Ground(log=WORDS.log(), storage=open_storage(tmp_path / "checkpoint"), state=tmp_path / "state")


def opened(
    storage, log=None, *, has_exited=True, application="app", fingerprint=NOTHING, options=None, clock=None, **more
):
    hooks = CommitHooks(clock=clock or ManualClock(), process=ME, has_exited=lambda holder, observer: has_exited)
    return Coordinator.open(
        storage, log or MemoryLog(), application, fingerprint, options=options or eager(), hooks=hooks, **more
    )


# -------------------------------------------------------------------------------------------------------- who commits
def test_a_second_instance_is_refused_and_does_the_first_no_harm(ground):
    with opened(ground.storage) as first:
        with pytest.raises(AlreadyRunningError, match="give Spark more executors"):
            opened(ground.storage, has_exited=False)
        first.commit(1, 0, [])


def test_after_a_clean_stop_the_next_one_may_come_at_once(ground):
    opened(ground.storage, ground.log).close()
    with opened(ground.storage, ground.log, has_exited=False) as second:
        assert second.number == 2


def test_changelogs_that_a_new_checkpoint_begins_with_wait_for_its_first_batch(ground):
    changelogs = {"counts": Changelog("app-counts-changelog", (3,))}
    opened(ground.storage, ground.log, changelogs=changelogs).close()
    with opened(ground.storage, ground.log, changelogs={"later": Changelog("x", ())}) as second:
        assert second.ledger.changelogs == changelogs  # the first one has stopped before its first batch
        second.commit(2, 0, [])
        assert not second.ledger.changelogs
    with opened(ground.storage, ground.log, changelogs=changelogs) as third:
        assert not third.ledger.changelogs


def test_one_that_was_followed_cannot_commit(ground):
    zombie = opened(ground.storage, ground.log)
    zombie.commit(1, 0, [])
    with opened(ground.storage, ground.log) as owner:
        with pytest.raises(FencedError, match=r"manifests/000000000002 .*another instance has taken over"):
            zombie.commit(2, 0, [])
        owner.commit(3, 0, [])
        with pytest.raises(FencedError):
            zombie.commit(2, 0, [])
    zombie.abandon()


def test_one_that_was_followed_deletes_nothing_that_is_needed(ground):
    zombie = Cluster(ground, WORDS, limit=1, inline=0, options=eager(purge_every=10**9, keep=1))
    zombie.run(5)
    zombie._close_homes()
    owner = Cluster(ground, WORDS, limit=1, inline=0)
    files = ground.storage.names()
    zombie.coordinator._cleaner.start(zombie.coordinator.ledger, zombie.coordinator.ledger.tasks, purge=True)
    assert ground.storage.names() == files
    owner.run(1)
    owner.kill()
    again = Cluster(ground, WORDS, limit=1, inline=0)
    again.homes.clear()
    again.run()
    again.stores()
    again.close()


def test_one_that_commits_while_it_is_followed_was_the_quicker_one(ground):
    first = opened(ground.storage, ground.log)

    def at_step(moment):
        if moment == f"before {TAKEOVER}" and first.number == 1:
            first.commit(1, 77, [])

    hooks = CommitHooks(clock=ManualClock(), process=ME, has_exited=lambda holder, observer: True, at_step=at_step)
    second = Coordinator.open(ground.storage, ground.log, "app", NOTHING, options=eager(), hooks=hooks)
    assert (second.number, second.ledger.clock) == (3, 77)
    with pytest.raises(FencedError):
        first.commit(2, 0, [])
    second.close()


def test_a_zombie_cannot_deliver_what_was_delivered(ground):
    zombie = opened(ground.storage, ground.log)
    zombie.commit(1, 0, [])
    zombie._deliver(1, (), b"")  # somebody has delivered it meanwhile
    assert ground.log.delivered("app") == 1
    opened(ground.storage, ground.log).close()
    with pytest.raises(FencedByLog, match="cannot be delivered after batch 2"):
        zombie._deliver(1, (), b"")
    zombie.abandon()


def test_numbers_follow_each_other(ground):
    with opened(ground.storage, ground.log) as coordinator:
        for number in (0, 2):
            with pytest.raises(FencedError):
                coordinator.commit(number, 0, [])
        coordinator.commit(1, 0, [])


def test_a_lost_answer_of_an_object_store_is_not_a_lost_race():
    class Forgetful(ObjectStorage):
        """Takes a file, and is asked again because its answer got lost."""

        def create(self, name, data):
            super().create(name, data)
            return super().create(name, data)

    storage = Forgetful.at("memory:///", {})
    storage_of_owners = storage.create

    def create(name, data):
        return (
            ObjectStorage.create(storage, name, data) if name.startswith("owners/") else storage_of_owners(name, data)
        )

    storage.create = create
    with opened(storage) as coordinator:
        coordinator.commit(1, 0, [])
    assert manifest_numbers(storage) == [0, 1]


def test_an_instance_that_was_silent_too_long_looks_before_it_commits(ground):
    clock = ManualClock()
    first = opened(ground.storage, ground.log, clock=clock)
    clock.advance(100_000)
    opened(ground.storage, ground.log, clock=clock, has_exited=False).abandon()
    with pytest.raises(FencedError, match=r"has taken over .*: this one must stop"):
        first.commit(1, 0, [])
    with pytest.raises(FencedError):
        first.renew_lease()


# ------------------------------------------------------------------------------------------------------------ the log
def test_a_log_that_is_busy_is_asked_again(ground):
    deliver, refusals = ground.log.deliver, [LogBusyError("busy"), LogBusyError("busy")]

    def busy(*call):
        if refusals:
            raise refusals.pop()
        return deliver(*call)

    ground.log.deliver = busy
    run_to_end(ground, WORDS).close()
    assert len(outputs(ground.log)[("out", 0)]) == 22


def test_what_the_log_does_not_take_waits_until_it_does(ground):
    def refuse(*_):
        raise LogUnavailableError("no room left")

    cluster = Cluster(ground, WORDS, limit=7)
    deliver, ground.log.deliver = ground.log.deliver, refuse
    with pytest.raises(LogUnavailableError, match="no room left"):
        cluster.run()
    cluster.kill()
    with pytest.raises(LogUnavailableError):
        Cluster(ground, WORDS)
    ground.log.deliver = deliver
    again = Cluster(ground, WORDS)
    assert len(outputs(ground.log)[("out", 0)]) == 22
    assert again.run() == 0
    again.close()


def test_a_topic_that_is_missing_at_delivery_is_created(ground):
    ground.log.topics().pop("out")
    run_to_end(ground, WORDS).close()
    assert ground.log.topic("out").partitions == 1
    assert len(outputs(ground.log)[("out", 0)]) == 22


def test_topics_that_join_later_are_remembered(ground):
    start = {TopicPartition("lines", 0): 3}
    with opened(ground.storage, ground.log, topics={"lines": "id of lines"}, positions=start) as coordinator:
        ground.log.create_topic("more")
        more = ground.log.topic("more").id
        coordinator.commit(1, 0, [], topics={"more": more}, positions={TopicPartition("more", 0): 0})
    later = {TopicPartition("lines", 0): 5, TopicPartition("more", 0): 9}
    with opened(ground.storage, ground.log, topics={"lines": "id of lines", "more": more}, positions=later) as again:
        assert again.ledger.positions == {TopicPartition("lines", 0): 3, TopicPartition("more", 0): 0}
        assert again.ledger.topics == {"lines": "id of lines", "more": more}


# --------------------------------------------------------------------------------------------------- beside the batches
def test_delivery_runs_beside_the_next_batches_but_not_too_far_behind(ground):
    go, deliver, waiting = threading.Event(), ground.log.deliver, threading.Event()

    def slow(*call):
        waiting.set()
        go.wait()
        return deliver(*call)

    cluster = Cluster(ground, WORDS, limit=1, options=eager(max_undelivered=2))
    ground.log.deliver = slow
    thread = threading.Thread(target=cluster.run)
    thread.start()
    waiting.wait()
    while manifest_numbers(ground.storage)[-1] < 3:
        thread.join(0.01)
    thread.join(0.1)
    assert thread.is_alive()
    assert cluster.coordinator.delivered == 0
    assert manifest_numbers(ground.storage)[-1] == 3  # one is under way, one waits, one more is committed
    go.set()
    thread.join()
    cluster.close()
    assert cluster.coordinator.delivered == 7
    assert len(outputs(ground.log)[("out", 0)]) == 22


def test_a_delivery_that_fails_is_heard_of_at_the_next_commit(ground):
    def fail(*_):
        raise UnknownTopicError("gone")

    cluster = Cluster(ground, WORDS, limit=1, options=eager(max_undelivered=2))
    ground.log.deliver = fail
    with pytest.raises(UnknownTopicError) as caught:
        cluster.run()
    assert "Batch 1 of 'app' is committed in manifests/000000000001" in caught.value.__notes__[0]
    with pytest.raises(UnknownTopicError):
        cluster.close()
    del ground.log.deliver
    run_to_end(ground, WORDS).close()
    assert len(outputs(ground.log)[("out", 0)]) == 22


def test_one_call_to_the_log_for_each_batch(ground):
    cluster = Cluster(ground, WORDS, limit=2)
    calls = ground.log.calls
    assert cluster.run() == ground.log.calls - calls == 4
    cluster.close()


def test_a_host_that_does_nothing_special_gets_what_it_needs(ground):
    config = Config.of({"application.id": "app", "statestore.cache.max.bytes": 10_000}, default_key_serde=STRING)
    cluster = Cluster(ground, WORDS, config=config, options=CommitOptions())
    cluster.run()
    cluster.close()
    found = {row[1]: row[2] for row in outputs(ground.log)[("out", 0)]}
    assert {key: found[key] for key in (b"a", b"b", b"c")} == {b"a": b"4", b"b": b"3", b"c": b"4"}


def test_dropped_records_are_counted_for_good(ground):
    log = MemoryLog(lines=1, out=1)
    program = Program(dropping, {"lines": [("k", "a"), ("k", "b")]})
    program.feed(log)
    log.rows[TopicPartition("lines", 0)].insert(1, (None, b"x", 5, ()))
    ground.log = log
    run_to_end(ground, program, Killer("before manifest", 2)).close()
    program.feed(log)
    log.rows[TopicPartition("lines", 0)].append((None, b"x", 5, ()))
    cluster = run_to_end(ground, program)
    (dropped,) = cluster.coordinator.ledger.dropped.items()
    assert dropped[1] == 2
    cluster.close()


def dropping():
    builder = StreamsBuilder()
    builder.stream("lines", key=serde.STRING, value=serde.STRING).group_by_key().count(store="c")
    return builder.build()


def test_manifests_name_their_predecessors_and_owners(ground):
    run_to_end(ground, WORDS, Killer("after manifest", 2)).close()
    numbers = manifest_numbers(ground.storage)[-3:]
    (_, first), (second, digest), (third, _) = (read_manifest(ground.storage, number) for number in numbers)
    assert (second.predecessor, third.predecessor) == (first, digest)
    assert third.epoch == 2
    assert manifest_name(third.number) in ground.storage.names()


def test_of_two_that_begin_a_checkpoint_at_once_both_see_one_identity(ground):
    other = ObjectStorage.at("memory:///", {})
    create = other.create

    def slower(name, data):
        if name == "checkpoint":
            other.create = create
            opened(other).close()  # somebody else was quicker
        return create(name, data)

    other.create = slower
    with opened(other) as second:
        assert second.number == 2
        assert second.ledger.application == "app"
