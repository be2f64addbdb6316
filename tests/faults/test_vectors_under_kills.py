"""Cases on Spark, record by record what Kafka Streams gave, while drivers and slots are killed.

Every step of a case is processed and delivered before the next one is written, as in Kafka Streams' test driver. Cases
are run again, from the start, until all kills have landed: 3, and 20 in `make test-faults`.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from headrace import Record
from headrace.checkpoint.steps import DELIVERY, DELTA_WRITTEN, MANIFEST, MARKER, RANGES_PLANNED, RECEIPT, TASK_RUN
from headrace.log.open import open_log
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from tests.faults.deployment import PATIENCE, Run
from tests.faults.kills import DRIVER, HOME, Kill
from tests.faults.vector_run import find_case, input_topics
from tests.oracle.language import Case
from tests.oracle.packs import packs, run_pack
from tests.oracle.running import Result, shown
from tests.oracle.spark_host import SparkHost
from tests.oracle.topologies import Program
from tests.oracle.vectors import RANDOM, untagged

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

CASES = ("fk_leftJoin", "st_leftJoin_plain", "ss_outerJoin_sym", "suppress_close_concat_tumbling")
KILLS = int(os.environ.get("HEADRACE_FAULTS", "3"))
IN_DRIVER = (RANGES_PLANNED, MANIFEST, DELIVERY, MARKER)
IN_SLOTS = (TASK_RUN, DELTA_WRITTEN, RECEIPT)


class RunningCase:
    """A case with its log, to which one step after the other is written."""

    def __init__(self, folder: Path, name: str) -> None:
        self.case: Case = find_case(name)
        self.program, self.folder = Program(self.case), folder / name
        self.folder.mkdir(parents=True)
        self.log = open_log(f"file:{self.folder}/log")
        for topic in input_topics(self.case):
            self.log.create_topic(topic, 1)
        self.steps, self.read = self.case["steps"], dict[str, int]()
        self.found: dict[str, list[Result]] = {topic: [] for topic in self.case["expected"]["outputs"]}

    def write(self, number: int) -> None:
        if number < len(self.steps):
            piped = self.steps[number]["pipe"]
            serdes = self.program.types_of(piped["topic"]).serdes
            key, value = (
                None if piped.get(part) is None else serdes[part].encode(piped[part]) for part in ("key", "value")
            )
            self.log.append([(TopicPartition(piped["topic"], 0), Records([key], [value], [piped["ts"]]))])

    def is_settled(self) -> bool:
        ends = [[at.topic, extent.end] for at, extent in sorted(self.log.extents(input_topics(self.case)).items())]
        settled = self.folder / "settled"
        return settled.exists() and msgspec.json.decode(settled.read_bytes()) == ends

    def collect(self, number: int) -> None:
        """Reads what the step has written. The order of what several internal records of a step cause is not given."""
        for topic, some in self.found.items():
            if topic not in self.log.topics():
                continue
            serdes, rows = self.program.outputs([topic])[topic].serdes, list[Result]()
            for chunk in self.log.read(TopicPartition(topic, 0), self.read.get(topic, 0)):
                for offset, key, value, timestamp, headers in chunk.rows():
                    self.read[topic] = offset + 1
                    plain = [None if raw is None else serdes[part].decode(raw) for part, raw in
                             (("key", key), ("value", value))]  # fmt: skip
                    rows.append(shown(Record(plain[0], plain[1], timestamp, headers), number))
            some.extend(self.in_order(rows, number))

    def in_order(self, rows: list[Result], number: int) -> list[Result]:
        return sorted(rows, key=str) if number in self.case["expected"].get("multi_internal_steps", ()) else rows

    def check(self) -> None:
        for topic, expected in self.case["expected"]["outputs"].items():
            by_step = [
                row
                for number in range(len(self.steps))
                for row in self.in_order([row for row in expected if row["step"] == number], number)
            ]
            assert self.found[topic] == by_step, f"{self.case['name']}: {topic}"


class Runs:
    """The process of the applications, which is started again when it was killed. `kills` is how many have landed."""

    def __init__(self, environment: dict[str, str], chance: random.Random) -> None:
        self.environment, self.chance = environment, chance
        self.runs, self.kills = list[Run](), 0

    def start(self, place: Path) -> None:
        """With the end of a driver, and of slots on the way there, while there are kills left."""
        left, number = KILLS - self.kills, len(self.runs)
        kills = [self.kill(IN_SLOTS, HOME) for _ in range(min(2, left - 1))] + [self.kill(IN_DRIVER, DRIVER)]
        folder = place / f"run-{number}"
        folder.mkdir()
        (folder / "kills").write_bytes(msgspec.json.encode(kills if left > 0 else []))
        sys.stdout.write(f"{kills if left > 0 else 'no kills'}\n")
        arguments = ["-m", "tests.faults.vector_run", str(place), str(number)]
        self.runs.append(Run(arguments, folder, self.environment))

    def kill(self, steps: tuple[str, ...], whom: str) -> Kill:
        chance = self.chance
        return Kill(f"{chance.choice(['before', 'after'])} {chance.choice(steps)}", chance.randrange(4, 24), whom)

    def keep_running(self, place: Path) -> None:
        run = self.runs[-1]
        if run.process.poll() is not None:
            assert run.process.poll() == -9, run.last_words
            self.end()
            self.start(place)

    def end(self) -> None:
        run = self.runs[-1]
        run.clear()
        self.kills += run.landed()


@pytest.fixture
def runs(jvm: dict[str, str], chance: random.Random) -> Iterator[Runs]:
    runs = Runs(jvm, chance)
    yield runs
    for run in runs.runs:
        run.clear()


def run_cases(place: Path, runs: Runs) -> None:
    """Runs all cases step by step, and compares."""
    running = [RunningCase(place, name) for name in CASES]
    runs.start(place)
    for number in range(max(len(one.steps) for one in running)):
        for one in running:
            one.write(number)
        end = time.monotonic() + PATIENCE
        while not all(one.is_settled() for one in running):
            assert time.monotonic() < end, runs.runs[-1].last_words
            time.sleep(0.02)
            runs.keep_running(place)
        for one in running:
            one.collect(number)
    runs.end()
    for one in running:
        one.check()


def test_joins_and_suppressed_windows_give_what_kafka_streams_gave_under_kills(tmp_path: Path, runs: Runs):
    for number in range(2 * KILLS):  # by chance, all steps may pass without a kill
        run_cases(tmp_path / f"round-{number}", runs)
        if runs.kills == KILLS:
            break
    assert runs.kills == KILLS


@pytest.mark.slots
@pytest.mark.long
def test_random_cases_give_what_kafka_streams_gave_while_slots_are_killed(chance: random.Random):
    # With caches, what a batch joins into one update depends on its attempts.
    some = list(packs(case for case in untagged(RANDOM) if not case.get("config")))
    landed = 0

    def kill_slot(host: SparkHost) -> None:
        nonlocal landed
        slots = host.app.report().slots
        if slots and chance.random() < 0.2:
            time.sleep(0.15 * chance.random())  # into any step of the batch
            with suppress(ProcessLookupError):
                os.kill(chance.choice(slots).process, signal.SIGKILL)
                landed += 1

    while landed < KILLS:
        assert run_pack(chance.choice(some), disturb=kill_slot) == {}
