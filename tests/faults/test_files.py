"""Files that are changed behind the back of an application on Spark: used as they were written, or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import StreamsError
from tests.faults.deployment import PATIENCE_MS, Deployment
from tests.log.harness import flip

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SMALL = {"batch.max.records": 5, "receipt.max.bytes": 0}


def tasks_in(state: Path) -> list[Path]:
    return sorted(path for path in (state / "app").iterdir() if path.is_dir())


def delete(state: Path, old: Path) -> None:
    shutil.rmtree(state)


def swap(state: Path, old: Path) -> None:
    """Each task gets another one's directory."""
    tasks = tasks_in(state)
    for task in tasks:
        task.rename(task.with_suffix(".moved"))
    for task, other in zip(tasks, [*tasks[1:], tasks[0]], strict=True):
        other.with_suffix(".moved").rename(task)


def put_back_older(state: Path, old: Path) -> None:
    shutil.rmtree(state)
    shutil.copytree(old, state)


def fill_with_garbage(state: Path, old: Path) -> None:
    for file in [file for task in tasks_in(state) for file in task.iterdir()]:
        file.write_bytes(os.urandom(20_000))


WAYS: list[Callable[[Path, Path], None]] = [delete, swap, put_back_older, fill_with_garbage]


def test_local_state_is_rebuilt_and_never_used_if_it_is_another(deploy: Callable[..., Deployment], tmp_path: Path):
    place, whole = deploy("WORDS", config=SMALL), deploy("WORDS", name="whole")
    place.run()
    state, old = place.folder / "state", tmp_path / "old"
    shutil.copytree(state, old)
    for change in WAYS:
        place.feed(8)
        place.run()
        change(state, old)
    with place.settings.application() as app:
        for change in WAYS:  # and while it runs
            place.feed(8)
            app.drain(PATIENCE_MS)
            change(state, old)
        place.feed(8)
        app.drain(PATIENCE_MS)
    whole.feed(place.fed - whole.fed)
    whole.run()
    place.check_outputs()
    assert (place.outputs(), place.stores()) == (whole.outputs(), whole.stores())


# ------------------------------------------------------------------------------------------------- checkpoint and log
def middle(file: Path) -> None:
    flip(file, file.stat().st_size // 2, 4)


def half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def last_of(pattern: str) -> Callable[[Path], Path]:
    return lambda folder: max(file for file in folder.glob(pattern) if file.is_file())


CASES = [
    ("checkpoint/manifests/*", middle), ("checkpoint/manifests/*", Path.unlink), ("checkpoint/deltas/1_0/*", half),
    ("checkpoint/snapshots/*/*", Path.unlink), ("checkpoint/checkpoint", empty), ("checkpoint/owners/*[0-9]", middle),
    ("log/log.db", half), ("log/log.db", empty), ("log/log.db", middle), ("log/acknowledged", Path.unlink),
]  # fmt: skip


def test_damaged_files_are_named_or_rebuilt(deploy: Callable[..., Deployment]):
    place = deploy("WORDS", config={"batch.max.records": 2, "receipt.max.bytes": 0})
    place.run()
    place.feed(8)
    whole = copy_of(place, "whole")
    whole.run()
    whole.check_outputs()
    named = 0
    for number, (pattern, damage) in enumerate(CASES):
        damaged = copy_of(place, f"damaged-{number}")
        file = last_of(pattern)(damaged.folder)
        damage(file)
        if error := ended(damaged):
            named += 1
            assert file.name in error, (pattern, damage)
        else:
            assert (damaged.outputs(), damaged.stores()) == (whole.outputs(), whole.stores()), (pattern, damage)
    assert named >= 4


def ended(place: Deployment) -> str:
    """What went wrong, if anything did."""
    try:
        place.run()
    except StreamsError as error:
        return str(error)
    return ""


def copy_of(place: Deployment, name: str) -> Deployment:
    """Log and checkpoint on another disk, where there is no local state."""
    folder = place.folder.with_name(name)
    for part in ("log", "checkpoint"):
        shutil.copytree(place.folder / part, folder / part)
    return place.moved(folder)
