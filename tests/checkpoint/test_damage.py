"""Files of a checkpoint that are damaged or gone: named, rebuilt where that is possible, and never wrong output."""

from __future__ import annotations

import copy
import shutil
from collections import Counter
from pathlib import Path

import pytest

from headrace.checkpoint.files import manifest_name
from headrace.checkpoint.ledger import manifest_numbers
from headrace.checkpoint.storage import open_storage
from headrace.errors import CheckpointCorruptedError, CheckpointMismatchError
from tests.checkpoint.cluster import Cluster, Ground, Killed, Killer, eager, outputs, run_to_end
from tests.checkpoint.programs import WORDS

pytestmark = pytest.mark.slow

DAMAGES = ("flip at the start", "flip in the middle", "flip at the end", "cut off", "empty", "gone")
INLINE = 150  # some deltas and outboxes are files, some lie in the manifests


def damage(file: Path, kind: str) -> None:
    raw = bytearray(file.read_bytes())
    places = {"flip at the start": 0, "flip in the middle": len(raw) // 2, "flip at the end": len(raw) - 1}
    if kind == "gone":
        file.unlink()
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "cut off":
        file.write_bytes(raw[:-3])
    elif raw:
        raw[places[kind]] ^= 16
        file.write_bytes(raw)


def scene(place: Path, moment: str, options) -> Ground:
    """A checkpoint after some batches; the last one is committed, and delivered or not."""
    ground = Ground(log=WORDS.log(), storage=open_storage(place))
    cluster = Cluster(ground, WORDS, limit=1, inline=INLINE, options=options, at_step=Killer(moment, 6))
    with pytest.raises(Killed):
        cluster.run()
    cluster.kill()
    return ground


SCENES = {
    "not delivered": ("before delivery", eager()),
    "delivered": ("after marker", eager()),
    "what changed": ("before delivery", eager(full_up_to=0)),
}


# All kinds of damage at one scene take long; the other scenes have two kinds of damage each.
@pytest.fixture(
    scope="module",
    params=SCENES,
)
def checkpoint(request, tmp_path_factory):
    """A scene, its directory, and what an undisturbed end of it gives."""
    place = tmp_path_factory.mktemp("scene")
    ground = scene(place, *SCENES[request.param])
    log = copy.deepcopy(ground.log)
    shutil.copytree(place, place.with_name("copy"))
    undisturbed = run_to_end(Ground(log=log, storage=open_storage(place.with_name("copy"))), WORDS)
    result = outputs(log), undisturbed.stores()
    undisturbed.close()
    shutil.rmtree(place.with_name("copy"))
    damages = DAMAGES if request.param == "not delivered" else ("flip in the middle", "gone")
    return ground, place, result, damages


def ended(ground: Ground) -> tuple[dict, str]:
    """What the stores hold in the end, or what went wrong."""
    try:
        return run_to_end(ground, WORDS).stores(), ""
    except (CheckpointCorruptedError, CheckpointMismatchError) as error:
        return {}, str(error)


def test_every_damage_is_named_or_repaired(checkpoint, tmp_path):
    ground, directory, undisturbed, damages = checkpoint
    seen = Counter()
    for name in ground.storage.names():
        for kind in damages:
            place = tmp_path / "damaged"
            shutil.copytree(directory, place)
            damage(place / name, kind)
            again = Ground(log=copy.deepcopy(ground.log), storage=open_storage(place))
            stores, error = ended(again)
            delivered = outputs(again.log)["out", 0]
            if error:
                assert name in error, f"{kind} of {name}"
                assert delivered == undisturbed[0]["out", 0][: len(delivered)], f"{kind} of {name}"
            else:
                assert (outputs(again.log), stores) == undisturbed, f"{kind} of {name}"
            seen["named" if error else "repaired or not needed"] += 1
            shutil.rmtree(place)
    assert min(seen["named"], seen["repaired or not needed"]) > 2 * len(damages)


def test_the_identity_of_a_checkpoint_is_written_again(tmp_path, caplog):
    ground = scene(tmp_path, "after marker", eager())
    label = (tmp_path / "checkpoint").read_bytes()
    for kind in DAMAGES:
        damage(tmp_path / "checkpoint", kind)
        Cluster(ground, WORDS).close()
        assert (tmp_path / "checkpoint").read_bytes() == label
    assert "checkpoint is damaged" in caplog.text


def test_a_lost_manifest_whose_outputs_were_delivered_is_an_error(tmp_path):
    ground = scene(tmp_path, "after marker", eager())
    last = manifest_numbers(ground.storage)[-1]
    ground.storage.delete(manifest_name(last))
    with pytest.raises(CheckpointCorruptedError, match=f"{manifest_name(last)} is missing") as caught:
        Cluster(ground, WORDS)
    assert caught.value.file == manifest_name(last)


def test_manifests_of_two_checkpoints_are_not_mixed(tmp_path):
    ground = scene(tmp_path / "a", "before delivery", eager())
    other = scene(tmp_path / "b", "before delivery", eager())
    last = manifest_name(manifest_numbers(ground.storage)[-1])
    own = ground.storage.read(last)
    ground.storage.delete(last)
    ground.storage.create(last, other.storage.read(last))
    with pytest.raises(CheckpointMismatchError, match=f"{last} is out of place: it does not follow"):
        Cluster(ground, WORDS)
    ground.storage.delete(last)
    ground.storage.create(last, own)
    shutil.copy(tmp_path / "b" / "checkpoint", tmp_path / "a" / "checkpoint")
    with pytest.raises(CheckpointMismatchError, match="files of two checkpoints were mixed"):
        Cluster(ground, WORDS)


def test_a_running_host_repairs_what_was_damaged_behind_its_back(tmp_path, caplog):
    ground = Ground(log=WORDS.log(), storage=open_storage(tmp_path / "checkpoint"), state=tmp_path / "state")
    cluster = Cluster(ground, WORDS, limit=1, inline=0, options=eager(keep=1, purge_every=1))
    cluster.run(2)
    for file in (tmp_path / "checkpoint" / "deltas").rglob("0000*"):
        damage(file, "flip in the middle")
    cluster.run(3)
    assert "the checkpoint is damaged, task 0_0 cannot be restored from it" in caplog.text
    cluster.run()
    assert cluster.coordinator.damaged_tasks == frozenset()
    undisturbed = Ground(log=WORDS.log(), storage=open_storage("memory:///"))
    whole = run_to_end(undisturbed, WORDS)
    assert (outputs(ground.log), cluster.stores()) == (outputs(undisturbed.log), whole.stores())
    cluster.close()


def test_damage_that_no_manifest_needs_is_only_mentioned(tmp_path, caplog):
    ground = scene(tmp_path, "after marker", eager())
    before = manifest_name(manifest_numbers(ground.storage)[-2])
    damage(tmp_path / before, "flip at the end")
    Cluster(ground, WORDS).close()
    assert f"the manifest {before} cannot be read" in caplog.text
    assert "The last manifest, 5, does not need it" in caplog.text
