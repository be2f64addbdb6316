"""The example programs: beside the sources in a clone, inside the package when it is installed."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import headrace
from headrace.cli.printing import Failed

_PACKAGE = Path(headrace.__file__).parent


def folder() -> Path:
    """Where the examples are."""
    found = [place for place in (_PACKAGE / "programs/examples", _PACKAGE.parents[1] / "examples") if place.is_dir()]
    if not found:
        raise Failed(f"the examples are not where they should be, {_PACKAGE / 'programs'}: install headrace again")
    return found[0]


def names() -> dict[str, str]:
    """The examples, with what they say of themselves."""
    files = sorted(path for path in folder().glob("*.py") if path.stem not in {"events", "__init__"})
    return {path.stem: _first_sentence(path) for path in files}


def program(name: str) -> ModuleType:
    """An example, imported as the workers will import it."""
    if name not in names():
        raise Failed(f"there is no example {name!r} (there are: {', '.join(names())})")
    parent = str(folder().parent)
    if parent not in sys.path:
        sys.path.insert(0, parent)
    return import_module(f"examples.{name}")


def _first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())
