"""Hooks of mkdocs: generates the reference pages, and draws the timelines of the operators' pages.

The reference comes from the code itself: public names, settings, commands, metrics and errors.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import headrace
import headrace.testing
from headrace import errors
from headrace.cli.config import settings
from headrace.cli.main import command as root_command
from headrace.config.settings import WITHOUT_EFFECT
from headrace.testing.timeline import Timeline

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


# ---------------------------------------------------------------------------------------------------- generated pages
def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {
        "reference/api.md": api_page(),
        "reference/testing.md": testing_page(),
        "reference/settings.md": settings_page(),
        "reference/commands.md": commands_page(),
        "reference/metrics.md": metrics_page(),
        "reference/errors.md": errors_page(),
        "decisions/index.md": decisions_page(),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def api_page() -> str:
    """Every public name of `headrace`, and the serdes."""
    entries = [f"::: headrace.{name}\n" for name in sorted(headrace.__all__) if name not in {"serde", "timestamps"}]
    modules = ["## Serdes\n\n::: headrace.serde\n", "## Timestamps\n\n::: headrace.timestamps\n"]
    return "\n".join(["# API\n\nThe names of the package `headrace`.\n", "## Names\n", *entries, *modules])


def testing_page() -> str:
    names = sorted(
        name for name in vars(headrace.testing) if name[0].isalpha() and not _is_module(headrace.testing, name)
    )
    return "\n".join(["# Testing API\n", *(f"::: headrace.testing.{name}\n" for name in names)])


def _is_module(package: Any, name: str) -> bool:
    return inspect.ismodule(getattr(package, name))


def settings_page() -> str:
    rows = [
        f"| `{row['setting']}` | {_cell(row['default'])} | {_escape(row['meaning'])} | `{row['environment']}` |"
        for row in settings()
    ]
    unused = [f"| `{name}` | {_escape(why)} |" for name, why in WITHOUT_EFFECT.items()]
    return "\n".join([
        "# Settings\n",
        "`headrace config` prints this table. A setting comes from a keyword (`commit_interval_ms=100`), from",
        "`config=`, from the environment, or is the default, in this order.\n",
        "| setting | default | meaning | environment |\n|---|---|---|---|",
        *rows,
        "\n## Settings of Kafka Streams without effect here\n",
        "| setting | why |\n|---|---|",
        *unused,
    ])  # fmt: skip


def _cell(value: Any) -> str:
    return "" if value is None else f"`{value}`"


def _escape(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def commands_page() -> str:
    parts = ["# All commands and options\n", "`headrace COMMAND --help` prints the same.\n"]
    for path, command in _commands("headrace", root_command()):
        parts.append(f"## {path}\n\n{(command.help or '').strip()}\n")
        options = [option for option in command.params if option.name not in {"help", "version"}]
        if options:
            parts.append("| option | |\n|---|---|")
        for option in options:
            is_argument = option.param_type_name == "argument"
            names = ", ".join(f"`{name.upper() if is_argument else name}`" for name in option.opts)
            parts.append(f"| {names} | {_escape(getattr(option, 'help', None) or '')} |")
        parts.append("")
    return "\n".join(parts)


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for name, inner in sorted(command.commands.items()):
            if not inner.hidden:
                yield from _commands(f"{path} {name}", inner)
    else:
        yield path, command


def metrics_page() -> str:
    """The metrics of /metrics: name and meaning, as web/prometheus.py has them."""
    source = (ROOT / "src/headrace/web/prometheus.py").read_text(encoding="utf-8")
    found = dict(re.findall(r'"(headrace_\w+)",\s*"([^"]+)"', source))
    rows = [f"| `{name}` | {_escape(text)} |" for name, text in sorted(found.items())]
    return "\n".join([
        "# Metrics\n",
        "`/metrics` of an application that runs with `--web`, and of a replica, in Prometheus' format.",
        "`contrib/grafana/headrace.json` is a board for Grafana. `app.metrics()` has Kafka Streams' names.\n",
        "| metric | meaning |\n|---|---|",
        *rows,
    ])  # fmt: skip


def errors_page() -> str:
    classes = [
        (name, thing) for name, thing in vars(errors).items()
        if inspect.isclass(thing) and issubclass(thing, Exception) and thing.__module__ == errors.__name__
    ]  # fmt: skip
    parts = [f"# Errors\n\n{inspect.getdoc(errors)}\n"]
    for name, thing in classes:
        bases = ", ".join(base.__name__ for base in thing.__bases__)
        parts.append(f"## {name}\n\nA `{bases}`. {inspect.getdoc(thing) or ''}\n")
    return "\n".join(parts)


def decisions_page() -> str:
    pages = sorted((ROOT / "docs/decisions").glob("0*.md"))
    rows = [f"- [{page.read_text(encoding='utf-8').splitlines()[0].lstrip('# ')}]({page.name})" for page in pages]
    return "\n".join(
        ["# Decisions\n", "The choices that are hard to reverse, with their reasons and their price.\n", *rows]
    )


# ---------------------------------------------------------------------------------------------------------- timelines
def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Puts the picture of a timeline in the place of its text. A test has compared the text with the code's output."""
    return draw_timelines(markdown) if "print(timeline(" in markdown else markdown


def draw_timelines(markdown: str) -> str:
    names: dict[str, Any] = {"__name__": "__page__"}
    parts, end, drawn = list[str](), 0, list[Timeline]()
    for found in FENCE.finditer(markdown):
        follows = end > 0 and not markdown[end : found.start()].strip()
        parts.append(markdown[end : found.start()])
        if found[1] == "text" and follows and len(drawn) == 1:
            picture = drawn[0]._repr_svg_()
            parts.append(f'<figure class="timeline" style="overflow-x:auto;margin:0">{picture}</figure>')
        else:
            parts.append(found[0])
        saved = re.search(r"Save this as `(\w+)\.py`:\s*\Z", markdown[end : found.start()])
        if saved:
            module = sys.modules[saved[1]] = ModuleType(saved[1])
            exec(compile(found[2], saved[1], "exec", dont_inherit=True), vars(module))  # noqa: S102 - as below
            drawn = []
        else:
            drawn = _timelines(found[2], names) if found[1] == "python" else []
        end = found.end()
    return "".join([*parts, markdown[end:]])


def _timelines(code: str, names: dict[str, Any]) -> list[Timeline]:
    """Runs a block that needs neither Spark nor a broker, and returns the timelines that it prints."""
    drawn = list[Timeline]()
    if any(word in code for word in ("Application(", "KafkaBroker(", ".run_available(", ".drain(")):
        return drawn
    names["print"] = TimelinePrinter(drawn)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):  # the log, too
        exec(compile(code, "page", "exec", dont_inherit=True), names)  # noqa: S102 - the tests run it, too
    return drawn


class TimelinePrinter:
    """Stands for `print` in the blocks of a page: keeps timelines, and prints nothing."""

    def __init__(self, drawn: list[Timeline]) -> None:
        self._drawn = drawn

    def __call__(self, *things: object) -> None:
        self._drawn.extend(thing for thing in things if isinstance(thing, Timeline))
