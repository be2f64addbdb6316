"""Word count on Kafka and on a real Spark cluster, whose parts are killed, stand still, and join.

Every word of every line gives one result, which must be one more than the word's result before: a line that is lost or
counted twice is seen at once. HEADRACE_FAULTS says how many faults there are; `make test-faults` is the long form, and
`make test-faults TRIGGER=micro-batch` has the faults by chance with that trigger.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from headrace.log.kafka import KafkaLog
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.testing import KafkaBroker
from tests.faults.committed_readers import CountWitness
from tests.faults.deployment import Deployment, Run, wait_until
from tests.faults.programs import WORD_COUNT, line
from tests.faults.standalone_cluster import StandaloneCluster, WorkerProcess
from tests.machine import Slowdown
from tests.web.servers import Answer, ask

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

FAULTS = int(os.environ.get("HEADRACE_FAULTS", "3"))
IS_REAL_TIME = os.environ.get("HEADRACE_PROCESSING_TRIGGER", "real-time") == "real-time"
URL = re.compile(r"http://127\.0\.0\.1:\d+")
QUICK = {"socket.timeout.ms": 1000, "socket.connection.setup.timeout.ms": 1000, "reconnect.backoff.max.ms": 200}
CONFIG: dict[str, Any] = {
    "slot.lease.ms": 3000, "receipt.max.bytes": 0, "default.api.timeout.ms": 180_000, **QUICK,
}  # fmt: skip
TOKEN = "a token of the tests"  # noqa: S105
JOIN = 10.0  # seconds from the registration of an executor until its slots have tasks
LINES = 40  # that are sent with every fault
WORDS = 4000  # different ones: a task of one of the eight partitions has 500 of them


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StandaloneCluster]:
    """Two workers; with the parameter True each has an address of its own, as every further one."""
    with StandaloneCluster(tmp_path / "cluster", is_apart=getattr(request, "param", False)) as cluster:
        cluster.add_workers(2)
        yield cluster


class Scenario:
    """Word count on a cluster and a broker, and a witness of its results."""

    def __init__(self, cluster: StandaloneCluster, broker: KafkaBroker, place: Deployment) -> None:
        self.cluster, self.broker, self.place = cluster, broker, place
        self.witness = CountWitness(broker.bootstrap, "out", WORD_COUNT.partitions)
        self.sent, self.stopped = Counter[str](), list[int]()
        self.run = self.start()

    def start(self) -> Run:
        options = ["--master", self.cluster.master, "--web", "--port", "0"]
        return self.place.command(*options, environment={**self.cluster.environment, "HEADRACE_TOKEN": TOKEN})

    def feed(self, lines: int) -> None:
        self.sent.update(word for n in range(self.place.fed, self.place.fed + lines) for word in line(n).split())
        self.place.feed(lines)

    def feed_words(self, *words: str) -> None:
        """Sends lines of one word each."""
        with closing(self.place.log()) as log:
            values = [word.encode() for word in words]
            log.append([(TopicPartition("lines", 0), Records([b"0"] * len(words), values, [0] * len(words)))])
        self.sent.update(words)

    def await_results(self) -> None:
        """Waits until everything that was sent is counted."""
        wait_until(lambda: self.sent <= self.witness.counts, self.run)

    def reported(self) -> dict[str, Any]:
        """What the dashboard says about slots and moves; no slots while the application starts."""
        answer = self.ask("/api/durability")
        return answer.json if answer is not None and answer.status == 200 else {"slots": [], "moves": 0}

    def slots(self) -> list[dict[str, Any]]:
        return self.reported()["slots"]

    def ask(self, path: str, method: str = "GET") -> Answer | None:
        """The answer of the application's web server; None while the application starts."""
        url = URL.search(self.run.said)
        try:
            return None if url is None else ask(url[0], path, method=method, authorization=f"Bearer {TOKEN}")
        except OSError:
            return None

    def await_answer(self, path: str, method: str = "GET") -> Answer:
        (answer,) = self.await_some(lambda: [some for some in [self.ask(path, method)] if some is not None])
        return answer

    def scale(self, slots: int) -> None:
        answer = self.await_answer(f"/actions/scale?slots={slots}", "POST")
        assert answer.status == 200, answer.body

    def restored_entries(self) -> float:
        """Entries of state that slots have restored so far, from deltas of the checkpoint."""
        answer = self.await_answer("/metrics")
        found = re.search(r"^headrace_restored_entries_total (\S+)$", answer.body.decode(), re.MULTILINE)
        assert found is not None
        return float(found[1])

    def await_slots(self, count: int) -> list[dict[str, Any]]:
        """Waits until so many slots have tasks. Lines are sent: tasks move between two batches."""

        def is_so() -> bool:
            self.feed(1)
            return len(self.slots()) == count and all(slot["tasks"] for slot in self.slots())

        wait_until(is_so, self.run)
        return self.slots()

    def has_standbys(self) -> bool:
        """Every task with a store has a standby on another host that is not behind."""
        slots = self.slots()
        hosts = {task: slot["host"] for slot in slots for task in slot["tasks"]}
        found = {
            task: behind
            for slot in slots
            for task, behind in slot["standbys"].items()
            if slot["host"] != hosts.get(task)
        }
        return found == {f"1_{part}": 0 for part in range(WORD_COUNT.partitions)}

    def await_some(self, find: Callable[[], list[Any]]) -> list[Any]:
        """Waits until there are slots or executors: the fault before may have met them all."""
        found: list[Any] = []

        def is_so() -> bool:
            found[:] = find()
            return bool(found)

        wait_until(is_so, self.run)
        return found

    def workers_with_slots(self) -> list[WorkerProcess]:
        processes = {slot["process"] for slot in self.slots()}
        return [worker for worker in self.cluster.workers if processes & set(worker.processes())]

    def replace(self, worker: WorkerProcess) -> None:
        """Another worker takes the place of one that was killed."""
        self.cluster.workers.remove(worker)
        self.cluster.add_worker()

    def wake_up(self) -> None:
        """Processes that stood still go on, unless they were killed meanwhile."""
        for process in self.stopped:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
        self.stopped.clear()

    def check(self) -> None:
        """Every line is counted once, in the log and in the state."""
        self.await_results()
        assert self.witness.counts == self.sent
        self.run.process.send_signal(signal.SIGTERM)
        self.run.ends_well()
        assert self.witness.counts == self.sent


