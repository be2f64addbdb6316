"""End-to-end latency: a producer that sends a record each millisecond, a consumer of what is committed, one clock.

The time of a record begins when it is due, not when the producer gets to it. Keys and words do not come twice, so that
an output says which input it is the output of.

    latency     count by key (W5): no repartition
    latency-1   word count, a word in every line: one repartition
    latency-2   word count, and the counts counted again by word: two repartitions
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.peers.measure import Say, started
from benchmarks.peers.outcome import Outcome
from benchmarks.peers.room import Room
from benchmarks.peers.running import ProblemError, Running
from benchmarks.peers.systems import System
from benchmarks.peers.workload import PARTITIONS, Workload
from benchmarks.peers.workloads import count_by_key, word_count

RATE = 1_000  # records a second
WARM_UP, SECONDS = 30.0, 30.0  # not counted, and counted: a JVM takes twenty until it has compiled what is in use
PATIENCE = 30.0  # seconds until the last output must be there
PERCENTILES = 0.5, 0.99, 0.999


class LatencyCell(NamedTuple):
    """A topology whose latency is measured. `repartitions` is how often its records change their partition."""

    title: str
    repartitions: int
    workload: Workload

    def record(self, number: int) -> tuple[bytes | None, bytes]:
        """Key and value of an input record. Its output has the key `output_key(number)`."""
        return (b"key%d" % number, b"x") if self.repartitions == 0 else (None, b"key%d" % number)


def output_key(number: int) -> bytes:
    return b"key%d" % number


CELLS = {
    "latency": LatencyCell("latency of W5", 0, count_by_key(1.0)),
    "latency-1": LatencyCell("latency of word count, one repartition", 1, word_count(1.0)),
    "latency-2": LatencyCell("latency with two repartitions", 2, word_count(1.0)),
}


class Arrivals:
    """When which key came out, noted by a thread."""

    def __init__(self, room: Room) -> None:
        self.times: dict[bytes, float] = {}
        settings = {"group.id": f"{room.name}-latency", "isolation.level": "read_committed", "fetch.wait.max.ms": 5}
        self._consumer = Consumer(settings | {"bootstrap.servers": room.bootstrap, "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(room.output, i, 0) for i in range(PARTITIONS)])
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._note, daemon=True)
        self._thread.start()

    def _note(self) -> None:
        while not self._over.is_set():
            message = self._consumer.poll(0.1)  # `consume` would wait for more than one
            if message is not None and message.error() is None:
                self.times.setdefault(bytes(message.key() or b""), time.monotonic())

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._consumer.close()


@contextmanager
def _noting(room: Room) -> Iterator[Arrivals]:
    arrivals = Arrivals(room)
    try:
        yield arrivals
    finally:
        arrivals.close()


def latency(bootstrap: str, base: list[str], system: System, name: str, scale: float, cores: int, say: Say) -> Outcome:
    """Percentiles at a thousand records a second."""
    workload = CELLS[name].workload
    outcome = Outcome(name, system.name, cores)
    with Room(bootstrap, f"{name}-{system.name}", workload.topics) as room:
        room.write(workload.first())
        before = room.ends(room.inputs)
        say("starts")
        with started(room, base, system, outcome) as running, _noting(room) as arrivals:
            outcome.start_up = running.first_output()
            running.settle(before)
            say("works")
            due = _paced(room, running, CELLS[name], WARM_UP * min(1, 10 * scale) + SECONDS * min(1, 10 * scale))
            _await(running, arrivals, due)
            counted = list(due)[int(len(due) * WARM_UP / (WARM_UP + SECONDS)) :]
            took = sorted(arrivals.times[key] - due[key] for key in counted)
            outcome.latency = [1000 * took[int(share * len(took))] for share in PERCENTILES]
            outcome.records = len(took)
    return outcome


def _paced(room: Room, running: Running, cell: LatencyCell, seconds: float) -> dict[bytes, float]:
    """Sends a record each millisecond; when which key was due."""
    settings = {"bootstrap.servers": room.bootstrap, "partitioner": "murmur2_random", "linger.ms": 0}
    producer, due = Producer(settings), dict[bytes, float]()
    begun = time.monotonic()
    for i in range(int(seconds * RATE)):
        at = begun + i / RATE
        if (early := at - time.monotonic()) > 0:
            time.sleep(early)
        key, value = cell.record(i)
        due[output_key(i)] = at
        producer.produce(room.inputs[0], value, key, timestamp=int(time.time() * 1000))
        producer.poll(0)
        if i % RATE == 0:
            running.check()
    producer.flush()
    return due


def _await(running: Running, arrivals: Arrivals, due: dict[bytes, float]) -> None:
    end = time.monotonic() + PATIENCE
    while missing := len(due.keys() - arrivals.times.keys()):
        running.check()
        if time.monotonic() > end:
            raise ProblemError(f"wrong: {missing:,} of {len(due):,} records have no output")
        time.sleep(0.1)
