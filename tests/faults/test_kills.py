"""Drivers on Spark that are killed at every step of a batch, and started again: log and stores do not show it.

Slots and executors are killed at some steps, and in the long form (`make test-faults`) at every step of a batch.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from pathlib import Path

import pyspark
import pytest

from headrace.checkpoint import steps
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
    RESCALE,
    SHARE,
    SINK,
    START,
    TASK_RUN,
)
from tests.connect.test_sink_faults import MOMENTS as SINK_MOMENTS
from tests.faults.deployment import Deployment, gone
from tests.faults.kills import EXECUTOR, HOME, JVM, SLOT, WORKERS, Kill
from tests.faults.programs import line
from tests.faults.test_kafka import SHARE_KILLS
from tests.faults.test_topic_growth import GROWTH_KILLS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SMALL = {"batch.max.records": 2, "receipt.max.bytes": 0}
# An owner purges nothing in the first two seconds after its takeover, in which it could run all batches.
SLOW = {**SMALL, "commit.interval.ms": 700}
GROUPS = [START, (RANGES_PLANNED, TASK_RUN, DELTA_WRITTEN), (RECEIPT, MANIFEST, DELIVERY), (MARKER, MERGE, PURGE)]
# Steps that only other applications take, with the moments at which other tests kill them.
ELSEWHERE = {
    # tests/faults/test_kafka.py
    SHARE: [kill.moment for kill in SHARE_KILLS],
    # tests/faults/test_topic_growth.py, and both moments in tests/checkpoint/test_rescale.py
    RESCALE: [kill.moment for kill in GROWTH_KILLS],
    # tests/connect/test_sink_faults.py
    **dict.fromkeys(SINK, SINK_MOMENTS),
}
IS_LONG = "HEADRACE_FAULTS" in os.environ
SPARK_HOME = {"SPARK_HOME": str(Path(pyspark.__file__).parent)}  # which the master local-cluster needs


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
    is_rare = name in {MERGE, PURGE, *START}
    return Kill(f"{when} {name}", first if is_rare else chance.randrange(first, first + 3))


def test_every_step_is_in_a_group():
    every = {value for name, value in vars(steps).items() if name.isupper() and isinstance(value, str)}
    assert sorted([*(name for group in GROUPS for name in group), *ELSEWHERE]) == sorted(every)
    for name, moments in ELSEWHERE.items():
        assert {f"before {name}", f"after {name}"} & set(moments)


@pytest.mark.parametrize("names", GROUPS, ids=" and ".join)
def test_log_and_stores_are_those_of_a_run_that_was_never_killed(names, deploy, jvm, undisturbed, chance):
    place = deploy("WORDS", config=SLOW if PURGE in names else SMALL)
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
    run = place.start(*kills, environment=SPARK_HOME)
    run.ends_well()
    assert run.landed() == len(kills)
    assert (place.outputs(), place.stores()) == undisturbed


if IS_LONG:

    @pytest.mark.parametrize("name", BATCH)
    @pytest.mark.parametrize("whom, master", [(SLOT, "local[2,4]"), (EXECUTOR, "local-cluster[2,1,1024]")])
    def test_slots_and_executors_that_are_killed_at_any_step_are_replaced(
        whom, master, name, deploy, undisturbed, chance
    ):
        """The one that takes the step, or one of those that wait while the driver takes it."""
        settings = SLOW if name == PURGE else SMALL
        place = deploy("WORDS", config={**settings, "slots.free.cores": 0}, master=master)
        kills = [kill_at(name, when, chance)._replace(whom=whom) for when in ("before", "after")]
        sys.stdout.write(f"{kills}\n")
        run = place.start(*kills, environment=SPARK_HOME)
        run.ends_well()
        assert run.landed() == len(kills)
        assert (place.outputs(), place.stores()) == undisturbed
