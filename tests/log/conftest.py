"""Fixtures: a directory, a clock that stands still, and every kind of log that has to keep the contract."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.log.filelog import FileLog
from headrace.log.protocol import Log
from headrace.model.clock import ManualClock
from tests.log.harness import NOW, file_log, scratch

LOGS = {"file": file_log}


@pytest.fixture
def directory() -> Iterator[Path]:
    with scratch() as path:
        yield Path(path)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture(params=LOGS)
def log(request: pytest.FixtureRequest, directory: Path, clock: ManualClock) -> Iterator[Log]:
    """Any kind of log, with the topics a and b."""
    with LOGS[request.param](directory, clock) as log:
        log.create_topic("a")
        log.create_topic("b", 3)
        yield log


@pytest.fixture
def embedded(directory: Path, clock: ManualClock) -> Iterator[FileLog]:
    """The embedded log, with the topics a and b."""
    with file_log(directory, clock) as log:
        log.create_topic("a")
        log.create_topic("b", 3)
        yield log
