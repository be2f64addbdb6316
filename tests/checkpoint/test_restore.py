"""An engine is brought to the version that a manifest names, from wherever it is, or is thrown away."""

import shutil
import tempfile
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.checkpoint.compaction import MergeJob, merge_deltas
from headrace.checkpoint.files import BlobRef, DeltaChain, DeltaRef, digest_of, read_delta
from headrace.checkpoint.restore import (
    CAUGHT_UP,
    READY,
    RESTORED,
    UNDONE,
    LmdbEngineProvider,
    MemoryEngineProvider,
    restore,
)
from headrace.checkpoint.steps import ignore_step
from headrace.checkpoint.storage import ObjectStorage
from headrace.errors import CheckpointCorruptedError, InvalidStateStoreError
from headrace.model.ids import TaskId
from headrace.state.delta import Delta, encode_delta
from headrace.state.engine import Version
from tests.profiles import examples

TASK = TaskId(0, 1)
CHECKPOINT = "c0ffee"


class History:
    """A task's chain, and what its state is at each version."""

    def __init__(self, length: int) -> None:
        self.storage, self.chain, self.states = ObjectStorage.at("memory:///", {}), (), [{}]
        for number in range(length):
            self.grow(number)

    def grow(self, number: int) -> None:
        changes = {b"key": b"%d" % number, b"key %d" % number: b"x", b"key %d" % (number - 2): None}
        delta = Delta(Version(number, f"won {number}"), tuple(sorted(changes.items())))
        data, name = encode_delta(delta), f"deltas/0_1/{number:012}-won"
        self.storage.create(name, data)
        delta_ref = DeltaRef(*delta.version, len(delta.changes), BlobRef(name, 0, len(data), digest_of(data)))
        self.chain: DeltaChain = (*self.chain, delta_ref)
        after = self.states[-1] | changes
        self.states.append({key: value for key, value in after.items() if value is not None})

    def merge(self, start: int, end: int) -> None:
        job = MergeJob(TASK, self.chain[start:end], start == 0, f"snapshots/0_1/{end:012}-{len(self.storage.names())}")
        self.chain = (*self.chain[:start], merge_deltas(self.storage, job, ignore_step), *self.chain[end:])

    def restore(self, home, upto: int | None = None, load=None):
        chain = self.chain[: len(self.chain) if upto is None else upto]
        wanted = chain[-1].version if chain else None
        found = restore(home, wanted, lambda: chain, load or partial(read_delta, self.storage, TASK))
        assert found.engine.version == wanted
        state = self.states[wanted.number + 1] if wanted else {}
        assert dict(found.engine.scan(b"", None)) == state
        return found.how, found.deltas


@pytest.fixture(params=["memory", "disk"])
def home(request, tmp_path):
    if request.param == "memory":
        yield MemoryEngineProvider()
    else:
        home = LmdbEngineProvider(tmp_path / "0_1", CHECKPOINT, TASK, map_size=1 << 20, boot="now")
        yield home
        home.close()


def lose(home, number: int) -> None:
    """An attempt that is not the one that wins."""
    home.open().commit([(b"key", b"lost"), (b"key %d" % number, None), (b"zz", b"lost")], Version(number, "lost"))


def test_an_engine_at_the_right_version_is_used_as_it_is(home):
    history = History(3)
    assert history.restore(home) == (CAUGHT_UP, 3)

    def no_need(_):
        raise AssertionError("nothing is to be read")

    assert history.restore(home, load=no_need) == (READY, 0)


def test_a_task_that_never_ran_has_an_empty_engine(home):
    history = History(2)
    assert history.restore(home, 0) == (READY, 0)
    lose(home, 0)
    assert history.restore(home, 0) == (UNDONE, 0)
    history.restore(home, 2)
    assert history.restore(home, 0) == (RESTORED, 0)


