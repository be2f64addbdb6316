"""Every atomic sink under SIGKILL and with a server that goes away: the target has every record once.

A quick run kills processes at two steps, and takes the server away once in the middle of a transaction. With
HEADRACE_FAULTS=20 they are killed at every step, and in 20 runs at random, and a Kafka broker is among the servers.
`check_sink`, in other tests, ends deliveries at every step without killing a process.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.checkpoint.steps import SINK, SINK_COMMIT
from headrace.connect.sink import TOKEN
from tests.connect.lives import Life, Lives
from tests.connect.sink_cases import SINKS, deliver_batches, expected_rows, sample

pytestmark = pytest.mark.slow
RUNS = int(os.environ.get("HEADRACE_FAULTS", "0"))
MOMENTS = [f"{when} {name}" for name in (*SINK, TOKEN) for when in ("before", "after")]
KILLS = MOMENTS if RUNS else [f"before {TOKEN}", f"after {SINK_COMMIT}"]
BATCHES = 16 if RUNS else 6
NAMES = (f"t{number}" for number in range(1_000_000))
KINDS = [name for name in SINKS if RUNS or name != "log-kafka"]
WITH_SERVERS = [name for name in KINDS if SINKS[name].server is not None]


class Delivery:
    """Lives that write to a fresh target."""

    def __init__(self, kind: str, mode: str, lives: Lives, server: Any, place: Path) -> None:
        self._kind, self._mode, self._lives, self._place = kind, mode, lives, place
        self._address = str(place) if server is None else server.place
        if kind == "iceberg-postgres":  # the catalog is in the server, the files are here
            self._address += f" {place}"
        self._table = next(NAMES)
        place.mkdir(exist_ok=True)

    def begin(self, moment: str | None = None, nth: int = 1, hold: Path | None = None) -> Life:
        return self._lives.begin(
            deliver_batches, self._place / "errors", kind=self._kind, place=str(self._place), address=self._address,
            table=self._table, mode=self._mode, batches=BATCHES, moment=moment, nth=nth,
            hold=None if hold is None else str(hold),
        )  # fmt: skip

    def finish(self) -> None:
        """Delivers the rest, and compares."""
        life = self.begin()
        assert life.end() == 0, life.said
        found = SINKS[self._kind].read(self._address, self._table)
        assert found == expected_rows(sample(BATCHES), self._mode)


@pytest.fixture
def server(request: pytest.FixtureRequest, kind: str) -> Any:
    name = SINKS[kind].server
    return None if name is None else request.getfixturevalue(name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_that_is_killed_at_every_step_leaves_every_record_once(kind, server, lives, tmp_path):
    delivery = Delivery(kind, "append", lives, server, tmp_path)
    for moment in KILLS:
        life = delivery.begin(moment)
        assert life.end() == -signal.SIGKILL, f"{moment} never came: {life.said}"
    delivery.finish()


@pytest.mark.parametrize("kind", WITH_SERVERS)
def test_a_server_that_goes_away_in_the_middle_has_every_record_once(kind, server, lives, tmp_path):
    delivery = Delivery(kind, SINKS[kind].modes[-1], lives, server, tmp_path)
    hold = tmp_path / "hold"
    life = delivery.begin(f"before {TOKEN}", 3, hold)
    await_file(hold, life)
    server.kill()
    Path(f"{hold}.go").touch()
    await_text("is asked again", life)
    server.start()
    assert life.end() == 0, life.said
    delivery.finish()


def await_file(file: Path, life: Life) -> None:
    end = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < end, life.said
        time.sleep(0.01)


def await_text(text: str, life: Life) -> None:
    end = time.monotonic() + 120
    while text not in life.said:
        assert time.monotonic() < end, life.said
        time.sleep(0.05)


# --------------------------------------------------------------------------------------------------------- at random
@pytest.mark.parametrize("kind", KINDS if RUNS else ["postgres"])
@pytest.mark.parametrize("run", range(RUNS or 1))
def test_random_kills_and_outages_leave_every_record_once(kind, run, server, lives, tmp_path):
    seed = f"{os.environ.get('HEADRACE_SEED') or random.SystemRandom().randrange(1_000_000)}"
    sys.stdout.write(f"HEADRACE_SEED={seed}\n")
    chance = random.Random(f"{seed} {kind} {run}")  # noqa: S311
    delivery = Delivery(kind, chance.choice(SINKS[kind].modes), lives, server, tmp_path)
    for _ in range(chance.randint(1, 6)):
        life = delivery.begin(chance.choice([*MOMENTS, None]), chance.randint(1, 4))
        outage = threading.Thread(target=go_away, args=(server, chance.uniform(0, 0.4)))
        is_away = server is not None and chance.random() < 0.3
        if is_away:
            outage.start()
        try:
            life.end(chance.uniform(0.05, 1.5))
        except TimeoutError:
            life.kill()
        if is_away:
            outage.join()
        assert life.code in (0, -signal.SIGKILL), life.said
    delivery.finish()


def go_away(server: Any, seconds: float) -> None:
    time.sleep(seconds)
    server.kill()
    server.start()
