"""benchmarks/results.md has a section for every benchmark. A benchmark replaces its own section and keeps the others.

    write_tables("log", "The embedded log", table)

A section begins with the comment `<!-- benchmarks.log -->`, and ends where the next one begins.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

RESULTS = Path(__file__).with_name("results.md")
BEGIN = re.compile(r"^<!-- benchmarks\.(\w+) -->\n", re.MULTILINE)


def write_tables(name: str, title: str, *parts: Table | str, path: Path = RESULTS) -> None:
    """Writes the section of a benchmark: a heading, when and where it ran, and its tables."""
    texts = [part if isinstance(part, str) else make_markdown(part) for part in parts]
    write_section(name, "\n\n".join([f"# {title}", describe_run(f"python -m benchmarks.{name}"), *texts]), path)


def write_section(name: str, text: str, path: Path = RESULTS) -> None:
    """Writes the section of a benchmark; a new one comes last."""
    _, *found = BEGIN.split(path.read_text(encoding="utf-8")) if path.exists() else [""]
    sections = dict(zip(found[::2], found[1::2], strict=True)) | {name: text}
    parts = [f"<!-- benchmarks.{some} -->\n{content.strip()}\n" for some, content in sections.items()]
    path.write_text("\n".join(parts), encoding="utf-8")


def make_markdown(table: Table) -> str:
    """Returns a table as Markdown, with its title before and its caption after it."""
    rows = [list(map(_plain, cells)) for cells in zip(*(column.cells for column in table.columns), strict=True)]
    header = [_plain(column.header) for column in table.columns]
    marks = ["---:" if column.justify == "right" else "---" for column in table.columns]
    lines = [f"| {' | '.join(cells)} |" for cells in (header, marks, *rows)]
    around = [f"**{_plain(table.title)}**"] if table.title else [], [_plain(table.caption)] if table.caption else []
    return "\n\n".join([*around[0], "\n".join(lines), *around[1]])


def _plain(cell: Any) -> str:
    return Text.from_markup(cell).plain if isinstance(cell, str) else str(cell)


def describe_run(command: str) -> str:
    """Says by which command, when and where figures were made."""
    return f"`{command}`, {datetime.now(UTC):%-d %B %Y}, on {describe_machine()}."


def describe_machine() -> str:
    """Its processor, cores, memory, and the versions that matter."""
    words = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = (line.partition(":")[2].strip() for line in words if line.startswith("model name"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)  # noqa: S607
    said = java.stderr.partition('"')[2].partition('"')[0]
    cores, model = len(os.sched_getaffinity(0)), next(models, platform.processor())
    return f"{cores} cores ({model}) with {memory:.0f} GiB, Python {platform.python_version()}, Java {said}"