@pytest.fixture
def make_scenario(
    cluster: StandaloneCluster, broker: KafkaBroker, deploy: Callable[..., Deployment]
) -> Iterator[Callable[..., Scenario]]:
    made: list[Scenario] = []

    def make(*, own_state: bool = False, **config: Any) -> Scenario:
        place = deploy("WORD_COUNT", log=broker.address, own_state=own_state, config={**CONFIG, **config})
        made.append(Scenario(cluster, broker, place))
        made[-1].witness.__enter__()
        return made[-1]

    yield make
    for scenario in made:
        scenario.witness.__exit__()
        scenario.place.clear()
    with KafkaLog(broker.address) as log:
        for name in log.topics():
            log.delete_topic(name)


# ------------------------------------------------------------------------------------------------------------- faults
def kill_python_worker(scenario: Scenario, chance: random.Random) -> str:
    """Kills a Python worker of an executor. With the micro-batch trigger no slot is reported."""
    found = scenario.await_some(lambda: [one for worker in scenario.cluster.workers for one in worker.python_workers()])
    with suppress(ProcessLookupError):  # it has ended by itself
        os.kill(chance.choice(found), signal.SIGKILL)
    return f"SIGKILL for one of {len(found)} Python workers"


def kill_slot(scenario: Scenario, chance: random.Random) -> str:
    """Kills the Python worker of an executor that serves a slot."""
    return send_signal(scenario, chance, signal.SIGKILL)


def stop_slot(scenario: Scenario, chance: random.Random) -> str:
    """A slot stands still for longer than its lease, and wakes up when it has been replaced."""
    return send_signal(scenario, chance, signal.SIGSTOP)


def send_signal(scenario: Scenario, chance: random.Random, number: signal.Signals) -> str:
    slot = chance.choice(scenario.await_some(scenario.slots))
    with suppress(ProcessLookupError):  # it was lost before, and the report is older
        os.kill(slot["process"], number)
    if number == signal.SIGSTOP:
        scenario.stopped.append(slot["process"])
    return f"{number.name} for slot {slot['slot']}"


def kill_executor(scenario: Scenario, chance: random.Random) -> str:
    executors = scenario.await_some(lambda: [one for worker in scenario.cluster.workers for one in worker.executors()])
    with suppress(ProcessLookupError):  # it has ended by itself
        os.kill(chance.choice(executors), signal.SIGKILL)
    return f"SIGKILL for one of {len(executors)} executors"


