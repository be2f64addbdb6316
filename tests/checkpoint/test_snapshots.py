"""Snapshots that are asked for: the state of every task in one file, whether its chain needs a merge or not."""

import threading

import pytest

from headrace.checkpoint.compaction import CompactionPolicy
from headrace.checkpoint.files import SNAPSHOTS
from headrace.checkpoint.steps import MANIFEST, MERGE
from headrace.checkpoint.storage import open_storage
from tests.checkpoint.cluster import Cluster, Ground, eager
from tests.checkpoint.programs import MANY_WORDS

NEVER = CompactionPolicy(max_deltas=1000, min_bytes=1 << 40, max_age=1000)


@pytest.fixture(params=[False, True], ids=["at once", "in the background"])
def cluster(request, tmp_path):
    ground = Ground(log=MANY_WORDS.log(), storage=open_storage(tmp_path / "checkpoint"))
    return Cluster(ground, MANY_WORDS, limit=1, options=eager(compaction=NEVER, background=request.param))


def chains(cluster):
    return {task: head.chain for task, head in cluster.coordinator.ledger.tasks.items() if head.chain}


def settle(cluster):
    """Waits for the merges and purges that the batches so far have begun."""
    cluster.coordinator._cleaner._executor.drain()


def commit_nothing(cluster):
    cluster.coordinator.commit(cluster.coordinator.number, 0, [])
    settle(cluster)


def test_a_snapshot_needs_two_batches_that_need_not_have_records(cluster):
    cluster.run()
    settle(cluster)  # while the last purge is running, no merge begins, and the snapshot takes one batch more
    before = cluster.stores()
    assert max(map(len, chains(cluster).values())) > 1
    assert not cluster.coordinator.needs_batch
    cluster.coordinator.request_snapshots()
    assert cluster.coordinator.needs_batch
    commit_nothing(cluster)
    assert cluster.coordinator.needs_batch
    commit_nothing(cluster)
    assert not cluster.coordinator.needs_batch
    assert {len(chain) for chain in chains(cluster).values()} == {1}
    assert all(chain[0].blob.name.startswith(SNAPSHOTS) for chain in chains(cluster).values())
    assert cluster.stores() == before


def test_what_is_a_snapshot_already_is_left_alone(cluster):
    cluster.run()
    settle(cluster)
    for _ in range(2):
        cluster.coordinator.request_snapshots()
        commit_nothing(cluster)
        commit_nothing(cluster)
    after = chains(cluster)
    cluster.coordinator.request_snapshots()
    commit_nothing(cluster)
    assert not cluster.coordinator.needs_batch
    commit_nothing(cluster)
    assert chains(cluster) == after


def test_batches_go_on_meanwhile(cluster):
    cluster.run(2)
    cluster.coordinator.request_snapshots()
    cluster.run()
    cluster.coordinator.request_snapshots()
    for _ in range(4):  # the merge of the first wish may still be under way
        commit_nothing(cluster)
    assert not cluster.coordinator.needs_batch
    assert {len(chain) for chain in chains(cluster).values()} == {1}
    cluster.stores()


def test_a_wish_during_a_merge_holds_for_the_task_that_is_merged(tmp_path):
    """The merge ends after the next commit has asked for finished merges, and before it begins new ones."""
    wished_again, release = threading.Event(), threading.Event()

    def at_step(moment):
        if moment == f"before {MERGE}":
            release.wait()
        elif moment == f"before {MANIFEST}" and wished_again.is_set():
            release.set()
            settle(cluster)

    ground = Ground(log=MANY_WORDS.log(), storage=open_storage(tmp_path / "checkpoint"))
    cluster = Cluster(ground, MANY_WORDS, limit=1, options=eager(compaction=NEVER, background=True), at_step=at_step)
    cluster.run(2)
    settle(cluster)
    cluster.coordinator.request_snapshots()
    cluster.run()
    assert not cluster.coordinator.needs_batch  # the merge of the first wish is held
    cluster.coordinator.request_snapshots()
    wished_again.set()
    for _ in range(4):
        commit_nothing(cluster)
    assert not cluster.coordinator.needs_batch
    assert {len(chain) for chain in chains(cluster).values()} == {1}
    cluster.stores()
