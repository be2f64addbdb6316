"""A copy on disk goes on where it was, and nothing in it is used that is not certain."""

import shutil

import pytest

from headrace.checkpoint.restore import LmdbEngineProvider
from headrace.checkpoint.storage import ObjectStorage
from headrace.errors import ConfigError
from headrace.query import Follower
from headrace.query.replica import FOLDER, DiskReplica, DiskTaskReplica
from headrace.state.engine import Version
from tests.checkpoint.cluster import eager
from tests.query.programs import ONE, ROWS, SHOWN, THREE, feed, finished, started
from tests.query.test_follower import held, whole_state

pytestmark = pytest.mark.slow


class Watched(ObjectStorage):
    """Notes which parts of files are read."""

    read_parts: list[str]

    def read(self, name, start=0, size=None):
        if size is not None:
            self.read_parts.append(name)
        return super().read(name, start, size)


@pytest.fixture
def cluster():
    storage = Watched.at("memory:///", {})
    storage.read_parts = []
    return started(rows=ROWS * 2, limit=2, storage=storage, options=eager(keep=100, purge_every=1000))


def following(cluster, place, boot="now"):
    return Follower(cluster.storage, replica=DiskReplica(place, boot=boot, map_size=1 << 24))


def counts(follower):
    return {name: follower.snapshot.count(name) for name in SHOWN}


def test_after_a_restart_only_what_is_new_is_read(cluster, tmp_path):
    cluster.run(6)
    first = following(cluster, tmp_path)
    first.refresh()
    first.close()
    cluster.run(1)
    cluster.storage.read_parts.clear()
    second = following(cluster, tmp_path)
    second.refresh()
    assert set(cluster.storage.read_parts) == {f"manifests/{cluster.coordinator.ledger.number:012}"}
    assert held(second) == whole_state(cluster)
    second.close()


def test_entries_are_counted_as_they_come_and_go(cluster, tmp_path):
    follower = following(cluster, tmp_path)
    while cluster.run(5) == 5:
        follower.refresh()
        assert counts(follower) == {name: Follower(cluster.storage).refresh().count(name) for name in SHOWN}
    follower.refresh()
    known = counts(follower)
    follower.close()
    again = following(cluster, tmp_path)
    again.refresh()
    assert counts(again) == known
    part = next(iter(again.snapshot.replicas.values()))
    assert part.count(b"", None) == len(list(part.scan(b"", None)))
    again.close()


def cut_off(place):
    for file in place.glob("*/data.mdb"):
        file.write_bytes(file.read_bytes()[:5000])


def garbage(place):
    for file in place.glob("*/data.mdb"):
        file.write_bytes(b"x" * file.stat().st_size)


def of_other_tasks(place):
    names = sorted(folder.name for folder in place.glob("*_*"))
    for name, other in zip(names, names[1:] + names[:1], strict=True):
        (place / name).rename(place / f"{other}.moved")
    for name in names:
        (place / f"{name}.moved").rename(place / name)


def of_an_attempt_that_did_not_win(place):
    for folder in place.glob("*_*"):
        checkpoint, _, task = (folder / "task").read_text().strip().rpartition(" ")
        home = LmdbEngineProvider(folder, checkpoint, task, boot="now", map_size=1 << 24)  # type: ignore[arg-type]
        engine = home.open()
        for number in (100_000, 100_001):
            engine.commit([(b"nothing", b"that was ever committed")], Version(number, "lost"))
        home.close()


def missing(place):
    for folder in place.glob("*_*"):
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    "damage", [cut_off, garbage, of_other_tasks, of_an_attempt_that_did_not_win, missing], ids=lambda f: f.__name__
)
def test_what_cannot_be_trusted_is_made_again(cluster, tmp_path, damage):
    cluster.run(6)
    first = following(cluster, tmp_path)
    first.refresh()
    first.close()
    damage(tmp_path / FOLDER)
    second = following(cluster, tmp_path)
    assert held(second) == whole_state(cluster)
    second.close()


def test_after_a_crash_of_the_machine_it_is_made_again(cluster, tmp_path):
    cluster.run(6)
    first = following(cluster, tmp_path)
    first.refresh()
    first.close()
    cluster.storage.read_parts.clear()
    second = following(cluster, tmp_path, boot="later")
    second.refresh()
    assert len(set(cluster.storage.read_parts)) > 1
    assert held(second) == whole_state(cluster)
    second.close()


def test_the_copy_of_another_checkpoint_is_made_again_and_tasks_that_are_no_more_are_forgotten(tmp_path):
    follower = following(finished(THREE), tmp_path)
    follower.refresh()
    follower.close()
    other = finished(ONE)
    follower = following(other, tmp_path)
    assert held(follower) == whole_state(other)
    assert {folder.name for folder in (tmp_path / FOLDER).glob("*_*")} == {"0_0", "1_0"}
    follower.close()


def test_a_directory_has_one_copy_at_a_time(tmp_path):
    first = DiskReplica(tmp_path)
    with pytest.raises(ConfigError, match="a directory of its own"):
        DiskReplica(tmp_path)
    first.close()
    DiskReplica(tmp_path).close()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="no copy of the state can be kept"):
        DiskReplica(tmp_path / "file" / "below")


def test_long_scans_in_both_directions_are_whole_while_the_copy_goes_on(tmp_path):
    many = [(f"key-{number:05}", "v") for number in range(3000)]
    cluster = started(ONE, rows=many, limit=1500)
    cluster.run()
    follower = following(cluster, tmp_path)
    part = next(at for at in follower.refresh().replicas.values() if at.count(b"", None) > 3000)
    assert isinstance(part, DiskTaskReplica)
    up, down = part.scan(b"", None), part.scan(b"", None, reverse=True)
    begun, ended = [next(up)], [next(down)]
    feed(cluster.log, [(key, "w") for key, _ in many[::7]])
    cluster.run()
    follower.refresh()
    everything = [*begun, *up]
    assert everything == [*ended, *down][::-1]
    assert len(everything) == part.count(b"", None)
    follower.close()
