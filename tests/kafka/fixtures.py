"""Fixtures for tests with a broker; what all tests of a process share is made once."""

import os
from collections.abc import Iterator

import pytest

from headrace.log.kafka import KafkaLog
from headrace.testing import KafkaBroker
from tests.kafka.shared_broker import shared_broker


@pytest.fixture(scope="session")
def broker_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the broker that this test run has."""
    own = tmp_path_factory.getbasetemp()
    with shared_broker(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) as address:
        yield address


@pytest.fixture(scope="session")
def warm(broker_address: str) -> Iterator[KafkaLog]:
    """A log whose clients are connected: a producer needs half a second for that."""
    with KafkaLog(broker_address) as log:
        yield log


@pytest.fixture(scope="session")
def guarded() -> Iterator[KafkaBroker]:
    """A broker with users, which compacts topics as soon as it can."""
    users = {"ada": "secret", "bob": "hush"}
    with KafkaBroker(users=users, settings={"log.cleaner.backoff.ms": "100"}) as broker:
        yield broker
