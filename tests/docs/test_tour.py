"""Every file and function that docs/tour.md and CONTRIBUTING.md name exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("docs/tour.md", "CONTRIBUTING.md")}
# `runtime/task.py`, or with what is defined in it `runtime/task.py::Task.run`
PLACES = [(page, place) for page, text in PAGES.items() for place in re.findall(r"`([\w/]+\.py(?:::[\w.]+)?)`", text)]


def defined(path: Path) -> set[str]:
    """Names of the functions and classes of a file, and of the methods as `Class.method`."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return names


@pytest.mark.parametrize("page, place", PLACES)
def test_what_a_page_names_exists(page, place):
    file, _, name = place.partition("::")
    path = next((base / file for base in (ROOT / "src/headrace", ROOT) if (base / file).exists()), None)
    assert path is not None, f"{page} names {file}, which is not there"
    assert not name or name in defined(path), f"{page} names {name}, which {file} does not define"


def test_the_stops_are_numbered():
    stops = re.findall(r"^\| (\d+) \|", PAGES["docs/tour.md"], re.MULTILINE)
    assert stops == [str(i + 1) for i in range(len(stops))]
    assert stops
