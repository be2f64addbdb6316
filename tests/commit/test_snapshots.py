"""Snapshots that are asked for: the state of every task in one file, whether it is worn or not."""

import pytest

from headrace.commit import open_storage
from headrace.commit.chain import Wear
from headrace.commit.names import SNAPSHOTS
from tests.commit.cluster import Cluster, Ground, eager
from tests.commit.programs import MANY_WORDS

NEVER = Wear(links=1000, outgrown=1 << 40, oldest=1000)


@pytest.fixture(params=[False, True], ids=["at once", "in the background"])
def cluster(request, tmp_path):
    ground = Ground(log=MANY_WORDS.log(), storage=open_storage(tmp_path / "checkpoint"))
    return Cluster(ground, MANY_WORDS, limit=1, habits=eager(wear=NEVER, background=request.param))


def chains(cluster):
    return {task: standing.chain for task, standing in cluster.coordinator.ledger.tasks.items() if standing.chain}


def commit_nothing(cluster):
    cluster.coordinator.commit(cluster.coordinator.number, 0, [])
    cluster.coordinator._upkeep._lane.drain()


def test_a_snapshot_needs_two_batches_that_need_not_have_records(cluster):
    cluster.run()
    before = cluster.stores()
    assert max(map(len, chains(cluster).values())) > 1
    assert not cluster.coordinator.wants_batch
    cluster.coordinator.want_snapshots()
    assert cluster.coordinator.wants_batch
    commit_nothing(cluster)
    assert cluster.coordinator.wants_batch
    commit_nothing(cluster)
    assert not cluster.coordinator.wants_batch
    assert {len(chain) for chain in chains(cluster).values()} == {1}
    assert all(chain[0].piece.name.startswith(SNAPSHOTS) for chain in chains(cluster).values())
    assert cluster.stores() == before


def test_what_is_a_snapshot_already_is_left_alone(cluster):
    cluster.run()
    for _ in range(2):
        cluster.coordinator.want_snapshots()
        commit_nothing(cluster)
        commit_nothing(cluster)
    after = chains(cluster)
    cluster.coordinator.want_snapshots()
    commit_nothing(cluster)
    assert not cluster.coordinator.wants_batch
    commit_nothing(cluster)
    assert chains(cluster) == after


def test_batches_go_on_meanwhile(cluster):
    cluster.run(2)
    cluster.coordinator.want_snapshots()
    cluster.run()
    cluster.coordinator.want_snapshots()
    for _ in range(4):  # the merge of the first wish may still be under way
        commit_nothing(cluster)
    assert not cluster.coordinator.wants_batch
    assert {len(chain) for chain in chains(cluster).values()} == {1}
    cluster.stores()
