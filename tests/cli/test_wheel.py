"""The wheel has the examples, and what is installed from it runs them."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from headrace.cli.demo import list_examples
from tests.cli.commands import finished

ROOT = Path(__file__).parent.parent.parent
BUILD = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """What a wheel unpacks to."""
    place = tmp_path_factory.mktemp("wheel")
    subprocess.run([*BUILD, place], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = place.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(place / "site")
    return place / "site"


def test_the_wheel_has_the_examples_and_the_command(installed):
    assert {path.stem for path in (installed / "headrace/programs/examples").glob("*.py")} == {
        *list_examples(),
        "events",
    }
    assert not (installed / "examples").exists()
    (entry_points,) = installed.glob("*.dist-info/entry_points.txt")
    plugin = "[pytest11]\nheadrace = headrace.testing.plugin\n"
    assert entry_points.read_text() == f"[console_scripts]\nheadrace = headrace.cli.main:main\n\n{plugin}"


@pytest.mark.spark
def test_an_example_of_the_wheel_runs_live_and_ends_by_itself(installed, tmp_path):
    outcome = finished("demo", "word_count", "--seconds", "0", cwd=tmp_path, PYTHONPATH=str(installed))
    assert outcome.code == 0, outcome.err
    assert "word_count: " in outcome.out
    assert "wordcount-output" in outcome.out
    assert f"the program is {installed}/headrace/programs/examples/word_count.py" in outcome.err
    assert re.search(r"word_count is running on Spark, see http://127\.0\.0\.1:\d+/#token=[0-9a-f]{48}\n", outcome.err)
    assert "WARN" not in outcome.err
