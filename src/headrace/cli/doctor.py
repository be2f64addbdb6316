"""`headrace doctor`: is everything here that an application needs?"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from headrace.cli import checks
from headrace.cli.options import AsJson, LogAddress
from headrace.cli.printing import out, show_json

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    log: LogAddress = None,
    checkpoint: Annotated[str | None, typer.Option(help="The checkpoint to look at.")] = None,
    state_dir: Annotated[str | None, typer.Option(help="Where copies of the state are to lie.")] = None,
    port: Annotated[list[int] | None, typer.Option(help="A port that must be free; may be given often.")] = None,
    as_json: AsJson = False,
) -> None:
    """Look whether this machine can run applications, and say what to do if not."""
    found = [
        checks.python(),
        checks.java(),
        checks.pyspark(),
        checks.pandas(),
        checks.log(log),
        checks.checkpoint(checkpoint),
        checks.state(state_dir),
        checks.loopback(),
        *map(checks.port, port or ()),
    ]
    if as_json:
        show_json([check._asdict() for check in found])
    else:
        for check in found:
            advice = f" → {check.advice}" if check.advice else ""
            line = Text.assemble(
                (f"{check.result:<4}", _STYLES[check.result]), f"  {check.what}: {check.found}{advice}"
            )
            out().print(line, soft_wrap=True)
    if any(check.result == "fail" for check in found):
        raise typer.Exit(1)
