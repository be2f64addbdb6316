"""`headrace plan`: show what a changed topology does with the state in its checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import AsJson, StartsOption, Target, choose_starts, load_application
from headrace.cli.output import print_json


def plan(
    target: Target,
    application_id: Annotated[str | None, typer.Option(help="The application id. Only with a Topology.")] = None,
    log: Annotated[str | None, typer.Option(help="The log. Only with a Topology.", envvar="HEADRACE_LOG")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="The checkpoint. Only with a Topology.")] = None,
    config: Annotated[Path | None, typer.Option(help="A .properties file. Only with a Topology.")] = None,
    starts: StartsOption = None,
    as_json: AsJson = False,
) -> int:
    """Show what the next start does with the state, and change nothing. Exit with 2 if something must be decided."""
    options = {"--application-id": application_id, "--log": log, "--checkpoint": checkpoint, "--config": config}
    app = load_application(target, options, ignored={"--log"})
    choose_starts(app, starts)
    found = app.plan()
    if as_json:
        print_json(found.to_json())
    else:
        sys.stdout.write(found.describe() + "\n")
    return 2 if found.decisions else 0