def kill_worker(scenario: Scenario, chance: random.Random) -> str:
    """Kills a worker. Its executors end when they notice it. Another worker takes its place."""
    worker = chance.choice(scenario.cluster.workers)
    worker.kill()
    scenario.replace(worker)
    return "SIGKILL for a worker"


def kill_host(scenario: Scenario, chance: random.Random) -> str:
    """Kills a worker, its executors and their Python workers at once. Another worker takes its place."""
    worker = chance.choice(scenario.cluster.workers)
    worker.kill_all()
    scenario.replace(worker)
    return "SIGKILL for all processes of a worker"


def kill_driver(scenario: Scenario, chance: random.Random) -> str:
    """Kills the driver, and starts another one. Executors of the first one may still run then."""
    scenario.run.process.kill()
    scenario.run.process.wait()
    scenario.run = scenario.start()
    return "SIGKILL for the driver"


def restart_broker(scenario: Scenario, chance: random.Random) -> str:
    at_once = chance.random() < 0.5  # before its cluster has noticed that it was away
    scenario.broker.restart(at_once=at_once)
    return f"SIGKILL for the broker, which restarts{' at once' * at_once}"


# A task that stands still is replaced by the lease of its slot, which the micro-batch trigger has not.
OF_SLOTS = (kill_slot, stop_slot) if IS_REAL_TIME else (kill_python_worker,)
KINDS = (*OF_SLOTS, kill_executor, kill_worker, kill_host, kill_driver, restart_broker)


def choose_faults(chance: random.Random) -> Iterator[Callable[[Scenario, random.Random], str]]:
    """All kinds in random order, again and again."""
    while True:
        yield from chance.sample(KINDS, len(KINDS))


def test_random_faults_lose_nothing_and_repeat_nothing(make_scenario, chance):
    scenario: Scenario = make_scenario()
    began = time.monotonic()
    scenario.feed(LINES)
    scenario.await_results()
    sys.stdout.write(f"started: results after {time.monotonic() - began:.1f} s\n")
    for number, fault in enumerate(islice(choose_faults(chance), FAULTS)):
        is_patient = chance.random() < 0.7  # else the next fault comes before this one has passed
        scenario.feed(LINES)
        began = time.monotonic()
        done = fault(scenario, chance)
        scenario.feed(LINES)
        if is_patient:
            scenario.await_results()
        took = f"results after {time.monotonic() - began:.1f} s" if is_patient else "another fault at once"
        sys.stdout.write(f"{number}: {done}; {took}\n")
        scenario.wake_up()
    scenario.check()


# ---------------------------------------------------------------------------------------------------------- workers
@pytest.mark.slots
@pytest.mark.parametrize("cluster", [True], indirect=True, ids=["hosts of their own"])
def test_a_worker_that_joins_gets_slots_and_standbys_take_over_from_one_that_is_killed(make_scenario):
    scenario: Scenario = make_scenario(own_state=True, **{"num.standby.replicas": 1})
    scenario.feed_words(*(f"word{n}" for n in range(WORDS)))
    scenario.feed(LINES)
    scenario.await_results()
    scenario.await_slots(3)  # two workers with two cores each, one of which stays free
    driver = scenario.run.process.pid

    worker = scenario.cluster.add_worker()
    joined = time.monotonic()
    worker.await_executor()  # a JVM, which takes as long as the machine is busy
    started, slowdown = time.monotonic(), Slowdown()
    scenario.await_slots(5)
    took = time.monotonic() - started
    sys.stdout.write(f"a worker joins: an executor after {started - joined:.1f} s, slots {took:.1f} s after that\n")
    assert took < JOIN * slowdown.factor()
    scenario.scale(3)  # as many as the other two workers have room for, so that only the killed slots are replaced
    scenario.await_slots(3)
    scenario.await_results()
    wait_until(scenario.has_standbys, scenario.run)

    victim, moves = scenario.workers_with_slots()[0], scenario.reported()["moves"]
    restored = scenario.restored_entries()
    scenario.feed(LINES)
    victim.kill_all()
    killed = time.monotonic()
    scenario.feed(LINES)
    scenario.await_results()
    sys.stdout.write(f"results flow again {time.monotonic() - killed:.1f} s after a worker was killed\n")
    wait_until(lambda: scenario.reported()["moves"] > moves, scenario.run)
    entries = scenario.restored_entries() - restored
    assert entries < WORDS / 20, f"{entries:.0f} entries came from the checkpoint, although there were standbys"
    scenario.cluster.workers.remove(victim)
    scenario.await_slots(3)
    assert scenario.run.process.pid == driver
    scenario.check()
