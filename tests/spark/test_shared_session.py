"""The cores of a session that the user brings are shared by slots, other applications, and the user's Spark jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parent.parent.parent


def test_applications_and_jobs_share_a_session_or_are_told_that_they_wait(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.shared_session_program", str(tmp_path)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    said = done.stdout
    assert said.endswith("done\n"), said + done.stderr[-3000:]
    for line in (
        "INFO headrace.spark.real_time 1 slot: Spark has 2 cores, of which 1 stays free (slots.free.cores)",
        "INFO headrace.spark.real_time 2 slots: Spark has 2 cores",
        "WARNING headrace.spark.slot_pool 1 of 1 slots wait for a core, and no batch can run: Spark (local[2])",
        "INFO headrace.spark.slot_pool no slot waits for a core any more",
        "INFO headrace.spark.real_time 1 slot: Spark has 2 cores, of which other applications hold 1",
    ):
        assert line in said, f"{line!r} is not in {said}"
