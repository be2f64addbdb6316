"""Several processes at one log, some killed: nothing torn, nothing twice, nothing lost that was acknowledged."""

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from headrace.log.embedded.file_log import FileLog
from headrace.log.protocol import Log, Records
from headrace.model.ids import TopicPartition
from tests.clocks import ManualClock
from tests.log import worker
from tests.log.harness import A, B, chunk_files, rows, seeded

pytestmark = pytest.mark.slow

SEED = 11
B1 = TopicPartition("b", 1)
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.log.worker"])


def start(target: Callable[..., None], *args: Any) -> tuple[ForkServerProcess, Connection]:
    """A process, and the pipe on which it tells what it did."""
    told, tells = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=target, args=(*args, tells))
    process.start()
    tells.close()
    return process, told


def all_of(told: Connection) -> Iterator[Any]:
    try:
        while True:
            yield told.recv()
    except (EOFError, ConnectionResetError):
        told.close()


@pytest.fixture
def home(directory: Path) -> Iterator[tuple[str, FileLog]]:
    with FileLog(directory, clean_every=None) as log:
        log.create_topic("a")
        log.create_topic("b", 2)
        yield str(directory), log


def numbers(log: Log, name: str) -> list[int]:
    """What a process has appended, if every append is whole, and in both topics."""
    in_a, in_b = ([row[1:3] for row in rows(log, at) if row[1] == name.encode()] for at in (A, B))
    assert in_a == in_b
    assert len(in_a) % 2 == 0
    return [int(value or b"") for _, value in in_a[::2]]


def test_processes_that_are_killed_leave_only_whole_appends(home: tuple[str, FileLog]):
    directory, log = home
    chance = seeded(SEED)
    steady = [start(worker.append_many, directory, f"steady {i}", 60) for i in range(2)]
    acknowledged: dict[str, int] = {}
    for life in range(6):
        name = f"victim {life}"
        victim, told = start(worker.append_many, directory, name, 10_000)
        acknowledged[name] = 0
        last = chance.randrange(25)
        for number in all_of(told):
            acknowledged[name] = number + 1
            if number == last:
                victim.kill()
        victim.join()
        assert victim.exitcode == -9
    for i, (process, told) in enumerate(steady):
        assert list(all_of(told)) == list(range(60))
        process.join()
        assert (process.exitcode, numbers(log, f"steady {i}")) == (0, list(range(60)))
    assert all(acknowledged.values()), "no kill landed"
    for name, count in acknowledged.items():
        found = numbers(log, name)
        assert found == list(range(len(found))), f"{name}, seed {SEED}"
        assert count <= len(found) <= count + 1, f"{name}, seed {SEED}"
    assert log.verify() == []


@pytest.mark.parametrize("step", worker.STEPS)
def test_a_process_killed_at_a_step_leaves_a_whole_log(home: tuple[str, FileLog], step):
    directory, log = home
    process, told = start(worker.die_at, directory, step)
    assert list(all_of(told)) == [0], "it was not killed"
    process.join()
    assert process.exitcode == -9
    is_committed = step == "before the acknowledgement"
    assert numbers(log, "die") == ([0, 1] if is_committed else [0])
    log.append([(A, Records([b"k"], [b"v"], [1]))])  # the lock is free
    assert log.verify() == []
    before = len(chunk_files(Path(directory)))
    later = FileLog(directory, clock=ManualClock(2**45), clean_every=None)
    later.clean()
    later.close()
    assert len(chunk_files(Path(directory))) == (4 if is_committed else 2) <= before
    assert log.verify() == []


def test_what_was_sent_is_stored_even_if_the_program_forgets_about_it(home: tuple[str, FileLog]):
    directory, log = home
    process, told = start(worker.send_and_forget, directory, 500)
    assert list(all_of(told)) == []
    process.join()
    assert process.exitcode == 0
    assert [row[2] for row in rows(log, A)] == [b"%d" % i for i in range(500)]


def test_partitions_of_a_killed_consumer_are_taken_over(home: tuple[str, FileLog]):
    directory, log = home

    def append(start: int, end: int) -> set[tuple[int, int]]:
        for at in (B, B1):
            log.append([(at, Records([None] * (end - start), [b""] * (end - start), range(start, end)))])
        return {(partition, offset) for partition in range(2) for offset in range(start, end)}

    before = append(0, 10)
    first, told_by_first = start(worker.consume, directory)
    seen = [told_by_first.recv() for _ in before]
    assert set(seen) == before
    second, told_by_second = start(worker.consume, directory)
    first.kill()
    first.join()
    again = list(all_of(told_by_first))
    after = append(10, 20)
    while not after <= set(again):
        again.append(told_by_second.recv())
    second.kill()
    second.join()
    told_by_second.close()
    assert set(again) <= before | after
    assert len(set(again) & before) <= 5  # what the first had read last, and not committed