def test_an_older_engine_gets_the_deltas_that_it_lacks(home):
    history = History(5)
    history.restore(home, 2)
    assert history.restore(home, 5) == (CAUGHT_UP, 3)


def test_of_two_attempts_the_loser_is_undone_and_the_winner_applied(home):
    history = History(5)
    history.restore(home, 4)
    lose(home, 4)
    assert history.restore(home, 5) == (UNDONE, 1)


def test_an_attempt_at_a_batch_that_never_happened_is_undone(home):
    history = History(5)
    history.restore(home, 5)
    lose(home, 5)
    assert history.restore(home, 5) == (UNDONE, 0)


def test_an_engine_that_is_further_ahead_is_thrown_away(home):
    history = History(5)
    history.restore(home, 5)
    assert history.restore(home, 3) == (RESTORED, 3)
    history.restore(home, 5)
    lose(home, 5)
    lose(home, 6)
    assert history.restore(home, 5) == (RESTORED, 5)


def test_a_loser_that_others_followed_is_thrown_away(home):
    history = History(5)
    history.restore(home, 3)
    lose(home, 3)
    home.open().commit([(b"key", b"more")], Version(4, "followed"))
    assert history.restore(home, 5) == (RESTORED, 5)


def test_a_version_that_was_merged_away_cannot_be_gone_on_from(home):
    history = History(6)
    history.restore(home, 3)
    history.merge(1, 5)  # 0 1-4 5
    assert history.restore(home) == (RESTORED, 3)
    again = History(6)
    again.merge(0, 6)
    assert again.restore(MemoryEngineProvider()) == (CAUGHT_UP, 1)


def test_merged_deltas_lead_to_the_same_state(home):
    history = History(6)
    history.restore(home, 2)
    history.merge(2, 5)  # 0 1 2-4 5
    assert history.restore(home) == (CAUGHT_UP, 2)


def test_a_chain_that_leads_elsewhere_is_refused(home):
    history = History(3)
    with pytest.raises(InvalidStateStoreError, match="does not lead to version"):
        restore(home, Version(2, "another"), lambda: history.chain, partial(read_delta, history.storage, TASK))


# ------------------------------------------------------------------------------------------------- what is on the disk
@pytest.fixture
def directory(tmp_path):
    return tmp_path / "0_1"


def at(directory, checkpoint=CHECKPOINT, task=TASK, boot="now") -> LmdbEngineProvider:
    return LmdbEngineProvider(directory, checkpoint, task, map_size=1 << 20, boot=boot)


def after_restart(history, directory, **changes):
    home = at(directory, **changes)
    try:
        return history.restore(home)[0]
    finally:
        home.close()


def test_a_directory_is_used_again_after_a_restart(directory):
    history = History(4)
    assert after_restart(history, directory) == CAUGHT_UP
    assert after_restart(history, directory) == READY


@pytest.mark.parametrize("other", [{"checkpoint": "another"}, {"task": TaskId(0, 2)}])
def test_the_directory_of_another_task_or_application_is_never_used(directory, other):
    history = History(4)
    home = at(directory, **other)
    foreign = home.open()
    foreign.commit([(b"foreign", b"x")], history.chain[-1].version)  # even if its version is the right one
    home.close()
    assert after_restart(history, directory) in {RESTORED, CAUGHT_UP}


def test_another_tasks_data_under_our_label_is_never_used(tmp_path, directory):
    history = History(4)
    after_restart(history, directory)
    home = at(tmp_path / "other", task=TaskId(0, 2))
    home.open().commit([(b"foreign", b"x")], Version(2, "foreign 2"))
    home.open().commit([(b"foreign", b"y")], Version(3, "foreign 3"))
    home.close()
    shutil.copy(tmp_path / "other" / "data.mdb", directory / "data.mdb")
    assert after_restart(history, directory) == RESTORED


