"""Every source under SIGKILL and with a server that goes away: the log has every record once.

A quick run kills processes at two steps, and takes the server away once. With HEADRACE_FAULTS=20 they are killed at
every step, and in 20 runs at random, and a Kafka broker is among the servers. `check_source`, in other tests, ends
sources at every step of every batch without killing a process.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.connect.source import DELIVER, READ, SOURCE_STEPS
from tests.connect.lives import Life, Lives
from tests.connect.source_cases import SOURCES, Feeder, free_ports, read_log, read_source

pytestmark = pytest.mark.slow
RUNS = int(os.environ.get("HEADRACE_FAULTS", "0"))
MOMENTS = [f"{when} {name}" for name in SOURCE_STEPS for when in ("before", "after")]
KILLS = MOMENTS if RUNS else [f"before {DELIVER}", f"after {DELIVER}"]
NAMES = (f"s{os.getpid()}_{number}" for number in range(1_000_000))
KINDS = [name for name in SOURCES if RUNS or name != "log-kafka"]
WITH_SERVERS = [name for name in KINDS if SOURCES[name].server is not None]


class Reading:
    """Lives that read a fresh source, and who feeds it."""

    def __init__(self, kind: str, lives: Lives, server: Any, place: Path) -> None:
        self._kind, self._lives, self._place, self._name = kind, lives, place, next(NAMES)
        self._address = str(place) if server is None else server.place
        if kind == "http":
            self._address = str(next(free_ports()))
        self.feeder: Feeder = SOURCES[kind].feeder(self._address, self._name, server)

    def begin(self, moment: str | None = None, nth: int = 1, hold: Path | None = None, max_records: int = 2) -> Life:
        return self._lives.begin(
            read_source, self._place / "errors", kind=self._kind, place=str(self._place), address=self._address,
            name=self._name, moment=moment, nth=nth, hold=None if hold is None else str(hold), max_records=max_records,
        )  # fmt: skip

    def finish(self) -> None:
        """Reads the rest, and compares."""
        life = self.begin()
        self.feeder.settle()
        (self._place / "complete").touch()
        assert life.end() == 0, life.said
        self.feeder.check(read_log(self._kind, self._place, self._address, self._name))


@pytest.fixture
def reading(request: pytest.FixtureRequest, kind: str, lives: Lives, tmp_path: Path) -> Iterator[Reading]:
    name = SOURCES[kind].server
    found = Reading(kind, lives, None if name is None else request.getfixturevalue(name), tmp_path)
    yield found
    found.feeder.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_that_is_killed_at_every_step_writes_every_record_once(kind, reading):
    for moment in KILLS:
        reading.feeder.feed()
        life = reading.begin(moment)
        assert life.end() == -signal.SIGKILL, f"{moment} never came: {life.said}"
    reading.feeder.feed()
    reading.finish()


@pytest.mark.parametrize("kind", WITH_SERVERS)
def test_a_server_that_goes_away_in_the_middle_is_read_to_the_end(kind, reading, tmp_path):
    reading.feeder.feed()
    hold = tmp_path / "hold"
    life = reading.begin(f"before {READ}", 2, hold)
    end = time.monotonic() + 60
    while not hold.exists():
        assert time.monotonic() < end, life.said
        time.sleep(0.01)
    reading.feeder.go_away()
    Path(f"{hold}.go").touch()
    while "is tried again" not in life.said:
        assert time.monotonic() < end + 60, life.said
        time.sleep(0.05)
    reading.feeder.come_back()
    reading.feeder.feed()
    (tmp_path / "complete").touch()
    assert life.end() == 0, life.said
    reading.finish()


# ------------------------------------------------------------------------------------------------------------ at random
@pytest.mark.parametrize("kind", KINDS if RUNS else ["files"])
@pytest.mark.parametrize("run", range(RUNS or 1))
def test_random_kills_and_outages_leave_every_record_once(kind, run, reading):
    seed = f"{os.environ.get('HEADRACE_SEED') or random.SystemRandom().randrange(1_000_000)}"
    sys.stdout.write(f"HEADRACE_SEED={seed}\n")
    chance = random.Random(f"{seed} {kind} {run}")  # noqa: S311
    for _ in range(chance.randint(2, 6)):
        for _ in range(chance.randint(1, 3)):
            reading.feeder.feed()
        life = reading.begin(chance.choice([*MOMENTS, None]), chance.randint(1, 4), max_records=chance.randint(1, 6))
        is_away = kind in WITH_SERVERS and chance.random() < 0.3
        outage = threading.Thread(target=go_away, args=(reading.feeder, chance.uniform(0, 0.4)))
        if is_away:
            outage.start()
        try:
            life.end(chance.uniform(0.05, 1.5))
        except TimeoutError:
            life.kill()
        if is_away:
            outage.join()
        assert life.code == -signal.SIGKILL, life.said
    reading.finish()


def go_away(feeder: Feeder, seconds: float) -> None:
    time.sleep(seconds)
    feeder.go_away()
    feeder.come_back()
