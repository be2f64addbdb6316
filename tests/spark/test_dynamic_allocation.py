"""With Spark's dynamic allocation, slots that wait make executors start, and slots that are taken away let them go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parent.parent.parent
WITH_HEADRACE = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


def run(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.spark.allocation_program", str(folder), *options]
    return subprocess.run(
        command, env={**os.environ, **environment}, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("options", [(), ("unlimited",)], ids=["at most two executors", "any number"])
def test_executors_come_and_go_with_the_slots(tmp_path: Path, options: tuple[str, ...]):
    done = run(tmp_path, *options, **WITH_HEADRACE)
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr[-3000:]


def test_executors_without_headrace_fail_the_start(tmp_path: Path):
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nexport PYTHONPATH=$(echo "$PYTHONPATH" | tr : "\\n" | grep pyspark | paste -sd :)\n'
        f'exec {sys.executable} -S "$@"\n'
    )
    python.chmod(0o755)
    done = run(tmp_path, "start", **(WITH_HEADRACE | {"PYSPARK_PYTHON": str(python)}))
    assert "Headrace is not installed in the Python of Spark's executors" in done.stderr, done.stderr[-3000:]
