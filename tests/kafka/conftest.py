"""Tests here need a broker."""

from uuid import uuid4

import pytest

from tests.kafka.fixtures import broker_address, guarded, warm
from tests.kafka.java_programs import compiled

__all__ = ["broker_address", "guarded", "java", "room", "warm"]


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the Java programs."""
    return compiled(tmp_path_factory.mktemp("classes"))


@pytest.fixture
def room() -> str:
    """What the names of a test begin with: the broker is shared."""
    return f"java-{uuid4().hex[:8]}"
