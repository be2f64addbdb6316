"""An application that `spark-submit` starts runs on the cluster that `spark-submit` was given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parent.parent.parent
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
CLUSTER = "local-cluster[1,2,1024]"


def test_a_submitted_program_runs_on_the_cluster_that_was_given(tmp_path: Path):
    python = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(
        [SUBMIT, "--master", CLUSTER, ROOT / "tests/spark/submitted_program.py", tmp_path],
        env={**os.environ, **python},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.endswith(f"counted {{'a': 2, 'b': 1}} on {CLUSTER}\n"), done.stdout + done.stderr[-3000:]
