"""Small pieces: a file has at most 300 lines, a function at most 40, and an `__init__.py` only names things."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"
FILE_LINES, FUNCTION_LINES = 300, 40
# Forbidden in names of classes: ranks that say nothing about what a thing is.
BADGES = ("Abstract", "Base", "Impl", "Internal", "Manager", "Helper", "Util", "Factory", "Wrapper", "Default")
# Kafka Streams has these names, so that its users look for them.
KNOWN_NAMES = {"InternalTopic"}


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE), ast.parse(path.read_text(encoding="utf-8"))


def test_files_are_short():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCE.rglob("*.py")}
    assert {str(path): length for path, length in lengths.items() if length > FILE_LINES} == {}


def test_functions_are_short():
    too_long = {
        f"{path}::{node.name}": node.end_lineno - node.lineno + 1
        for path, module in modules()
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
        if node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    }
    assert too_long == {}


def test_packages_only_name_what_is_inside():
    for path, module in modules():
        if path.name == "__init__.py":
            for statement in module.body:
                is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
                assert is_docstring or isinstance(statement, ast.ImportFrom | ast.Assign), f"{path}:{statement.lineno}"


def test_classes_carry_no_badges():
    names = [node.name for _, module in modules() for node in ast.walk(module) if isinstance(node, ast.ClassDef)]
    assert [name for name in names if name.startswith(BADGES) or name.endswith(BADGES)] == sorted(KNOWN_NAMES)


def test_modules_are_named_after_what_they_hold():
    vague = {"utils.py", "util.py", "common.py", "core.py", "helpers.py", "internals.py", "misc.py"}
    assert [str(path) for path, _ in modules() if path.name in vague] == []