def test_an_older_copy_is_brought_up_to_date(tmp_path, directory):
    history = History(2)
    after_restart(history, directory)
    shutil.copytree(directory, tmp_path / "copy")
    for number in range(2, 5):
        history.grow(number)
        after_restart(history, directory)
    shutil.rmtree(directory)
    shutil.copytree(tmp_path / "copy", directory)
    assert after_restart(history, directory) == CAUGHT_UP


@pytest.mark.parametrize("damage", ["cut off", "empty", "garbage", "no label", "gone", "label", "a file"])
def test_a_damaged_directory_is_rebuilt(directory, damage):
    history = History(4)
    after_restart(history, directory)
    data, label = directory / "data.mdb", directory / "task"
    match damage:
        case "cut off":
            data.write_bytes(data.read_bytes()[:8192])
        case "empty":
            data.write_bytes(b"")
        case "garbage":
            data.write_bytes(b"\xff" * 65536)
        case "no label":
            label.unlink()
        case "gone":
            shutil.rmtree(directory)
        case "label":
            label.write_bytes(b"x")
        case "a file":
            data.unlink()
            data.mkdir()
    assert after_restart(history, directory) in {RESTORED, CAUGHT_UP}
    assert after_restart(history, directory) == READY


def test_after_a_crash_of_the_machine_nothing_on_its_disk_is_trusted(directory):
    history = History(4)
    after_restart(history, directory)
    assert after_restart(history, directory, boot="later") == CAUGHT_UP


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidStateStoreError, match=r"file/0_1 cannot be created"):
        History(1).restore(at(tmp_path / "file" / "0_1"))


# ------------------------------------------------------------------------------------------- what is in the checkpoint
@pytest.mark.parametrize("damage", ["flip", "cut off", "empty", "gone", "another"])
def test_a_damaged_delta_is_named_and_not_applied(home, damage):
    history = History(4)
    name = history.chain[2].blob.name
    raw = history.storage.read(name)
    history.storage.delete(name)
    match damage:
        case "flip":
            history.storage.create(name, raw[:30] + bytes([raw[30] ^ 1]) + raw[31:])
        case "cut off":
            history.storage.create(name, raw[:-1])
        case "empty":
            history.storage.create(name, b"")
        case "another":
            history.storage.create(name, history.storage.read(history.chain[1].blob.name))
    with pytest.raises(CheckpointCorruptedError, match=f"task 0_1 at version 2 cannot be read from {name}") as caught:
        history.restore(home)
    assert caught.value.file == name


def test_a_delta_of_another_version_is_not_applied():
    history = History(4)
    wrong = history.chain[2]._replace(blob=history.chain[1].blob)
    history.chain = (*history.chain[:2], wrong, history.chain[3])
    with pytest.raises(CheckpointCorruptedError, match=r"has version .*won 1.* of task 0_1, not .*won 2"):
        history.restore(MemoryEngineProvider())


# --------------------------------------------------------------------------------------------------- whatever happened
actions = st.lists(
    st.one_of(
        st.tuples(st.just("restore"), st.integers(0, 6)),
        st.tuples(st.just("lose"), st.integers(0, 7)),
        st.tuples(st.just("reopen"), st.just(0)),
    ),
    max_size=6,
)


@settings(max_examples=examples(40), deadline=None)
@given(
    actions, st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=2), st.sampled_from(["memory", "disk"])
)
def test_wherever_an_engine_is_it_gets_to_the_right_state(actions, merges, kind):
    history = History(6)
    with tempfile.TemporaryDirectory() as place:
        home = MemoryEngineProvider() if kind == "memory" else at(Path(place, "0_1"))
        for action, number in actions:
            if action == "restore":
                history.restore(home, number)
            elif action == "lose" and (home.open().version or Version(-1, "")).number < number:
                lose(home, number)
            elif action == "reopen" and isinstance(home, LmdbEngineProvider):
                home.close()
        for start, end in merges:
            if start < end <= len(history.chain):
                history.merge(start, end)
        history.restore(home)
        if isinstance(home, LmdbEngineProvider):
            home.close()
