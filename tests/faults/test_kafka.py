"""Applications whose log is a Kafka cluster, while drivers, workers and brokers are killed or stand still.

Somebody reads what is committed all the time, and must see exactly what a run on the embedded log has written that was
never disturbed, and whose output the test driver confirms. HEADRACE_FAULTS says how many kills by chance there are:
`make test-faults` is the long form.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from headrace.checkpoint.steps import BATCH, DELIVERY, DELTA_WRITTEN, MARKER, MERGE, PURGE, RECEIPT, SHARE, TASK_RUN
from headrace.log.kafka import KafkaLog
from headrace.model.ids import TopicPartition
from headrace.testing import KafkaBroker
from headrace.testing.broker import _answers
from tests.faults.committed_readers import Line, Witness
from tests.faults.deployment import Deployment, Row, Run, wait_until
from tests.faults.kills import (
    BROKER,
    HANG,
    HOME,
    SHUTDOWN,
    SLEEPER,
    STALL,
    TRANSACTION,
    WORKERS,
    ZOMBIE,
    Kill,
    status_of,
)

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

SHORT = 3
KILLS = int(os.environ.get("HEADRACE_FAULTS", SHORT))
IS_LONG = KILLS > SHORT
QUICK = {"socket.timeout.ms": 1000, "socket.connection.setup.timeout.ms": 1000, "reconnect.backoff.max.ms": 200}
SMALL: dict[str, Any] = {"batch.max.records": 2, "receipt.max.bytes": 0, "slot.lease.ms": 3000, **QUICK}
SHARED = {**SMALL, "delivery.job.min.bytes": 1}  # every batch is delivered by a Spark job
HASTY = {**SMALL, "default.api.timeout.ms": 10_000}  # gives up before a broker is back
PATIENT = {**SMALL, "default.api.timeout.ms": 180_000}  # however busy the machine is on which the broker starts
DEFAULT = {"batch.max.records": 2, "receipt.max.bytes": 0}  # of a client: a request waits for 60 seconds
FORMS = [pytest.param(SMALL, id="by one"), pytest.param(SHARED, id="in shares", marks=pytest.mark.long)]
STEPS = (*BATCH, TRANSACTION)
IN_WORKERS = (TASK_RUN, DELTA_WRITTEN, RECEIPT)
WAITING = re.compile("waiting for|Trying again")  # a line about the cluster, of a request or of a client
SHARE_KILLS = (
    *(Kill(f"before {SHARE}", 5, SLEEPER), Kill(f"after {SHARE}", 5)),  # one of two shares is delivered
    *(Kill(f"before {SHARE}", 3, HOME), Kill(f"after {SHARE}", 6, HOME), Kill(f"before {SHARE}", 14, ZOMBIE)),
)
Outputs = dict[TopicPartition, list[Line]]


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:
        yield broker


class Scenario:
    """An application on Kafka, the broker, and a reader of committed records."""

    def __init__(self, broker: KafkaBroker, place: Deployment, due: Outputs, stores: Any) -> None:
        self.broker, self.place, self._due, self._stores = broker, place, due, stores
        self.witness = Witness(broker.bootstrap, due)
        self._note_broker()

    def _note_broker(self) -> None:
        new = self.place.folder / "broker.new"
        new.write_text(str(self.broker.pid))
        new.replace(self.place.folder / "broker")

    def restart_broker(self, *, at_once: bool = True, clean: bool = False) -> None:
        """Not at once: after its cluster has noticed that it was away."""
        self.broker.restart(at_once=at_once, clean=clean)
        self._note_broker()

    def check(self) -> None:
        """All was seen in time, nothing else is there, and the stores are what they should be."""
        self.witness.sees_all()
        assert lines_of(self.place.outputs()) == self._due
        self.place.check_outputs()
        assert self.place.stores() == self._stores


@pytest.fixture(scope="module")
def references() -> dict[int, Any]:
    """Outputs and stores of undisturbed runs on the embedded log, by the number of lines; the test driver agrees."""
    return {}


@pytest.fixture
def make_scenario(
    broker: KafkaBroker, deploy: Callable[..., Deployment], jvm: dict[str, str], references: dict[int, Any]
) -> Iterator[Callable[..., Scenario]]:
    with ExitStack() as stack:

        def make(lines: int, **options: Any) -> Scenario:
            if lines not in references:
                whole = deploy("LETTERS", name=f"whole-{lines}")
                whole.feed(lines - whole.fed)
                whole.start(environment=jvm).ends_well()
                whole.check_outputs()
                references[lines] = lines_of(whole.outputs()), whole.stores()
            forget(broker)
            place = deploy("LETTERS", **{"config": SMALL, "log": broker.address, "master": "local[2,4]", **options})
            place.feed(lines - place.fed)
            scenario = Scenario(broker, place, *references[lines])
            stack.enter_context(scenario.witness)
            return scenario

        yield make
        broker.resume()


def lines_of(outputs: dict[TopicPartition, list[Row]]) -> Outputs:
    """Without offsets: the ends of transactions have some of their own."""
    return {at: [(row[1], row[2], row[3], tuple(row[4])) for row in rows] for at, rows in outputs.items()}


def forget(broker: KafkaBroker) -> None:
    """Tests before this one have left topics and groups, or no broker."""
    if not _answers(broker.port):
        broker.restart()
    with KafkaLog(broker.address) as log:
        for name in log.topics():
            log.delete_topic(name)
        for group in log.groups():
            log.delete_group(group)


# ------------------------------------------------------------------------------------------------ drivers and workers
def kills_at_steps(chance: random.Random, steps: Sequence[str]) -> list[Kill]:
    """At every step, before or after it by chance; in the long form both."""
    kills: list[Kill] = []
    for name in steps:
        # At its start every run delivers what it takes over, and cleans up: later ones are in a batch.
        first = {DELIVERY: 2, MARKER: 2, TRANSACTION: 3}.get(name, 1)
        times = [first] if name in {MERGE, PURGE} else range(first, first + 3)
        moments = ["before", "after"] if IS_LONG else [chance.choice(["before", "after"])]
        kills += [Kill(f"{moment} {name}", chance.choice(times)) for moment in moments]
    return kills


@pytest.mark.parametrize("config", FORMS)
def test_drivers_that_are_killed_at_every_step_lose_nothing_and_repeat_nothing(make_scenario, jvm, chance, config):
    kills = kills_at_steps(chance, (*STEPS, SHARE) if config == SHARED else STEPS)
    scenario = make_scenario(12 * len(kills) + 120, config=config)
    for kill in kills:
        sys.stdout.write(f"{kill}\n")
        scenario.place.start(kill, environment=jvm).ends_by_kill()
    scenario.place.start(environment=jvm).ends_well()
    scenario.check()


def kills_of_workers(chance: random.Random) -> list[Kill]:
    moments = [f"{chance.choice(['before', 'after'])} {chance.choice(IN_WORKERS)}" for _ in range(chance.randrange(3))]
    return [Kill(moment, chance.randrange(1, 12), chance.choice([HOME, WORKERS])) for moment in moments]


def killed_soon(run: Run, chance: random.Random) -> None:
    """Killed wherever it is, a moment from now."""
    with suppress(subprocess.TimeoutExpired):
        run.process.wait(chance.uniform(0, 0.4))
    assert run.process.poll() is None, f"it was not killed, {run.last_words}"
    run.process.kill()
    run.process.wait()


@pytest.mark.parametrize("config", FORMS)
def test_drivers_and_workers_that_are_killed_at_any_time_lose_nothing_and_repeat_nothing(
    make_scenario, jvm, chance, config
):
    scenario, landed = make_scenario(60 * KILLS + 120, config=config), 0
    while landed < KILLS:
        run = scenario.place.start(*kills_of_workers(chance), environment=jvm)
        goal = scenario.witness.count + chance.randrange(1, 40)
        wait_until(lambda goal=goal: scenario.witness.count >= goal, run)
        killed_soon(run, chance)
        sys.stdout.write(f"killed after {scenario.witness.count} records, and {run.landed()} of its workers\n")
        landed += 1 + run.landed()
    scenario.place.start(environment=jvm).ends_well()
    scenario.check()


def test_a_worker_that_wakes_up_when_others_have_done_its_work_does_no_harm(make_scenario, jvm):
    scenario = make_scenario(200)
    run = scenario.place.start(Kill(f"before {TASK_RUN}", 9, ZOMBIE), environment=jvm)
    wait_until(lambda: bool(run.victims(0)), run)
    wake_up_later(scenario, run, *run.victims(0))
    run.ends_well()
    scenario.check()


def test_of_two_instances_the_one_that_slept_in_the_middle_of_a_commit_must_stop(make_scenario, jvm):
    scenario = make_scenario(120, patient=True)
    sleeper = scenario.place.start(Kill(f"before {TRANSACTION}", 5, HANG))
    _, status = os.waitpid(sleeper.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    scenario.place.start(environment=jvm).ends_well()
    os.kill(sleeper.process.pid, signal.SIGCONT)
    assert sleeper.end() == 1
    assert "another instance" in sleeper.said
    scenario.check()


# ------------------------------------------------------------------------------------------------------------- shares
def test_processes_killed_or_stopped_while_they_deliver_shares_lose_and_repeat_nothing(make_scenario, jvm):
    scenario = make_scenario(120, config=SHARED)
    all_but_the_marker = [Kill(f"before {DELIVERY}", 4)]
    for kills in (SHARE_KILLS[:2], all_but_the_marker):
        run = scenario.place.start(*kills, environment=jvm)
        run.ends_by_kill()
        assert run.landed() == len(kills)
    kills = SHARE_KILLS[2:]
    run = scenario.place.start(*kills, environment=jvm)
    wait_until(lambda: bool(run.victims(2)), run)
    wake_up_later(scenario, run, *run.victims(2))
    run.ends_well()
    assert run.landed() == len(kills)
    scenario.check()


def wake_up_later(scenario: Scenario, run: Run, zombie: int) -> None:
    """When others have done its work."""
    wait_until(lambda: status_of(zombie)[0] in "TXZ", run)  # Spark may have killed it already
    goal = scenario.witness.count + 40
    wait_until(lambda: scenario.witness.count >= goal, run)
    with suppress(ProcessLookupError):  # Spark kills a slot that was replaced
        os.kill(zombie, signal.SIGCONT)


# ----------------------------------------------------------------------------------------------------------- brokers
def test_brokers_that_die_or_stand_still_during_a_commit_are_waited_for(make_scenario, jvm):
    scenario = make_scenario(200, config=PATIENT)
    kills = [Kill(f"before {TRANSACTION}", 6, BROKER), Kill(f"after {TRANSACTION}", 12, BROKER)]
    run = scenario.place.start(*kills, Kill(f"before {TRANSACTION}", 18, STALL), environment=jvm)
    for number in (1, 2):
        wait_until(lambda number=number: run.landed() >= number, run)
        scenario.restart_broker(at_once=False)
    wait_until(lambda: run.landed() >= 3, run)
    warnings = len(WAITING.findall(run.said))
    wait_until(lambda: len(WAITING.findall(run.said)) > warnings, run)
    scenario.broker.resume()
    run.ends_well()
    scenario.check()


@pytest.mark.parametrize("ending", [BROKER, SHUTDOWN], ids=["killed", "shut down"])
def test_a_broker_that_restarts_at_once_in_the_middle_of_deliveries_changes_nothing(make_scenario, jvm, ending):
    """It is back before its cluster has noticed that it was away: Kafka may lose the ends of transactions then."""
    scenario = make_scenario(200, config=PATIENT)
    moments = [f"before {TRANSACTION}", f"after {TRANSACTION}"] * 2
    kills = [Kill(moment, 6 * number, ending) for number, moment in enumerate(moments, 1)]
    run = scenario.place.start(*kills, environment=jvm)
    for number in range(1, len(kills) + 1):
        wait_until(lambda number=number: run.landed() >= number, run)
        scenario.restart_broker(clean=ending == SHUTDOWN)
    run.ends_well()
    scenario.check()


def test_a_driver_that_dies_with_its_broker_is_followed_though_the_broker_restarts_at_once(make_scenario, jvm):
    scenario = make_scenario(120, config=PATIENT)
    for moment in (f"before {TRANSACTION}", f"after {TRANSACTION}"):
        run = scenario.place.start(Kill(moment, 5, BROKER), Kill(moment, 5), environment=jvm)
        run.ends_by_kill()
        assert run.landed() == 2
        scenario.restart_broker()
    scenario.place.start(environment=jvm).ends_well()
    scenario.check()


def test_a_broker_that_comes_after_the_application_is_waited_for(make_scenario, jvm):
    scenario = make_scenario(120, config=PATIENT)
    scenario.broker.kill()
    run = scenario.place.start(environment=jvm)
    wait_until(lambda: WAITING.search(run.said) is not None, run)
    scenario.restart_broker()
    run.ends_well()
    scenario.check()


def test_an_application_that_gives_up_on_its_broker_says_so_and_the_next_one_goes_on(make_scenario, jvm):
    scenario = make_scenario(120, config=HASTY)
    run = scenario.place.start(Kill(f"before {TRANSACTION}", 5, STALL), environment=jvm)
    assert run.end() == 1
    assert run.landed()
    assert "Are the brokers running, and reachable" in run.said
    scenario.broker.resume()
    scenario.place.settings.config = PATIENT
    scenario.place.start(environment=jvm).ends_well()
    scenario.check()


def test_brokers_that_die_at_any_time_are_waited_for(make_scenario, jvm, chance):
    deaths = 1 + KILLS // SHORT
    scenario = make_scenario(60 * deaths + 60, config=PATIENT)
    ways = [{"at_once": False}, {}, {"clean": True}]
    run = scenario.place.start(environment=jvm)
    for _ in range(deaths):
        goal = scenario.witness.count + chance.randrange(1, 60)
        wait_until(lambda goal=goal: scenario.witness.count >= goal, run)
        how = chance.choice(ways)
        sys.stdout.write(f"the broker restarts after {scenario.witness.count} records: {how}\n")
        scenario.restart_broker(**how)
    run.ends_well()
    scenario.check()


@pytest.mark.long
def test_a_broker_that_is_away_for_70_seconds_stops_the_application_at_most(make_scenario, jvm):
    """With default settings a request waits for 60 seconds. The next start continues."""
    scenario = make_scenario(120, config=DEFAULT)
    run = scenario.place.start(Kill(f"before {TRANSACTION}", 5, BROKER), environment=jvm)
    wait_until(lambda: run.landed() == 1, run)
    threading.Event().wait(70)
    scenario.restart_broker()
    if run.end() != 0:
        assert run.process.returncode == 1
        assert "Are the brokers running, and reachable" in run.said
        scenario.place.start(environment=jvm).ends_well()
    scenario.check()
