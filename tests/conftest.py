"""For all tests."""

import pytest
from hypothesis import settings

from tests.profiles import examples

# No deadline: how long an example takes depends on the load of the machine.
settings.register_profile("headrace", deadline=None, max_examples=examples(100))
settings.load_profile("headrace")


def pytest_configure(config: pytest.Config) -> None:
    # Tests collect what a function saw in a list: the driver runs it in this process. tests/topology/
    # test_captured_state.py turns the warning on again.
    config.addinivalue_line("filterwarnings", "ignore::headrace.errors.CapturedStateWarning")
