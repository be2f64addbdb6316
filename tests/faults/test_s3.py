"""A checkpoint on an S3-compatible server: the contract of storage, crashes, races, lost answers, and Spark."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from headrace.checkpoint.coordinator import CommitHooks, Coordinator
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.ownership import LeaseHolder, Ownership
from headrace.checkpoint.steps import BATCH, DELIVERY, DELTA_WRITTEN, MANIFEST
from headrace.checkpoint.storage import open_storage
from headrace.errors import AlreadyRunningError, FencedError, StorageError
from headrace.model.clock import SystemClock
from tests.checkpoint.cluster import Ground as InProcess
from tests.checkpoint.cluster import Killer, outputs, run_to_end
from tests.checkpoint.memory_log import MemoryLog
from tests.checkpoint.programs import WORDS
from tests.checkpoint.test_storage import (  # noqa: F401 - the contract, here on S3
    test_a_file_is_deleted_if_it_is_there,
    test_a_file_is_made_once,
    test_a_file_that_is_not_there_is_named,
    test_a_part_of_a_file_can_be_read,
    test_an_empty_file_is_a_file,
    test_names_are_listed_by_prefix_and_in_order,
    test_of_many_who_make_a_file_at_once_one_succeeds,
)
from tests.clocks import ManualClock
from tests.faults.deployment import ROOT
from tests.faults.kills import Kill

pytestmark = pytest.mark.slow

MOMENTS = [f"{when} {name}" for name in BATCH for when in ("before", "after")]
prefixes = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    yield from served()


@pytest.fixture(scope="module")
def losing() -> Iterator[str]:
    """A server of whose answers to puts every third is lost."""
    yield from served("3")


def served(*arguments: str) -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults.s3", *arguments], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdout
        yield json.loads(process.stdout.readline())
        process.kill()


def place_on(server: str) -> str:
    """A place on a server that is empty."""
    settings = f"endpoint={server}&region=us-east-1&access_key_id=someone&secret_access_key=secret"
    return f"s3://bucket/{next(prefixes)}?{settings}"


@pytest.fixture
def storage(server):
    return open_storage(place_on(server))


@pytest.fixture(scope="module")
def undisturbed():
    ground = InProcess(log=WORDS.log(), storage=open_storage("memory:///"))
    cluster = run_to_end(ground, WORDS)
    assert [row[1:4] for row in outputs(ground.log)["out", 0]] == WORDS.expected()
    return outputs(ground.log), cluster.stores()


# `tests/checkpoint/test_crashes.py` kills at every moment on other storages; here one moment will do for a quick run.
@pytest.mark.parametrize(
    "moment", [pytest.param(m, marks=[] if m == f"after {MANIFEST}" else [pytest.mark.slow]) for m in MOMENTS]
)
def test_a_killed_host_goes_on_where_it_was(moment, storage, undisturbed):
    ground, killer = InProcess(log=WORDS.log(), storage=storage), Killer(moment, 2, 3)
    cluster = run_to_end(ground, WORDS, killer, inline=0)
    assert killer.landed == 2
    assert (outputs(ground.log), cluster.stores()) == undisturbed
    cluster.close()


@pytest.mark.slow
def test_answers_that_get_lost_change_nothing(losing, undisturbed):
    for _ in range(3):  # at every start another answer is lost
        ground = InProcess(log=WORDS.log(), storage=open_storage(place_on(losing)))
        cluster = run_to_end(ground, WORDS, Killer(f"after {MANIFEST}", 2, 3), inline=0)
        assert (outputs(ground.log), cluster.stores()) == undisturbed
        cluster.close()


def test_of_many_instances_that_start_at_once_one_runs(server):
    place, barrier, refused, began = place_on(server), threading.Barrier(6), [], []

    def start(number: int) -> None:
        storage = open_storage(place)
        barrier.wait()
        try:
            began.append(
                Ownership.claim(
                    storage, SystemClock(), process=LeaseHolder("h", "m", number, "t"), lease_ms=600_000
                ).epoch
            )
        except AlreadyRunningError as error:
            refused.append(error)

    threads = [threading.Thread(target=start, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert began == [1]
    assert len(refused) == 5


def test_of_two_owners_that_commit_the_same_batch_one_is_fenced(server):
    place, clock, log = place_on(server), ManualClock(), MemoryLog()

    def opened(number: int) -> Coordinator:
        hooks = CommitHooks(
            clock=clock, process=LeaseHolder("h", "m", number, "t"), has_exited=lambda holder, observer: False
        )
        return Coordinator.open(open_storage(place), log, "app", Fingerprint((), (), {}), hooks=hooks)

    first = opened(1)
    first.commit(1, 0, [])
    with pytest.raises(AlreadyRunningError):
        opened(2)
    clock.advance(60_000)
    second = opened(2)  # has written manifest 2 to take over
    with pytest.raises(FencedError, match="another instance has taken over"):
        first.commit(2, 0, [])
    first.abandon()
    second.commit(3, 0, [])
    second.close()


def test_a_bucket_that_is_not_there_is_named(server):
    storage = open_storage(place_on(server).replace("//bucket/", "//nowhere/"))
    with pytest.raises(StorageError, match=r"s3://nowhere/\d+ cannot take a/1: "):
        storage.create("a/1", b"x")


def test_secrets_are_not_in_messages(server):
    assert "secret" not in open_storage(place_on(server)).describe()
    with pytest.raises(StorageError, match="s3://bucket/x cannot be opened") as caught:
        open_storage("s3://bucket/x?secret_access_key=hush&nonsense=1")
    assert "hush" not in str(caught.value)


@pytest.mark.spark
@pytest.mark.slow
def test_an_application_on_spark_is_killed_and_goes_on(deploy, server, jvm):
    config = {"batch.max.records": 7, "receipt.max.bytes": 0}
    whole = deploy("WORDS", name="whole", config=config)
    whole.start(environment=jvm).ends_well()
    place = deploy("WORDS", config=config, checkpoint=place_on(server))
    for moment in (f"after {DELTA_WRITTEN}", f"before {DELIVERY}"):
        place.start(Kill(moment, 3), environment=jvm).ends_by_kill()
    place.start(environment=jvm).ends_well()
    place.check_outputs()
    assert (place.outputs(), place.stores()) == (whole.outputs(), whole.stores())
