"""One server of each kind for the tests of a process. A test that stops a server starts it again."""

from collections.abc import Iterator

import pytest

from tests.connect.servers import MariaDbServer, MosquittoServer, PostgresServer, RedisServer
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
