"""The Python in README.md and docs/ runs; a text block right below a Python block is what it prints."""

import contextlib
import io
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
ON_SPARK = {ROOT / "docs/queries.md", ROOT / "docs/running.md"}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: its language, its text, its first line, and whether it follows right upon the block before."""

    language: str
    text: str
    line: int
    follows: bool


def blocks(page):
    text, end = page.read_text(encoding="utf-8"), 0
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start(2))
        yield Block(found[1], found[2], line, follows=end > 0 and not text[end : found.start()].strip())
        end = found.end()


def run(page, block, names):
    """Run a block as if it stood at its place in the page, so that a traceback names the page's line."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * block.line + block.text, str(page), "exec"), names)  # noqa: S102 - that is the test
    return printed.getvalue()


def page_of(page):
    marks = [pytest.mark.spark] if page in ON_SPARK else []
    return pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks)


@pytest.mark.parametrize("page", [page_of(page) for page in PAGES])
def test_the_code_on_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, printed = {"__name__": "__page__"}, None
    for block in blocks(page):
        if block.language == "python":
            printed = run(page, block, names)
        elif block.language == "text" and block.follows and printed is not None:
            assert printed == block.text, f"{page.name}:{block.line}"
            printed = None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []
