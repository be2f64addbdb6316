"""Every system call of a few batches fails once, or is the last one of its process: the next process goes on, exact.

strace injects the faults into a real process that writes to the embedded log (SQLite), the checkpoint and the local
state (LMDB). `make test-faults` tries every call, `make test` some of them.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.disk.scene import Child, begin, drivers_output, go_on, run_traced

pytestmark = pytest.mark.slow

CHANGES = (
    "write", "writev", "pwrite64", "fsync", "fdatasync", "ftruncate", "openat", "link", "unlink", "unlinkat", "mkdir",
)  # fmt: skip
READS = ("read", "pread64", "getdents64", "newfstatat", "fcntl", "close")
FAULTS = {"signal=KILL": CHANGES, "error=ENOSPC": CHANGES, "error=EIO": (*CHANGES, *READS)}
EVERY = 1 if os.environ.get("HEADRACE_FAULTS") else 50


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("scene")
    begin(place)
    return place


@pytest.fixture(scope="module")
def expected(scene: Path, tmp_path_factory: pytest.TempPathFactory):
    """Log and stores at the end; the log is the test driver's."""
    place = tmp_path_factory.mktemp("undisturbed") / "scene"
    shutil.copytree(scene, place)
    found = go_on(place, "first")
    assert [row[1:3] for row in found[0]["out", 0]] == drivers_output()
    return found


def count_calls(scene: Path, place: Path) -> Counter[str]:
    """How often a run makes each system call."""
    shutil.copytree(scene, place / "scene")
    run_traced(lambda: go_on(place / "scene", "first"), "-o", str(place / "trace"))
    return Counter(re.findall(r"^\d+ +(\w+)\(", (place / "trace").read_text(), re.MULTILINE))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_call_that_fails_or_is_the_last_loses_nothing_and_repeats_nothing(fault, scene, expected, tmp_path):
    calls = count_calls(scene, tmp_path)
    points = [(call, n) for call in FAULTS[fault] for n in range(1, calls[call] + 1)]
    ends, wrong = Counter[str](), list[str]()
    for number, (call, n) in enumerate(points[::EVERY]):
        place, trace = tmp_path / str(number), tmp_path / "trace"
        shutil.copytree(scene, place)
        inject = f"inject={call}:{fault}:when={n}"
        ended = run_traced(lambda at=place: go_on(at, "first"), "-o", str(trace), "-e", f"trace={call}", "-e", inject)
        again = Child(lambda at=place: go_on(at, "first")).go()
        if "UNEXPECTED" in ended.error or again.result != expected:
            wrong.append(f"{call} number {n}: {ended.how}; the next process {again.how}")
        landed = "INJECTED" in trace.read_text() or ended.how.startswith("killed")
        ends[("error" if ended.error else ended.how) if landed else "not reached"] += 1
        shutil.rmtree(place)
    sys.stdout.write(f"{fault}: {dict(ends)}\n")
    assert not wrong, f"{len(wrong)} of {sum(ends.values())}\n" + "\n".join(wrong)
    assert ends["not reached"] <= len(points) // EVERY // 20
