"""The types of the public API: pyright runs once over `programs/`.

A program's lines that pyright must flag end in `# error: <text>`, where the text is a part of pyright's message. Every
other line must be right, and every `assert_type` must hold.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # pyright takes ten seconds

PROGRAMS = Path(__file__).parent / "programs"
FILES = sorted(PROGRAMS.glob("*.py"))
MARKER = re.compile(r"# error: (.+)$")


@pytest.fixture(scope="module")
def flagged() -> dict[tuple[str, int], list[str]]:
    """What pyright says, by file and line."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--project", str(PROGRAMS), str(PROGRAMS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    said: dict[tuple[str, int], list[str]] = defaultdict(list)
    for diagnostic in json.loads(done.stdout)["generalDiagnostics"]:
        if diagnostic["severity"] == "error":
            at = Path(diagnostic["file"]).name, diagnostic["range"]["start"]["line"] + 1
            said[at].append(diagnostic["message"])
    return said


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_pyright_flags_the_mistakes_and_nothing_else(file, flagged):
    lines = file.read_text().splitlines()
    wanted = {number: found[1] for number, line in enumerate(lines, 1) if (found := MARKER.search(line))}
    said = {line: messages for (name, line), messages in flagged.items() if name == file.name}
    assert {line: messages for line, messages in said.items() if line not in wanted} == {}
    missed = {line: text for line, text in wanted.items() if not any(text in m for m in said.get(line, []))}
    assert missed == {}, said


def test_there_are_enough_of_them():
    lines = [line for file in FILES for line in file.read_text().splitlines()]
    assert sum("assert_type(" in line for line in lines) >= 40
    assert sum(MARKER.search(line) is not None for line in lines) >= 15
