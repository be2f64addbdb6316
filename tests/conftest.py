"""For all tests."""

import logging
import os
import shutil
import tempfile
from collections import Counter
from typing import Any

import pytest
from hypothesis import settings

from tests.profiles import examples

# No deadline: how long an example takes depends on the load of the machine.
settings.register_profile("headrace", deadline=None, max_examples=examples(100))
settings.load_profile("headrace")

SERVERS = {"postgres", "mariadb", "redis_server", "mosquitto", "sessions"}  # fixtures that `make servers` is for
LONG = pytest.StashKey[list[str]]()  # the tests that only `make test-faults` runs


def pytest_configure(config: pytest.Config) -> None:
    if "XDG_STATE_HOME" not in os.environ:  # else applications without a state directory would use that of the user
        os.environ["XDG_STATE_HOME"] = home = tempfile.mkdtemp(prefix="headrace-tests-")
        config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    # Tests collect what a function saw in a list: the driver runs it in this process. tests/topology/
    # test_captured_state.py turns the warning on again.
    config.addinivalue_line("filterwarnings", "ignore::headrace.errors.CapturedStateWarning")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`make test-fast` needs no servers. Only `make test-faults`, which sets HEADRACE_FAULTS, runs long tests."""
    for item in items:
        if SERVERS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    if "HEADRACE_FAULTS" not in os.environ:
        long = [item for item in items if item.get_closest_marker("long") is not None]
        items[:] = [item for item in items if item not in long]
        config.hook.pytest_deselected(items=long)
        config.stash[LONG] = [item.nodeid for item in long]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process of pytest-xdist has ended. Each has collected all tests."""
    node.config.stash[LONG] = getattr(node, "workeroutput", {}).get("long", [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Lists the long tests that this run has left out: pytest-xdist does not show how many were deselected."""
    if long := config.stash.get(LONG, []):
        terminalreporter.write_line(f"Long tests, left to `make test-faults`: {len(long)}")
        for name, count in Counter(name.partition("[")[0] for name in long).items():
            terminalreporter.write_line(f"  {name}" + (f" ({count} cases)" if count > 1 else ""))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """With HEADRACE_NO_SKIPS=1, as in CI, a test that was skipped fails the run: nothing is left out silently."""
    config: Any = session.config
    if hasattr(config, "workeroutput"):  # this is a process of pytest-xdist
        config.workeroutput["long"] = config.stash.get(LONG, [])
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("HEADRACE_NO_SKIPS") == "1" and reporter is not None and reporter.stats.get("skipped"):
        reporter.write_line("\nHEADRACE_NO_SKIPS=1: the run fails because tests were skipped", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def log_of_kafka_at_its_level():
    """Commands that run in this process leave out warnings about brokers, for as long as the process lives."""
    logger = logging.getLogger("headrace.log.kafka")
    level = logger.level
    yield
    logger.setLevel(level)
