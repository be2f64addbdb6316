"""Whoever asks an application on Spark is told the truth: while it is under load, restarted, and killed."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.checkpoint.steps import MANIFEST
from headrace.log.embedded.file_log import FileLog
from headrace.log.protocol import Records
from headrace.model.ids import TopicPartition
from headrace.model.partitioner import partition_of
from tests.faults.answer_checks import PARTITIONS, TOPICS, Questioner, answers_in, check_answers
from tests.faults.deployment import Run, under_load, wait_until
from tests.faults.kills import Kill
from tests.faults.programs import line
from tests.faults.queried_program import KEYS, SETTINGS, RunSettings

pytestmark = [pytest.mark.spark, pytest.mark.slow]

AHEAD = 100  # lines that are written before those that were answered about: there always is a backlog
ENOUGH = 100  # answers of each kind
URL = re.compile(r"http://127\.0\.0\.1:\d+")


class Place:
    """A log, an application that is started again and again, and its replicas."""

    def __init__(self, folder: Path, jvm: dict[str, str]) -> None:
        self.folder, self._jvm, self.runs, self.replicas = folder, jvm, list[Run](), list[Run]()
        self.log = FileLog(folder / "log", clean_every=None)
        for topic in (*TOPICS, "tags"):
            self.log.create_topic(topic, PARTITIONS)
        self.fed = 0

    def feed(self, lines: int) -> None:
        """A line and a state every 10 ms, some of them late."""
        for number in range(self.fed, self.fed + lines):
            key = KEYS[number * 5 % len(KEYS)].encode()
            part = partition_of(key, PARTITIONS) or 0
            time = 10 * number - 35 * (number % 11 == 0)
            for topic in TOPICS:
                records = Records([key], [line(number).encode()], [max(0, time)])
                self.log.append([(TopicPartition(topic, part), records)])
        self.fed += lines

    def start(self, *kills: Kill) -> Run:
        folder = self.folder / f"run-{len(self.runs)}"
        folder.mkdir()
        settings = RunSettings(str(self.folder), str(folder), list(kills))
        (folder / "settings").write_bytes(msgspec.json.encode(settings))
        command = ["-m", "headrace", "run", "tests.faults.queried_program:app", "--web", "--no-token", "--port", "0"]
        self.runs.append(Run(command, folder, {**self._jvm, SETTINGS: str(folder / "settings")}))
        return self.runs[-1]

    def replica(self, *options: str) -> Run:
        folder = self.folder / f"replica-{len(self.replicas)}"
        folder.mkdir()
        place = ["--checkpoint", str(self.folder / "checkpoint"), "--topology", "tests.faults.queried_program:followed"]
        self.replicas.append(
            Run(["-m", "headrace", "replica", *place, "--no-token", "--port", "0", *options], folder, {})
        )
        return self.replicas[-1]

    def url(self) -> str | None:
        """Where the application that was started last answers."""
        return url_of(self.runs[-1]) if self.runs else None

    def read(self, position: dict[str, int]) -> int:
        """How many lines are behind a position."""
        return sum(offset for at, offset in position.items() if at.startswith("lines"))

    def goes_on(self, run: Run, seen: Questioner) -> None:
        """Waits until the replicas have seen the results of a run."""
        wait_until(lambda: url_of(run) is not None, run)
        known = self.read(seen.position)
        wait_until(lambda: self.read(seen.position) > known + 60, run)

    def close(self) -> None:
        for run in [*self.runs, *self.replicas]:
            run.clear()
        self.log.close()


@pytest.fixture
def place(tmp_path: Path, jvm: dict[str, str]) -> Iterator[Place]:
    made = Place(tmp_path, jvm)
    yield made
    made.close()


def url_of(run: Run) -> str | None:
    found = URL.search(run.said)
    return found[0] if found else None


def test_every_answer_is_the_table_at_its_position(place, chance):
    place.feed(AHEAD)
    in_memory, on_disk = place.replica(), ("--state-dir", str(place.folder / "copy"))
    place.replica(*on_disk)
    with (
        Questioner("replica", lambda: url_of(in_memory)) as copy,
        Questioner("replica on disk", lambda: url_of(place.replicas[-1])) as disk,
        Questioner("web", place.url) as web,
    ):
        with under_load(place, lambda: place.read(copy.position), AHEAD):
            place.start(Kill(f"after {MANIFEST}", chance.randrange(8, 14))).ends_by_kill()
            place.replicas[-1].process.kill()
            place.replica(*on_disk)
            place.start(Kill(f"before {MANIFEST}", chance.randrange(8, 14))).ends_by_kill()
            restarted = place.start()
            place.goes_on(restarted, copy)
            restarted.process.send_signal(signal.SIGTERM)
            restarted.ends_well()
            last = place.start()
            place.goes_on(last, copy)
            for asked in (copy, disk, web):  # a loaded machine answers few questions between two faults
                wait_until(lambda asked=asked: len(asked.answers) > ENOUGH, last)
            wait_until(lambda: sum(len(answers_in(run.folder / "answers")) for run in place.runs) > ENOUGH, last)
        for asked in (copy, disk, web):
            wait_until(lambda asked=asked: place.read(asked.position) == place.fed, last)
        last.process.send_signal(signal.SIGTERM)
        last.ends_well()
    in_process = [answer for run in place.runs for answer in answers_in(run.folder / "answers")]
    found = check_answers([*copy.answers, *disk.answers, *web.answers, *in_process], place.log)
    sys.stdout.write(
        f"{found.total()} answers {dict(found)} about {place.fed} lines in {in_process[-1].batch} batches; "
        f"not answered: {dict(copy.refused)}, {dict(disk.refused)}, {dict(web.refused)}\n"
    )
    assert copy.wrong + disk.wrong + web.wrong == []
    assert min(found[asked] for asked in ("app", "web", "replica", "replica on disk")) > ENOUGH
