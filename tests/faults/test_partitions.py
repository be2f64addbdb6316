"""The network is cut: between two slots, between a slot and the driver, and before the start. Results stay exact."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.deployment import PATIENCE, ROOT
from tests.faults.networks import has_namespaces

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.slots,
    pytest.mark.skipif(not has_namespaces(), reason="needs root, `ip` and `unshare`, and network namespaces"),
]


@pytest.mark.parametrize("kind", ["slots", "driver", "start"])
def test_a_network_that_is_cut(kind: str, tmp_path: Path):
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-m", "tests.faults.partition_program", kind, str(tmp_path / "place")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    print(done.stdout)  # noqa: T201
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.endswith("done\n")
