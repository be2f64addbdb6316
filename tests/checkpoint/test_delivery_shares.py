"""Batches whose outputs are large: shares have all of them but what only one can deliver."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.checkpoint.coordinator import CommitHooks, Coordinator
from headrace.checkpoint.delivery import read_share
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.outbox import encode_outbox
from headrace.checkpoint.receipt import Receipt
from headrace.checkpoint.storage import open_storage
from headrace.errors import LogBusyError, StreamsError
from headrace.model.ids import TaskId
from tests.checkpoint.cluster import ME, eager
from tests.checkpoint.memory_log import MemoryLog
from tests.clocks import ManualClock

SHARES, KEYS = 3, [b"%d" % n for n in range(40)]


def receipts(number: int, *, known: Sequence[str]) -> list[Receipt]:
    """Two tasks write to the same partitions of two topics; the second one knows only some of them."""
    counts = {"many": 4, "new": 2}

    def outbox(task: int) -> bytes:
        rows = [
            (topic, None, key, b"%d %s" % (task, key), 5, (), (n, task))
            for topic in counts
            for n, key in enumerate(KEYS)
        ]
        return encode_outbox(rows, lambda topic: counts[topic] if topic in known or task == 0 else None, task)

    return [
        Receipt(
            task=TaskId(0, task), level=0, number=number, attempt=f"{task}-{number}", base=None, delta=b"", entries=0,
            outbox=outbox(task),
        )
        for task in range(2)
    ]  # fmt: skip


class Shared:
    """Delivers shares to a log, and may fail first."""

    def __init__(self, storage, log: MemoryLog, *failures: StreamsError) -> None:
        self.storage, self.log, self.failures, self.unshared_topics = storage, log, list(failures), list[list[str]]()

    def __call__(self, number: int) -> list[str]:
        if self.failures:
            raise self.failures.pop(0)
        parts = [read_share(self.storage, number, share, SHARES) for share in range(SHARES)]
        places = [at for part in parts for at in dict.fromkeys(at for at, _ in part.items)]
        assert len(places) == len(set(places))
        assert all(part.items for part in parts)
        for part in parts:
            self.log.append(part.items)
        self.unshared_topics += [part.unshared_topics for part in parts]
        return parts[0].unshared_topics


def delivered(shared, log: MemoryLog, storage, known: Sequence[str], large: int = 1) -> dict:
    options, hooks = (
        eager(share_bytes=large),
        CommitHooks(clock=ManualClock(), process=ME, **({"deliver_in_shares": shared} if shared else {})),
    )
    with Coordinator.open(storage, log, "app", Fingerprint((), (), {}), options=options, hooks=hooks) as coordinator:
        coordinator.commit(1, 0, receipts(1, known=known))
    assert log.delivered("app") == 1
    return dict(log.rows)


@pytest.mark.parametrize("known, left", [(["many", "new"], []), (["many"], ["new"])])
def test_shares_and_what_they_leave_are_what_one_delivers(known, left):
    whole = delivered(None, MemoryLog(many=4, new=2), open_storage("memory:///"), known)
    storage, log = open_storage("memory:///"), MemoryLog(many=4, new=2)
    shared = Shared(storage, log)
    assert delivered(shared, log, storage, known) == whole
    assert sum(map(len, whole.values())) == 4 * len(KEYS)
    assert shared.unshared_topics == [left] * SHARES


def test_only_a_large_batch_is_shared_and_a_retriable_error_is_retried():
    storage, log = open_storage("memory:///"), MemoryLog(many=4, new=2)
    shared = Shared(storage, log, LogBusyError("busy"), LogBusyError("busy"))
    delivered(shared, log, storage, ["many", "new"])
    assert shared.failures == []
    unasked = Shared(storage, log, StreamsError("asked"))
    delivered(unasked, MemoryLog(many=4, new=2), open_storage("memory:///"), [], large=1_000_000)


def test_an_error_in_a_share_names_the_batch():
    storage, log = open_storage("memory:///"), MemoryLog(many=4, new=2)
    shared = Shared(storage, log, StreamsError("no"))
    with pytest.raises(StreamsError, match="no") as error:
        delivered(shared, log, storage, [])
    assert error.value.__notes__[0].startswith("Batch 1 of 'app' is committed in manifests/000000000001")
