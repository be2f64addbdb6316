"""One server of each kind for the tests of a process. A test that stops a server starts it again."""

from collections.abc import Iterator

import pytest

from tests.connect.lives import Lives
from tests.connect.servers import (
    KafkaServer,
    MariaDbServer,
    MosquittoServer,
    PostgresServer,
    RedisServer,
    S3Server,
)
from tests.kafka.fixtures import broker_address

__all__ = ["broker_address"]


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDbServer]:
    with MariaDbServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def mosquitto() -> Iterator[MosquittoServer]:
    with MosquittoServer() as server:
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    with KafkaServer() as server:
        yield server


@pytest.fixture(scope="session")
def sessions() -> Iterator[MosquittoServer]:
    """An MQTT broker that keeps its sessions."""
    with MosquittoServer(keeps_sessions=True) as server:
        yield server


@pytest.fixture(scope="session")
def lives() -> Iterator[Lives]:
    """A process that forks those that are killed."""
    with Lives() as lives:
        yield lives
