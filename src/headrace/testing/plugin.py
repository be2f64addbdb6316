"""A pytest plugin with fixtures for a log, applications on Spark, a Kafka broker, and a schema registry.

pytest finds it by itself when Headrace is installed. A test takes what it needs as arguments:

    def test_counts(embedded_log, run_application):
        produce(embedded_log, "lines", ["a b a"], value=serde.STRING)
        app = run_application(build())
        app.drain()
        assert app.store("word-counts").get("a").value == 2
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.app import Application
from headrace.testing.broker import KafkaBroker
from headrace.testing.registry import SchemaRegistry
from headrace.topology.builder import Topology

RunApplication = Callable[..., Application]


@pytest.fixture
def embedded_log(tmp_path: Path) -> str:
    """The address of an empty embedded log, in the test's own directory."""
    return f"file:{tmp_path / 'log'}"


@pytest.fixture
def run_application(embedded_log: str, tmp_path: Path) -> Iterator[RunApplication]:
    """A function that starts an application: `run_application(topology, application_id="test", **options)`.

    It runs on `embedded_log` unless `log=` names another. Checkpoint and state are in the test's directory, and all
    applications stop at the end of the test. Spark starts with the first application, and stays for the next tests.
    """
    started = list[Application]()

    def run(topology: Topology, application_id: str = "test", **options: Any) -> Application:
        folder = tmp_path / application_id
        settings: dict[str, Any] = {
            "log": embedded_log,
            "checkpoint": str(folder / "checkpoint"),
            "state_dir": str(folder / "state"),
            **options,
        }
        app = Application(application_id, topology, **settings)
        app.start()
        started.append(app)
        return app

    yield run
    for app in reversed(started):
        app.stop()


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A real Kafka broker for all tests of the session; `kafka_broker.address` is its log. It needs Java."""
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def schema_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistry]:
    """A real schema registry for all tests of the session; `schema_registry.url` is its address. It needs Java."""
    with SchemaRegistry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry
