"""Tests here may open a page in Chromium."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

PATIENCE = 60_000  # ms: how long a page may take on a busy machine
MISSING = (
    "there is no Chromium: `make chromium` installs it, and HEADRACE_WITHOUT_BROWSER=1 skips the tests that need it"
)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of the browser. A missing browser is a failure, unless the environment says to do without it."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if (found := shutil.which(name)) is not None:
            return found
    if os.environ.get("HEADRACE_WITHOUT_BROWSER") == "1":
        pytest.skip("HEADRACE_WITHOUT_BROWSER=1, and there is no Chromium")
    pytest.fail(MISSING)


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as play, play.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as browser:
        yield browser
