"""Checkpoints and logs of earlier versions open in this one, and go on."""

import json

import pytest

from tests.checkpoint.cluster import Cluster
from tests.checkpoint.kept_checkpoint import KEPT, KEYS, ROUNDS, copy, make, open_ground, read_stores
from tests.checkpoint.test_changed_topologies import feed, program

VERSIONS = sorted(folder.name for folder in KEPT.iterdir())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_checkpoint_of_an_earlier_version_opens_and_goes_on(version, tmp_path):
    kept = copy(KEPT / version, tmp_path / "kept")
    make(tmp_path / "fresh")
    states = []
    for folder in (kept, tmp_path / "fresh"):
        ground = open_ground(folder)
        cluster = Cluster(ground, program(), limit=20)
        assert read_stores(cluster) == json.loads((kept / "stores.json").read_text())
        feed(ground.log, ROUNDS, KEYS, ROUNDS)
        assert cluster.run() > 0
        states.append(read_stores(cluster))
        cluster.close()
        ground.log.close()
    assert states[0] == states[1]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_checkpoint_of_an_earlier_version_can_be_changed(version, tmp_path):
    ground = open_ground(copy(KEPT / version, tmp_path / "kept"))
    cluster = Cluster(ground, program(first=True, filtered=True), limit=20)
    assert cluster.run() > 0
    assert read_stores(cluster)
    cluster.close()
    ground.log.close()
