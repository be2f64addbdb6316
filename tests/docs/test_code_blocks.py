"""The code blocks of README.md, CONTRIBUTING.md and docs/ are tested, each kind in its way.

python      The blocks of a page run one after the other, in one namespace and one empty directory. A `text` block right
            below a Python block is what that block prints.
console     The lines after `$ ` run in a shell, in the same directory; the other lines are what the shell prints.
bash        The commands do not run: they run for ever, need a cluster, or install things. Each `headrace` command must
            be one that the command line parses, each `make` target must exist, and the block must be valid shell.
properties  Settings that Kafka's clients have.
text        Not code.

A block of any other kind fails, so that no block escapes. README.md and docs/start.md are followed as a user follows
them, shell commands included, by test_first_hour.py.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from typer.core import TyperGroup

from headrace.cli import main
from headrace.config import settings
from headrace.config.properties import parse_properties
from tests.cli.commands import ENVIRONMENT

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FOLLOWED = [ROOT / "README.md", ROOT / "docs/start.md"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KINDS = {"python", "console", "bash", "properties", "text"}
HEADRACE = re.compile(r"(?:^|\$\(|[|;&]\s*)headrace\b([^|;&<>)#]*)")
TARGETS = set(re.findall(r"^([.\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


class Block(NamedTuple):
    """A fenced block: its kind, its text, its first line, and whether it follows right upon the block before."""

    kind: str
    text: str
    line: int
    follows: bool


def blocks(page):
    text, end = page.read_text(encoding="utf-8"), 0
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start(2))
        yield Block(found[1], found[2], line, follows=end > 0 and not text[end : found.start()].strip())
        end = found.end()


def run_python(page, block, names):
    """Runs a block as if it stood at its place in the page, so that a traceback names the page's line."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * block.line + block.text, str(page), "exec"), names)  # noqa: S102 - that is the test
    return printed.getvalue()


@pytest.fixture
def shell(tmp_path):
    """A shell in which `headrace` is this one, and whose output is all that a terminal shows."""
    command = tmp_path / "bin/headrace"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m headrace "$@"\n')
    command.chmod(0o755)
    path = {"PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}

    def run(script):
        return subprocess.run(
            ["bash", "-c", f"exec 2>&1\n{script}"], cwd=tmp_path, env={**ENVIRONMENT, **path}, capture_output=True,
            text=True, check=False,
        ).stdout  # fmt: skip

    return run


def run_console(block, shell):
    lines = block.text.splitlines()
    typed = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    shown = [line for line in lines if not line.startswith("$ ")]
    # Sorted: the two streams of a pipeline reach a terminal in any order.
    assert sorted(shell("\n".join(typed)).splitlines()) == sorted(shown)


def page_of(page):
    """A page with an application needs Spark; one with a shell starts a process for each command."""
    code = {kind: "".join(block.text for block in blocks(page) if block.kind == kind) for kind in KINDS}
    marks = [pytest.mark.spark] if "Application(" in code["python"] else []
    marks += [pytest.mark.kafka] if "KafkaBroker(" in code["python"] else []
    marks += [pytest.mark.slow] if code["console"] else []
    return pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks)


@pytest.fixture
def environment_of_a_page():
    """What a page puts into the environment is gone after its test."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize("page", [page_of(page) for page in PAGES if page not in FOLLOWED])
def test_the_code_on_a_page_runs(page, shell, tmp_path, monkeypatch, environment_of_a_page):
    monkeypatch.chdir(tmp_path)
    names, printed = {"__name__": "__page__"}, None
    for block in blocks(page):
        if block.kind == "python":
            printed = run_python(page, block, names)
        elif block.kind == "console":
            run_console(block, shell)
        elif block.kind == "text" and block.follows and printed is not None:
            assert printed == block.text, f"{page.name}:{block.line}"
            printed = None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_block_escapes_these_tests(page):
    known = list(blocks(page))
    assert [
        f"{page.name}:{block.line} {block.kind or 'has no kind'}" for block in known if block.kind not in KINDS
    ] == []
    fences = [line for line in page.read_text(encoding="utf-8").splitlines() if re.match(r"[\s>]*(```|~~~)", line)]
    inside = [line for block in known for line in block.text.splitlines() if re.match(r"[\s>]*(```|~~~)", line)]
    assert len(fences) == 2 * len(known), f"indented, unclosed or of tildes: {set(fences)}"
    assert inside == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_settings_that_are_shown_are_known(page, caplog, monkeypatch):
    monkeypatch.setattr(settings, "_named", set())
    for block in blocks(page):
        if block.kind == "properties":
            assert settings.client_settings(parse_properties(block.text))
    assert caplog.messages == []


# ------------------------------------------------------------------------------------- commands that are not run
COMMANDS = [
    pytest.param(line.strip(), id=f"{page.relative_to(ROOT)}-{line.strip()}")
    for page in PAGES
    for block in blocks(page)
    if block.kind == "bash"
    for line in block.text.splitlines()
    if line.strip()
]


def parse(arguments):
    """Parses the arguments of `headrace` as the command line does, and runs nothing."""
    command, name = main.command(), "headrace"
    context = command.make_context(name, arguments)
    while isinstance(command, TyperGroup):
        name, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(name, arguments)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_that_is_shown_is_one(line):
    subprocess.run(["bash", "-n", "-c", line], check=True)
    found = [shlex.split(arguments) for arguments in HEADRACE.findall(line)]
    for arguments in found:
        parse(arguments)
    if line.startswith("make "):
        found = [word for word in shlex.split(line, comments=True)[1:] if "=" not in word]
        assert set(found) <= TARGETS
    assert found or line.startswith("export "), (
        "neither `headrace` nor `make`: show it in a `console` block, which runs"
    )


def test_a_command_with_a_wrong_option_is_found():
    with pytest.raises(typer.TyperException, match="--partitons"):
        parse(["topics", "create", "--topic", "orders", "--partitons", "4"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []
