"""A machine or process that stops at any write, sync or change of a name: what the disk holds then opens and goes on.

The run creates its checkpoint and its state, and processes a whole input. `make test-faults` tries every point, `make
test` some of them.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from random import Random

import pytest

from tests.checkpoint.programs import WORDS
from tests.disk.images import Disk, record
from tests.disk.scene import Child, begin, go_on

pytestmark = pytest.mark.slow

EVERY = 1 if os.environ.get("HEADRACE_FAULTS") else 25
BOOTS = {"killed": "first", "synced": "second", "torn": "second"}
SYNCS = ("sync", "sync directory")


def test_every_crash_image_opens_and_goes_on_exactly(tmp_path):
    scene, place = tmp_path / "scene", tmp_path / "run"
    begin(scene, batches=0)
    shutil.copytree(scene, place)
    disk = Disk(place)
    changes = record(lambda: go_on(place, "first"), place, tmp_path / "trace")
    expected = go_on(place, "first")
    assert [row[1:4] for row in expected[0]["out", 0]] == WORDS.expected()
    seen, wrong = Counter[str](), list[str]()
    for number, change in enumerate(changes):
        disk.apply(change)
        for kind, boot in BOOTS.items():
            # Only a sync changes what is synced, and it changes nothing else.
            changes_it = kind == "torn" or (change.call in SYNCS) == (kind == "synced")
            if number % EVERY or not changes_it:
                continue
            image = tmp_path / f"{number}-{kind}"
            image.mkdir(0o700)
            disk.write(image, kind, Random(number))  # noqa: S311
            ended = Child(lambda image=image, boot=boot: go_on(image, boot)).go()
            seen[kind] += 1
            if ended.result != expected:
                wrong.append(f"{kind} after {number}, {change.call} of {change.name}: {ended.how}")
            else:
                shutil.rmtree(image)
    sys.stdout.write(f"crash images of {len(changes)} changes: {dict(seen)}\n")
    assert not wrong, f"{len(wrong)} of {sum(seen.values())}\n" + "\n".join(wrong)
