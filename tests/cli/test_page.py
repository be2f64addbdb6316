"""What docs/cli.md shows is what the commands print."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import ENVIRONMENT

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def shell(tmp_path):
    """A shell in which `headrace` is this one."""
    command = tmp_path / "bin/headrace"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m headrace "$@"\n')
    command.chmod(0o755)
    path = {"PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}

    def run(script):
        # Both streams in one, as a terminal shows them.
        done = subprocess.run(
            ["bash", "-c", f"exec 2>&1\n{script}"], cwd=tmp_path, env={**ENVIRONMENT, **path}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        return done.stdout

    return run


@pytest.mark.slow
def test_what_the_page_types_gives_what_it_shows(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for language, text in FENCE.findall(PAGE):
        if language == "python":
            exec(text, {})  # noqa: S102 - that is the test
        elif language == "console":
            lines = text.splitlines()
            script = "\n".join(line.removeprefix("$ ") for line in lines if line.startswith("$ "))
            shown = [line for line in lines if not line.startswith("$ ")]
            assert sorted(shell(script).splitlines()) == sorted(shown)


def test_every_option_that_the_page_names_is_one(headrace):
    commands = ("run", "topology", "produce", "consume", "reset", "doctor", "demo", "pause")
    known = set(re.findall(r"--[\w-]+", "".join(headrace(command, "--help").out for command in commands)))
    known |= {"--debug", "--partitions"}
    assert set(re.findall(r"--[a-z][\w-]+", PAGE)) - known == set()
