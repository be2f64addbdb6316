"""A process that writes to PostgreSQL is killed by SIGKILL at random moments: the table has every record once.

HEADRACE_FAULTS says how many kills there are.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from headrace import Record
from headrace.checkpoint.storage import open_storage
from headrace.connect import PostgresSink
from headrace.log.open import open_log
from headrace.testing.sinks import deliver

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("HEADRACE_FAULTS", "3"))
ROOT = Path(__file__).parent.parent.parent
BATCHES = [[Record(f"k{i}", {"n": 20 * n + i}, n) for i in range(20)] for n in range(30 * KILLS)]


def run(dsn: str, place: str) -> None:
    """One life: it goes on after the last batch that was committed."""
    sink = PostgresSink(dsn, "killed", key="id", create={"id": str, "n": int})
    with closing(open_log(f"file:{place}/log", {})) as log:
        deliver(open_storage(f"{place}/checkpoint"), log, sink, "killed", BATCHES)


def rows(dsn: str) -> list[int]:
    with closing(psycopg.connect(dsn)) as connection:
        if connection.execute("select to_regclass('killed')").fetchone() == (None,):
            return []
        return [n for (n,) in connection.execute("select n from killed")]


def test_postgres_has_every_record_once_after_kills_by_chance(postgres, tmp_path):
    chance = random.Random()  # noqa: S311
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "tests.connect.test_sink_kills", postgres.dsn, str(tmp_path)]
    for kill in range(1, KILLS + 1):
        with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
            wanted = len(rows(postgres.dsn)) + chance.randint(1, 20 * 15)  # so far it gets, or a little further
            while len(rows(postgres.dsn)) < min(wanted, 20 * len(BATCHES)) and process.poll() is None:
                time.sleep(chance.uniform(0, 0.01))
            process.kill()
        assert process.returncode in (-9, 0), f"life {kill} ended with {process.returncode}"
    run(postgres.dsn, str(tmp_path))
    assert sorted(rows(postgres.dsn)) == list(range(20 * len(BATCHES)))


if __name__ == "__main__":
    run(*sys.argv[1:])
