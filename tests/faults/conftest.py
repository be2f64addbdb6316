"""What the tests of faults share: a JVM for many drivers, and nothing that is left running."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.deployment import ROOT, Deployment, members


@pytest.fixture(scope="session")
def jvm() -> Iterator[dict[str, str]]:
    """Where a JVM is, for the environment of drivers: a start with it takes a third of the time."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults.jvm"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PYSPARK_PYTHON": sys.executable},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as keeper:
        assert keeper.stdout
        yield json.loads(keeper.stdout.readline())
        for process in members(keeper.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


@pytest.fixture(scope="session")
def seed() -> str:
    return os.environ.get("HEADRACE_SEED") or str(random.SystemRandom().randrange(1_000_000))


@pytest.fixture
def chance(seed: str, request: pytest.FixtureRequest) -> random.Random:
    """Chance that can be repeated: HEADRACE_SEED is what was printed."""
    sys.stdout.write(f"HEADRACE_SEED={seed}\n")
    return random.Random(f"{seed} {request.node.name}")  # noqa: S311


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Callable[..., Deployment]]:
    """Makes deployments in a directory of the test; whatever their runs leave is ended."""
    made: list[Deployment] = []

    class Here(Deployment):
        def __init__(self, program: str, name: str = "deployment", **more) -> None:
            super().__init__(tmp_path / name, program, **more)
            made.append(self)

    yield Here
    for one in made:
        one.clear()
