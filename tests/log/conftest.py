"""Fixtures: a directory, a clock that stands still, and every kind of log that has to keep the contract."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.log.embedded.file_log import FileLog
from headrace.log.protocol import Log
from tests.clocks import ManualClock
from tests.kafka.fixtures import broker_address, warm
from tests.kafka.prefixed_log import PrefixedLog
from tests.log.harness import NOW, file_log, scratch

__all__ = ["broker_address", "warm"]
LOGS = ["file", pytest.param("kafka", marks=pytest.mark.kafka)]


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
    is_kafka = request.param == "kafka"
    with PrefixedLog(request.getfixturevalue("warm"), clock) if is_kafka else file_log(directory, clock) as log:
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
