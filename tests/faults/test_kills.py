"""Drivers on Spark that are killed at every step of a batch, and started again: log and stores do not show it."""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

import pyspark
import pytest

from headrace.checkpoint.steps import (
    BATCH,
    DELIVERY,
    DELTA_WRITTEN,
    MANIFEST,
    MARKER,
    MERGE,
    PURGE,
    RANGES_PLANNED,
    RECEIPT,
    TASK_RUN,
)
from tests.faults.deployment import Deployment, gone
from tests.faults.kills import EXECUTOR, HOME, JVM, WORKERS, Kill
from tests.faults.programs import line

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SMALL = {"batch.max.records": 2, "receipt.max.bytes": 0}
GROUPS = [(RANGES_PLANNED, TASK_RUN, DELTA_WRITTEN), (RECEIPT, MANIFEST, DELIVERY), (MARKER, MERGE, PURGE)]


@pytest.fixture(scope="module")
def undisturbed(jvm, tmp_path_factory):
    """Log and stores of a run that is never killed, all of it in one batch; the log has the test driver's records."""
    deployment = Deployment(tmp_path_factory.mktemp("undisturbed") / "deployment", "WORDS", tables=["counts"])
    deployment.start(environment=jvm).ends_well()
    deployment.clear()
    deployment.check_outputs()
    words = Counter(word for number in range(deployment.fed) for word in line(number).split())
    assert dict(deployment.tables()["counts"]) == words
    return deployment.outputs(), deployment.stores()


def kill_at(name: str, when: str, chance: random.Random) -> Kill:
    # At its start every run delivers what it takes over, and cleans up: the second time is in a batch.
    first = 2 if name in {DELIVERY, MARKER} else 1
    return Kill(f"{when} {name}", first if name in {MERGE, PURGE} else chance.randrange(first, first + 3))


def test_every_step_is_in_a_group():
    assert sorted(name for group in GROUPS for name in group) == sorted(BATCH)


@pytest.mark.parametrize("names", GROUPS, ids=" and ".join)
def test_log_and_stores_are_those_of_a_run_that_was_never_killed(names, deploy, jvm, undisturbed, chance):
    place = deploy("WORDS", config=SMALL)
    for kill in [kill_at(name, when, chance) for name in names for when in ("before", "after")]:
        sys.stdout.write(f"{kill}\n")
        place.start(kill, environment=jvm).ends_by_kill()
    place.start(environment=jvm).ends_well()
    assert (place.outputs(), place.stores()) == undisturbed


def test_the_micro_batch_trigger_survives_a_kill_at_every_step_too(deploy, jvm, undisturbed, chance):
    place = deploy("WORDS", config={**SMALL, "processing.trigger": "micro-batch"})
    for name in BATCH:
        kill = kill_at(name, chance.choice(["before", "after"]), chance)
        sys.stdout.write(f"{kill}\n")
        place.start(kill, environment=jvm).ends_by_kill()
    place.start(environment=jvm).ends_well()
    assert (place.outputs(), place.stores()) == undisturbed


def test_what_a_killed_driver_leaves_running_does_no_harm_and_ends(deploy, undisturbed):
    """Its JVM and its workers are still at work when the next driver starts."""
    place = deploy("WORDS", config=SMALL)
    killed = place.start(Kill(f"before {TASK_RUN}", 4))
    killed.ends_by_kill()
    place.start().ends_well()
    assert gone(killed.process.pid)
    assert (place.outputs(), place.stores()) == undisturbed


def test_a_jvm_that_is_killed_stops_the_application_and_the_next_start_continues(deploy, jvm, undisturbed):
    place = deploy("WORDS", config=SMALL)
    run = place.start(Kill(f"before {TASK_RUN}", 4, JVM))
    assert run.end() == 1
    assert "has ended: it was killed by SIGKILL" in run.said
    place.start(environment=jvm).ends_well()
    assert (place.outputs(), place.stores()) == undisturbed


@pytest.mark.parametrize("trigger", ["real-time", "micro-batch"])
def test_workers_that_are_killed_in_their_tasks_are_replaced(deploy, jvm, undisturbed, trigger):
    place = deploy("WORDS", config={**SMALL, "processing.trigger": trigger}, master="local[2,4]")
    moments = [f"before {TASK_RUN}", f"after {TASK_RUN}", f"after {DELTA_WRITTEN}", f"after {RECEIPT}"]
    kills = [Kill(moment, 5 + 6 * n, HOME if n % 2 else WORKERS) for n, moment in enumerate(moments)]
    run = place.start(*kills, environment=jvm)
    run.ends_well()
    assert run.landed() == len(kills)
    assert (place.outputs(), place.stores()) == undisturbed


def test_executors_that_are_killed_are_replaced(deploy, undisturbed):
    place = deploy("WORDS", config={**SMALL, "slots.free.cores": 0}, master="local-cluster[2,1,1024]")
    kills = [Kill(f"before {TASK_RUN}", 6, EXECUTOR), Kill(f"after {RECEIPT}", 17, EXECUTOR)]
    run = place.start(*kills, environment={"SPARK_HOME": str(Path(pyspark.__file__).parent)})
    run.ends_well()
    assert run.landed() == len(kills)
    assert (place.outputs(), place.stores()) == undisturbed
