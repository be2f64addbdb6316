"""Word count on Kafka and on a real Spark cluster, whose parts are killed, stand still, and join.

Every word of every line gives one result, which must be one more than the word's result before: a line that is lost or
counted twice is seen at once. HEADRACE_FAULTS says how many faults there are; `make test-faults` is the long form.
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
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from headrace.log.kafka import KafkaLog
from headrace.testing import KafkaBroker
from tests.faults.ground import Ground, Life, wait_until
from tests.faults.programs import WORD_COUNT, line
from tests.faults.standalone_cluster import StandaloneCluster, WorkerProcess
from tests.faults.witness import CountWitness
from tests.web.servers import ask

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

FAULTS = int(os.environ.get("HEADRACE_FAULTS", "3"))
URL = re.compile(r"http://127\.0\.0\.1:\d+")
QUICK = {"socket.timeout.ms": 1000, "socket.connection.setup.timeout.ms": 1000, "reconnect.backoff.max.ms": 200}
CONFIG: dict[str, Any] = {"slot.lease.ms": 3000, "receipt.max.bytes": 0, **QUICK}
JOIN = 10.0  # seconds from the registration of an executor until its slots have tasks
LINES = 40  # that are sent with every fault


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path / "cluster") as cluster:
        cluster.add_workers(2)
        yield cluster


class Scenery:
    """Word count on a cluster and a broker, and a witness of its results."""

    def __init__(self, cluster: StandaloneCluster, broker: KafkaBroker, place: Ground) -> None:
        self.cluster, self.broker, self.place = cluster, broker, place
        self.witness = CountWitness(broker.bootstrap, "out", WORD_COUNT.partitions)
        self.sent, self.stopped = Counter[str](), list[int]()
        self.life = self.start()

    def start(self) -> Life:
        options = ["--master", self.cluster.master, "--web", "--port", "0"]
        return self.place.command(*options, environment=self.cluster.environment)

    def feed(self, lines: int) -> None:
        self.sent.update(word for n in range(self.place.fed, self.place.fed + lines) for word in line(n).split())
        self.place.feed(lines)

    def await_results(self) -> None:
        """Waits until everything that was sent is counted."""
        wait_until(lambda: self.sent <= self.witness.counts, self.life)

    def reported(self) -> dict[str, Any]:
        """What the dashboard says about slots and moves; no slots while the application starts."""
        url = URL.search(self.life.said)
        try:
            answer = None if url is None else ask(url[0], "/api/durability")
        except OSError:
            answer = None
        return answer.json if answer is not None and answer.status == 200 else {"slots": [], "moves": 0}

    def slots(self) -> list[dict[str, Any]]:
        return self.reported()["slots"]

    def await_slots(self, count: int) -> list[dict[str, Any]]:
        """Waits until so many slots have tasks. Lines are sent: tasks move between two batches."""

        def is_so() -> bool:
            self.feed(1)
            return len(self.slots()) == count and all(slot["tasks"] for slot in self.slots())

        wait_until(is_so, self.life)
        return self.slots()

    def has_standbys(self) -> bool:
        """Every task with a store has a standby that is not behind."""
        found = {task: behind for slot in self.slots() for task, behind in slot["standbys"].items()}
        return found == {f"1_{part}": 0 for part in range(WORD_COUNT.partitions)}

    def await_some(self, find: Callable[[], list[Any]]) -> list[Any]:
        """Waits until there are slots or executors: the fault before may have met them all."""
        found: list[Any] = []

        def is_so() -> bool:
            found[:] = find()
            return bool(found)

        wait_until(is_so, self.life)
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
        self.life.process.send_signal(signal.SIGTERM)
        self.life.ends_well()
        assert self.witness.counts == self.sent


@pytest.fixture
def scenery(
    cluster: StandaloneCluster, broker: KafkaBroker, ground: Callable[..., Ground]
) -> Iterator[Callable[..., Scenery]]:
    made: list[Scenery] = []

    def make(**config: Any) -> Scenery:
        place = ground("WORD_COUNT", log=broker.address, config={**CONFIG, **config})
        made.append(Scenery(cluster, broker, place))
        made[-1].witness.__enter__()
        return made[-1]

    yield make
    for scene in made:
        scene.witness.__exit__()
        scene.place.clear()
    with KafkaLog(broker.address) as log:
        for name in log.topics():
            log.delete_topic(name)


# ------------------------------------------------------------------------------------------------------------- faults
def kill_slot(scene: Scenery, chance: random.Random) -> str:
    """Kills the Python worker of an executor that serves a slot."""
    return send_signal(scene, chance, signal.SIGKILL)


def stop_slot(scene: Scenery, chance: random.Random) -> str:
    """A slot stands still for longer than its lease, and wakes up when it has been replaced."""
    return send_signal(scene, chance, signal.SIGSTOP)


def send_signal(scene: Scenery, chance: random.Random, number: signal.Signals) -> str:
    slot = chance.choice(scene.await_some(scene.slots))
    os.kill(slot["process"], number)
    if number == signal.SIGSTOP:
        scene.stopped.append(slot["process"])
    return f"{number.name} for slot {slot['slot']}"


def kill_executor(scene: Scenery, chance: random.Random) -> str:
    executors = scene.await_some(lambda: [one for worker in scene.cluster.workers for one in worker.executors()])
    os.kill(chance.choice(executors), signal.SIGKILL)
    return f"SIGKILL for one of {len(executors)} executors"


def kill_worker(scene: Scenery, chance: random.Random) -> str:
    """Kills a worker. Its executors end when they notice it. Another worker takes its place."""
    worker = chance.choice(scene.cluster.workers)
    worker.kill()
    scene.replace(worker)
    return "SIGKILL for a worker"


def kill_host(scene: Scenery, chance: random.Random) -> str:
    """Kills a worker, its executors and their Python workers at once. Another worker takes its place."""
    worker = chance.choice(scene.cluster.workers)
    worker.kill_all()
    scene.replace(worker)
    return "SIGKILL for all processes of a worker"


def kill_driver(scene: Scenery, chance: random.Random) -> str:
    """Kills the driver, and starts another one. Executors of the first one may still run then."""
    scene.life.process.kill()
    scene.life.process.wait()
    scene.life = scene.start()
    return "SIGKILL for the driver"


def restart_broker(scene: Scenery, chance: random.Random) -> str:
    scene.broker.restart()
    return "SIGKILL for the broker"


KINDS = (kill_slot, stop_slot, kill_executor, kill_worker, kill_host, kill_driver, restart_broker)


def choose_faults(chance: random.Random) -> Iterator[Callable[[Scenery, random.Random], str]]:
    """All kinds in random order, again and again."""
    while True:
        yield from chance.sample(KINDS, len(KINDS))


def test_random_faults_lose_nothing_and_repeat_nothing(scenery, chance):
    scene: Scenery = scenery()
    began = time.monotonic()
    scene.feed(LINES)
    scene.await_results()
    sys.stdout.write(f"started: results after {time.monotonic() - began:.1f} s\n")
    for number, fault in enumerate(islice(choose_faults(chance), FAULTS)):
        is_patient = chance.random() < 0.7  # else the next fault comes before this one has passed
        scene.feed(LINES)
        began = time.monotonic()
        done = fault(scene, chance)
        scene.feed(LINES)
        if is_patient:
            scene.await_results()
        took = f"results after {time.monotonic() - began:.1f} s" if is_patient else "another fault at once"
        sys.stdout.write(f"{number}: {done}; {took}\n")
        scene.wake_up()
    scene.check()


# ---------------------------------------------------------------------------------------------------------- workers
def test_a_worker_that_joins_gets_slots_and_the_tasks_of_one_that_is_killed_move(scenery):
    scene: Scenery = scenery(**{"num.standby.replicas": 1})
    scene.feed(LINES)
    scene.await_results()
    scene.await_slots(3)  # two workers with two cores each, one of which stays free
    driver = scene.life.process.pid

    worker = scene.cluster.add_worker()
    joined = time.monotonic()
    worker.await_executor()  # a JVM, which takes as long as the machine is busy
    started = time.monotonic()
    scene.await_slots(5)
    took = time.monotonic() - started
    sys.stdout.write(f"a worker joins: an executor after {started - joined:.1f} s, slots {took:.1f} s after that\n")
    assert took < JOIN * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # where others have the cores too
    scene.await_results()
    wait_until(scene.has_standbys, scene.life)

    victim, moves = scene.workers_with_slots()[0], scene.reported()["moves"]
    scene.feed(LINES)
    victim.kill_all()
    killed = time.monotonic()
    scene.feed(LINES)
    scene.await_results()
    sys.stdout.write(f"results flow again {time.monotonic() - killed:.1f} s after a worker was killed\n")
    assert scene.reported()["moves"] > moves
    scene.cluster.workers.remove(victim)
    scene.await_slots(3)
    assert scene.life.process.pid == driver
    scene.check()
