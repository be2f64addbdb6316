"""For all tests."""

import pytest
from hypothesis import settings

# How long an example takes says more about the machine than about us.
settings.register_profile("calm", deadline=None)
settings.load_profile("calm")


def pytest_configure(config: pytest.Config) -> None:
    # Tests collect what a function saw in a list: the driver runs it in this process. tests/topology/
    # test_captured_state.py turns the warning on again.
    config.addinivalue_line("filterwarnings", "ignore::headrace.errors.CapturedStateWarning")
