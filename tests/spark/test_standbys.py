"""Standbys: copies of the state of other slots' tasks, which take over when a slot is lost."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace import Application
from headrace.cli.main import app as cli
from headrace.query.status import SlotReport
from tests.spark.places import Place, Words, counting, slots, wait_for

pytestmark = pytest.mark.spark
WORDS = 3000  # different ones, so that a whole restore reads many entries
STATEFUL = {f"1_{partition}" for partition in range(4)}


def send_many(words: Words, app: Application) -> None:
    words.send(app, *(f"word{n} word{n + 1} word{n + 2}" for n in range(0, WORDS, 3)))


def standbys(app: Application) -> dict[str, int]:
    return {task: behind for slot in app.report().slots for task, behind in slot.standbys.items()}


def have_caught_up(app: Application) -> bool:
    return standbys(app) == dict.fromkeys(STATEFUL, 0)


def lose(slot: SlotReport, state: Path) -> float:
    """Kills a slot, after its copies of state were deleted: as if it had been alone on its host."""
    for descriptor in Path(f"/proc/{slot.process}/fd").iterdir():
        lock = descriptor.resolve()
        if lock.parent == state and lock.name.removesuffix(".lock").partition(".")[0] in slot.tasks:
            rmtree(lock.with_suffix(""))
    os.kill(slot.process, signal.SIGKILL)
    return time.monotonic()


def status(place: Place) -> dict[str, Any]:
    """What `headrace status` says, which is a few seconds old."""
    answer = CliRunner().invoke(cli, ["status", "--json", "--checkpoint", str(place.folder / "checkpoint")])
    return json.loads(answer.stdout)


def test_the_tasks_of_a_killed_slot_go_on_from_its_standbys(place: Place):
    words, state = Words(place), place.folder / "state" / "life"
    with place.app(counting(), num_standby_replicas=1) as app:
        send_many(words, app)
        wait_for(app, lambda: have_caught_up(app))
        assert {name for name in state_of(state) if name.startswith("1_")} == {*STATEFUL, *(f"{t}.1" for t in STATEFUL)}
        for slot in app.report().slots:
            assert not set(slot.tasks) & slot.standbys.keys()
        wait_for(
            app,
            lambda: (
                status(place)["slots"] == [slot._asdict() | {"tasks": [*slot.tasks]} for slot in app.report().slots]
            ),
        )
        victim, before = slots(app)[1], app.report()
        lost = lose(victim, state)
        words.send(app, *(f"again word{n}" for n in range(40)))
        print(f"a slot was killed; results flow again after {time.monotonic() - lost:.2f} s")  # noqa: T201
        after = app.report()
        assert after.moves > before.moves, "the tasks waited for their slot"
        whole = after.restored.get("restored", 0) - before.restored.get("restored", 0)
        assert whole <= 2, "the two tasks without stores have no standby"
        assert after.restored_entries - before.restored_entries < WORDS / 20
        wait_for(app, lambda: sorted(slots(app)) == [0, 1])
        send_many(words, app)
        wait_for(app, lambda: have_caught_up(app))


def test_a_host_holds_its_tasks_and_its_standbys_and_nothing_else(place: Place):
    words, folder = Words(place), place.folder / "state" / "life"
    (folder / "7_0").mkdir(parents=True)  # of an earlier version of the application
    with place.app(counting(), num_standby_replicas=1, state_cleanup_delay_ms=1000) as app:
        send_many(words, app)
        wait_for(app, lambda: have_caught_up(app))
        wait_for(app, lambda: len(state_of(folder)) == 12)  # eight tasks, and standbys of the four with stores
        app.scale(1)
        wait_for(app, lambda: sorted(slots(app)) == [0])
        words.send(app, "again word1 word2")
        wait_for(app, lambda: len(state_of(folder)) == 8)
        send_many(words, app)
        assert app.report().slots[0].standbys == {}


def state_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())
