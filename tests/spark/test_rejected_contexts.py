"""Sessions that an application cannot run in are rejected at the start, with an error that says why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from tests.spark.places import Place, counting

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.spark
def test_settings_of_spark_that_would_harm_slots_are_rejected(tmp_path: Path):
    names = ("spark.speculation", "spark.python.worker.killOnIdleTimeout")
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.rejected_context_program", str(tmp_path), *names],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "Spark runs with spark.speculation=true: tasks with state must not run twice at a time. Unset it",
        (
            "Spark runs with spark.python.worker.killOnIdleTimeout=true: it would kill slots that wait for records. "
            "Unset it"
        ),
    ], done.stderr[-3000:]


def test_a_session_of_spark_connect_is_rejected(place: Place):
    # Spark Connect needs grpcio, which the tests do not have. Only the module of the session's class is looked at.
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(ConfigError, match="this is a Spark Connect session, which gives no access to the driver"):
        place.app(counting(), spark=session).start()
