"""A checkpoint does not grow with time: 2,000 batches over a state that stays as large as it is."""

from __future__ import annotations

import random
from functools import partial

import pytest

from headrace.checkpoint.compaction import CompactionPolicy, purge_files
from headrace.checkpoint.coordinator import CommitHooks, CommitOptions, Coordinator
from headrace.checkpoint.files import read_delta
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.ledger import Ledger
from headrace.checkpoint.receipt import Receipt, complete_receipt, new_attempt
from headrace.checkpoint.restore import MemoryEngineProvider, restore
from headrace.checkpoint.steps import ignore_step
from headrace.checkpoint.storage import DiskStorage
from headrace.model.ids import TaskId
from headrace.state.delta import Delta
from tests.checkpoint.cluster import ME
from tests.checkpoint.memory_log import MemoryLog
from tests.clocks import ManualClock

pytestmark = pytest.mark.slow
BATCHES, TASKS = 2000, 6


class Load:
    """Tasks that change a few of their keys in every batch, or hardly ever, or delete them again."""

    def __init__(self, storage, options: CommitOptions, *, keys: int, value: int) -> None:
        self.storage, self.random, self.keys, self.value = storage, random.Random(7), keys, value  # noqa: S311
        self.states: dict[TaskId, dict[bytes, bytes]] = {TaskId(0, part): {} for part in range(TASKS)}
        self.log = MemoryLog(out=1)
        hooks = CommitHooks(clock=ManualClock(), process=ME, has_exited=lambda holder, observer: True)
        self.coordinator = Coordinator.open(
            storage, self.log, "app", Fingerprint((), (), {}), options=options, hooks=hooks
        )

    def batch(self, number: int, inline: int) -> None:
        receipts = []
        for task, state in self.states.items():
            if task.partition == 0 or number % (1 + 40 * task.partition) == 0:
                at = self.coordinator.ledger.head(task)
                number_ = self.coordinator.number
                receipt = Receipt(task=task, level=0, number=number_, attempt=new_attempt(), base=at.version)
                changes = {key: self._value(number) for key in sorted({self._key() for _ in range(10)})}
                state |= {key: value for key, value in changes.items() if value is not None}
                for key in [key for key, value in changes.items() if value is None]:
                    state.pop(key, None)
                delta = Delta(receipt.version, tuple(changes.items()))
                outputs = [("out", 0, b"k", b"v" * 50, number, (), (number,))]
                receipts.append(complete_receipt(self.storage, receipt, delta, outputs, {}, lambda _: 1, inline=inline))
        self.coordinator.commit(self.coordinator.number, number, receipts)
        self.log.rows.clear()

    def _key(self) -> bytes:
        return b"key %04d" % self.random.randrange(self.keys)

    def _value(self, number: int) -> bytes | None:
        return None if self.random.random() < 0.2 else b"%08d" % number * (self.value // 8)

    @property
    def live(self) -> int:
        """Bytes of keys and values, and of what a delta needs for each."""
        return sum(len(key) + len(value) + 8 for state in self.states.values() for key, value in state.items())

    def check(self) -> None:
        ledger: Ledger = self.coordinator.ledger
        for task, state in self.states.items():
            at = ledger.head(task)
            load = partial(read_delta, self.storage, task)
            engine = restore(MemoryEngineProvider(), at.version, lambda chain=at.chain: chain, load).engine
            assert dict(engine.scan(b"", None)) == state


def size_of(disk: DiskStorage) -> int:
    return sum((disk.directory / name).stat().st_size for name in disk.names())


@pytest.mark.parametrize("inline", [0, 1 << 20])
def test_2000_batches_stay_within_a_constant_factor_of_the_live_state(inline, tmp_path):
    disk = DiskStorage(tmp_path)
    options = CommitOptions(
        max_undelivered=0,
        background=False,
        keep=5,
        purge_every=10,
        purge_delay_ms=0,
        compaction=CompactionPolicy(min_bytes=4096, max_age=30),
    )
    load = Load(disk, options, keys=300, value=80)
    sizes, files = [], []
    for number in range(BATCHES):
        load.batch(number, inline)
        if number % 50 == 49:
            sizes.append(size_of(disk) / load.live)
            files.append(len(disk.names()))
    load.check()
    load.coordinator.close()
    assert max(sizes[4:]) < 5, sizes
    assert max(files) < 16 * TASKS + 50  # deltas, manifests, and what waits for the next purge


def test_what_is_deleted_is_gone_from_the_checkpoint_too(tmp_path):
    disk = DiskStorage(tmp_path)
    options = CommitOptions(
        max_undelivered=0,
        background=False,
        keep=2,
        purge_every=5,
        purge_delay_ms=0,
        compaction=CompactionPolicy(max_deltas=4, min_bytes=4096),
    )
    load = Load(disk, options, keys=200, value=4000)
    for number in range(100):
        load.batch(number, 0)
    full = size_of(disk)
    load.value = 0  # all values are empty from now on
    for number in range(100, 700):
        load.batch(number, 0)
    load.check()
    assert size_of(disk) < full / 4
    load.coordinator.close()


def test_what_crashes_leave_is_cleared_away(tmp_path):
    disk = DiskStorage(tmp_path)
    options = CommitOptions(max_undelivered=0, background=False, keep=2, purge_every=5, purge_delay_ms=0)
    load = Load(disk, options, keys=10, value=8)
    for number in range(20):
        load.batch(number, 0)
    stray = [
        f"deltas/0_0/{3:012}-zombie", f"deltas/0_0/{4:012}-x.tmp-half", f"outboxes/0_0/{9:012}-lost",
        f"snapshots/0_0/{20:012}-never-named", f"manifests/{20:012}.tmp-half", f"carried/0_0/{1:012}-a-0_1",
    ]  # fmt: skip
    ahead = [f"deltas/0_0/{99:012}-still-running"]
    for name in stray + ahead:
        disk.create(name, b"x")
    for number in range(20, 30):
        load.batch(number, 0)
    left = set(disk.names())
    assert not left & set(stray)
    assert set(ahead) <= left
    load.check()
    load.coordinator.close()


def test_manifests_are_deleted_before_what_they_name(tmp_path, monkeypatch):
    disk, deleted = DiskStorage(tmp_path), []
    for name in (f"deltas/0_0/{1:012}-x", f"manifests/{1:012}", f"manifests/{0:012}", f"snapshots/0_0/{1:012}-x"):
        disk.create(name, b"x")
    monkeypatch.setattr(disk, "delete", deleted.append)
    assert purge_files(disk, {f"snapshots/0_0/{1:012}-x"}, 1, ignore_step, lambda: 1) == 3
    assert deleted == [f"manifests/{0:012}", f"manifests/{1:012}", f"deltas/0_0/{1:012}-x"]


def test_upkeep_beside_the_batches_keeps_up(tmp_path):
    disk = DiskStorage(tmp_path)
    load = Load(
        disk,
        CommitOptions(
            keep=3,
            purge_every=5,
            purge_delay_ms=0,
            compaction=CompactionPolicy(max_deltas=6, min_bytes=1000, max_age=20),
        ),
        keys=100,
        value=40,
    )
    for number in range(400):
        load.batch(number, 0)
    load.coordinator.drain()
    load.coordinator._cleaner._executor.drain()
    load.check()
    assert len(load.coordinator.ledger.head(TaskId(0, 0)).chain) < 100
    load.coordinator.close()
    again = Coordinator.open(
        disk, load.log, "app", Fingerprint((), (), {}),
        options=CommitOptions(background=False, keep=1, purge_delay_ms=0),
        hooks=CommitHooks(clock=ManualClock(), process=ME),
    )  # fmt: skip
    assert len(disk.names()) < 60
    again.close()
