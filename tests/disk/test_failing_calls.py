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

from tests.checkpoint.programs import WORDS
from tests.disk.scene import Child, begin, go_on, run_traced

pytestmark = pytest.mark.slow

CHANGES = (
    "write", "writev", "pwrite64", "fsync", "fdatasync", "ftruncate", "openat", "link", "unlink", "mkdir",
)  # fmt: skip
READS = ("read", "pread64", "getdents64", "newfstatat", "fcntl", "close")
FAULTS = {"signal=KILL": CHANGES, "error=ENOSPC": CHANGES, "error=EIO": (*CHANGES, *READS)}
IS_LONG = bool(os.environ.get("HEADRACE_FAULTS"))


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
    assert [row[1:4] for row in found[0]["out", 0]] == WORDS.expected()
    return found


@pytest.fixture(scope="module")
def calls(scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """How often a run makes each system call."""
    place = tmp_path_factory.mktemp("traced")
    shutil.copytree(scene, place / "scene")
    run_traced(lambda: go_on(place / "scene", "first"), "-o", str(place / "trace"))
    return Counter(re.findall(r"^\d+ +(\w+)\(", (place / "trace").read_text(), re.MULTILINE))


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("fault, call", [(fault, call) for fault, some in FAULTS.items() for call in some])
def test_a_call_that_fails_or_is_the_last_loses_nothing_and_repeats_nothing(
    fault, call, scene, expected, calls, tmp_path
):
    points = range(1, calls[call] + 1) if IS_LONG else [(calls[call] + 1) // 2]
    ends, wrong = Counter[str](), list[str]()
    for n in points:
        place, trace = tmp_path / str(n), tmp_path / "trace"
        shutil.copytree(scene, place)
        inject = f"inject={call}:{fault}:when={n}"
        ended = run_traced(lambda at=place: go_on(at, "first"), "-o", str(trace), "-e", f"trace={call}", "-e", inject)
        again = Child(lambda at=place: go_on(at, "first")).go()
        if "UNEXPECTED" in ended.error or again.result != expected:
            wrong.append(f"number {n}: {ended.how}; the next process {again.how}")
        is_injected = "INJECTED" in trace.read_text() or ended.how.startswith("killed")
        ends[("error" if ended.error else ended.how) if is_injected else "not reached"] += 1
        shutil.rmtree(place)
    sys.stdout.write(f"{call}, {fault}: {dict(ends)}\n")
    assert not wrong, "\n".join(wrong)
    assert ends["not reached"] <= 1 + len(points) // 10  # two runs differ by a call or two
