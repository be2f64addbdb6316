"""What does not fit: other applications, topologies, topics, logs and receipts."""

import errno
import os
from dataclasses import replace

import pytest

from headrace import StreamsBuilder, TimeWindows
from headrace.checkpoint.coordinator import CommitHooks, Coordinator
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.ledger import manifest_numbers
from headrace.checkpoint.receipt import Receipt
from headrace.checkpoint.storage import open_storage
from headrace.errors import CheckpointCorruptedError, CheckpointMismatchError, StageRerunError, StorageError
from headrace.model.ids import TaskId, TopicPartition
from tests.checkpoint.cluster import ME, Cluster, Ground, eager, outputs, run_to_end
from tests.checkpoint.memory_log import MemoryLog
from tests.checkpoint.programs import LINES, MANY_WORDS, TEXTS, WORDS, Program
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


def test_the_checkpoint_of_another_application_is_refused(ground):
    opened(ground.storage, ground.log).close()
    with pytest.raises(CheckpointMismatchError, match="is the checkpoint of 'app', not of 'other'"):
        opened(ground.storage, ground.log, application="other")


def other_words() -> Program:
    def build():
        builder = StreamsBuilder()
        words = builder.stream("lines", **TEXTS).flat_map_values(str.split).group_by(lambda _, word: word, **TEXTS)
        words.count(store="counts").to_stream().map_values(str).to("out", **TEXTS)
        words.windowed_by(TimeWindows.of(70)).count(store="windows")
        return builder.build()

    return Program(build, WORDS.inputs)


def test_an_older_topology_is_refused_and_the_stores_are_named(ground):
    run_to_end(ground, WORDS).close()
    before = ground.storage.names()
    with pytest.raises(CheckpointMismatchError, match="of another topology of 'app': store windows had") as caught:
        Cluster(ground, other_words())
    (difference,) = caught.value.differences
    assert "had windows of 50 ms and now has windows of 70 ms" in difference
    assert [name for name in ground.storage.names() if not name.startswith("owners/")] == [
        name for name in before if not name.startswith("owners/")
    ]
    Cluster(ground, WORDS).close()  # it was not harmed, and is free


def test_more_partitions_of_a_topic_leave_an_internal_topic_as_it_is(tmp_path):
    ground = Ground(log=MANY_WORDS.log(), storage=open_storage(tmp_path))
    run_to_end(ground, MANY_WORDS).close()
    ground.log.topics()["lines"] = replace(ground.log.topics()["lines"], partitions=4)
    cluster = Cluster(ground, MANY_WORDS)
    assert cluster.tasks == {0: 4, 1: 3, 2: 3}
    cluster.close()


def test_more_partitions_of_a_topic_are_taken_up_where_there_is_none(tmp_path):
    def build():
        builder = StreamsBuilder()
        builder.stream("lines", **TEXTS).map_values(str.upper).to("out", **TEXTS)
        return builder.build()

    program = Program(build, {"lines": LINES}, 2)
    ground = Ground(log=program.log(), storage=open_storage(tmp_path))
    run_to_end(ground, program).close()
    ground.log.topics()["lines"] = replace(ground.log.topics()["lines"], partitions=3)
    replace_program = program._replace(partitions=3)
    replace_program.feed(ground.log)
    run_to_end(ground, program).close()
    assert sum(len(rows) for rows in outputs(ground.log).values()) == 2 * len(LINES)


def test_topics_that_were_made_again_or_shrank_are_refused(ground):
    run_to_end(ground, WORDS).close()
    topic = ground.log.topics()["lines"]
    ground.log.topics()["lines"] = replace(topic, id="another")
    with pytest.raises(CheckpointMismatchError, match="the topic lines was deleted and created again"):
        Cluster(ground, WORDS)
    ground.log.topics()["lines"] = topic
    del ground.log.rows[TopicPartition("lines", 0)][3:]
    with pytest.raises(CheckpointMismatchError, match="lines-0 ends at offset 3, but was read up to 7"):
        Cluster(ground, WORDS)


def test_another_log_or_an_older_copy_is_refused(ground):
    run_to_end(ground, WORDS).close()
    marker = ground.log.markers["app"]
    ground.log.markers["app"] = marker - 3
    with pytest.raises(CheckpointMismatchError, match="it is another log, or an older copy"):
        Cluster(ground, WORDS)
    ground.log.markers["app"] = marker + 2
    with pytest.raises(CheckpointCorruptedError, match=f"the log has batch {marker + 2} of the application"):
        Cluster(ground, WORDS)


def test_an_empty_checkpoint_of_an_application_that_ran_is_refused(ground, tmp_path):
    run_to_end(ground, WORDS).close()
    ground.storage = open_storage(tmp_path / "another")
    with pytest.raises(CheckpointCorruptedError, match=r"it has no manifest.*reset the application"):
        Cluster(ground, WORDS)


def test_receipts_that_do_not_belong_together_change_nothing(ground):
    with opened(ground.storage, ground.log) as coordinator:
        lone = Receipt(
            task=TaskId(0, 0), level=0, number=1, attempt="x", base=None, delta=b"", entries=0, sent={TaskId(1, 0): 1}
        )
        with pytest.raises(StageRerunError):
            coordinator.commit(1, 0, [lone])
        assert manifest_numbers(ground.storage) == [0]
        coordinator.commit(1, 0, [replace(lone, sent={})])


@pytest.mark.parametrize("inline", [0, 1 << 20])
def test_a_disk_that_is_full_stops_the_batch(inline, ground, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    cluster = Cluster(ground, WORDS, limit=1, inline=inline)
    cluster.run(2)
    written = outputs(ground.log)
    monkeypatch.setattr(os, "link", full)
    with pytest.raises(StorageError, match="the disk is full"):
        cluster.run(1)
    monkeypatch.undo()
    cluster.kill()
    assert outputs(ground.log) == written
    run_to_end(ground, WORDS).close()
    assert len(outputs(ground.log)["out", 0]) == 22


def test_a_checkpoint_directory_that_vanishes_stops_the_batch(ground, tmp_path):
    cluster = Cluster(ground, WORDS, limit=1)
    cluster.run(2)
    written = outputs(ground.log)
    (tmp_path / "checkpoint").rename(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="was deleted or replaced"):
        cluster.run(1)
    cluster.kill()
    assert outputs(ground.log) == written
    (tmp_path / "elsewhere").rename(tmp_path / "checkpoint")
    run_to_end(ground, WORDS).close()
