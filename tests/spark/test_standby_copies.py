"""Standbys follow the checkpoint, and hand their copies over to the tasks."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from headrace.checkpoint.files import read_delta
from headrace.checkpoint.local_copies import LocalCopies
from headrace.checkpoint.restore import CAUGHT_UP, READY, restore
from headrace.checkpoint.storage import ObjectStorage
from headrace.errors import MissingFileError
from headrace.model.ids import TaskId
from headrace.spark.standbys import LocalStateKeeper, Standbys
from tests.checkpoint.cluster import Cluster, Ground
from tests.checkpoint.programs import Program, count_words

LINES: list[tuple[str, str | None]] = [(f"k{n}", f"all streams lead to w{n}") for n in range(30)]
PROGRAM = Program(count_words, {"lines": LINES}, partitions=2)
COUNTS = (TaskId(1, 0), TaskId(1, 1))


class Place:
    """A host that runs all tasks, and another one with standbys."""

    def __init__(self, folder) -> None:
        self.storage = ObjectStorage.at("memory:///", {})
        self.host = Cluster(Ground(log=PROGRAM.log(), storage=self.storage), PROGRAM)
        self.copies = LocalCopies(folder, self.host.checkpoint)
        self.standbys = Standbys(self.storage, self.copies)

    @property
    def number(self) -> int:
        return self.host.coordinator.ledger.number

    def check(self) -> None:
        """The standbys are at the last version, and hold what the tasks hold."""
        expected = self.host.stores()
        for task in self.standbys.tasks:
            engine = self.copies.open(task).open()
            assert engine.version == self.host.coordinator.ledger.head(task).version
            assert list(engine.scan(b"", None)) == expected[task]


@pytest.fixture
def place(tmp_path):
    found = Place(tmp_path / "state")
    yield found
    found.copies.close()
    found.host.close()


def test_standbys_follow_every_batch_or_several_at_once(place: Place):
    place.standbys.assign(COUNTS)
    for batches in (1, 1, 5, 2, 1):
        place.host.run(batches)
        numbers = place.standbys.follow(place.number)
        assert numbers.keys() == set(COUNTS)
        place.check()


def test_a_standby_catches_up_though_files_it_missed_are_merged_and_deleted(place: Place):
    place.standbys.assign(COUNTS)
    place.host.run(2)
    place.standbys.follow(place.number)
    place.host.run()
    place.standbys.follow(place.number)
    place.check()


def test_a_batch_whose_files_are_gone_is_skipped(place: Place):
    place.standbys.assign(COUNTS)
    place.host.run(1)
    early = place.number
    place.host.run()
    with pytest.raises(MissingFileError):
        place.storage.read(f"manifests/{early:012}")
    assert place.standbys.follow(early) == {}
    assert place.standbys.follow(place.number).keys() == set(COUNTS)
    place.check()


def test_a_task_takes_over_the_copy_of_its_standby(place: Place):
    place.standbys.assign(COUNTS)
    place.host.run(6)
    place.standbys.follow(place.number)
    place.host.run(1)
    task = COUNTS[0]
    place.standbys.take([task])
    place.standbys.follow(place.number)
    head = place.host.coordinator.ledger.head(task)
    restored = restore(
        place.copies.open(task), head.version, lambda: head.chain, partial(read_delta, place.storage, task)
    )
    assert restored.how in (CAUGHT_UP, READY)
    assert restored.deltas <= 1
    assert place.standbys.tasks == {COUNTS[1]}
    place.check()


def test_a_standby_that_is_not_wanted_any_more_is_released(place: Place):
    place.standbys.assign(COUNTS)
    place.host.run(3)
    place.standbys.follow(place.number)
    place.standbys.assign(COUNTS[:1])
    assert place.standbys.follow(place.number).keys() == {COUNTS[0]}
    assert place.copies.held == {COUNTS[0]}
    other = LocalCopies(place.copies.directory, place.host.checkpoint)
    assert other.list_free().keys() == {COUNTS[1]}


def test_the_thread_of_a_slot_follows_what_is_committed_and_says_so(place: Place):
    told: list[dict[TaskId, int]] = []
    heard = threading.Event()

    def report(numbers: dict[TaskId, int]) -> None:
        told.append(numbers)
        heard.set()

    keeper = LocalStateKeeper(place.standbys, place.copies, 600.0, report)
    try:
        place.standbys.assign(COUNTS)
        place.host.run(4)
        keeper.commit(place.number)
        assert heard.wait(20)
        ledger = place.host.coordinator.ledger
        assert told == [{task: version.number for task in COUNTS if (version := ledger.head(task).version) is not None}]
    finally:
        keeper.close()
    place.check()
