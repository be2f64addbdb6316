"""Checkpoints and logs of earlier versions open in this one, and go on."""

import json

import pytest

from tests.checkpoint.cluster import Cluster, outputs
from tests.checkpoint.kept_checkpoint import (
    FOLDERS,
    KEPT,
    KEYS,
    ROUNDS,
    copy,
    form_of,
    make,
    open_ground,
    read_stores,
    read_target,
)
from tests.checkpoint.test_changed_topologies import feed

VERSIONS = sorted(folder.name for folder in KEPT.iterdir())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_checkpoint_of_an_earlier_version_opens_and_goes_on(version, tmp_path):
    form, kept = form_of(version), copy(KEPT / version, tmp_path / "kept")
    make(tmp_path / "fresh", form)
    found = []
    for folder in (kept, tmp_path / "fresh"):
        ground = open_ground(folder)
        cluster = form.start(folder, ground)
        assert read_stores(cluster) == json.loads((kept / "stores.json").read_text())
        feed(ground.log, ROUNDS, KEYS, ROUNDS)
        assert cluster.run() > 0
        found.append((read_stores(cluster), outputs(ground.log), read_target(folder)))
        cluster.close()
        ground.log.close()
    assert found[0] == found[1]
    assert bool(found[0][2]) == form.has_sink


@pytest.mark.parametrize("version", VERSIONS)
def test_a_checkpoint_of_an_earlier_version_can_be_changed(version, tmp_path):
    kept = copy(KEPT / version, tmp_path / "kept")
    ground = open_ground(kept)
    cluster = Cluster(ground, form_of(version).program(kept, first=True, filtered=True), limit=20)
    assert cluster.run() > 0
    assert read_stores(cluster)
    cluster.close()
    ground.log.close()


@pytest.mark.parametrize("version", [version for version in VERSIONS if version.endswith("-files")])
def test_every_kind_of_file_is_kept(version):
    checkpoint, log = KEPT / version / "checkpoint", KEPT / version / "log"
    assert {path.name for path in checkpoint.iterdir()} == FOLDERS | {"checkpoint", "manifests", "owners"}
    assert any((log / "chunks").iterdir())


def test_every_version_is_kept_in_both_forms():
    plain = {version for version in VERSIONS if not version.endswith("-files")}
    assert plain
    assert {f"{version}-files" for version in plain} == set(VERSIONS) - plain
