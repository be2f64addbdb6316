"""`headrace changelogs`: write the state of an application to the changelog topics that Kafka Streams restores from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.checkpoint.changelog_export import Export
from headrace.cli.options import AsJson, Target
from headrace.cli.output import print_note, print_rows, stderr
from headrace.cli.run import load_application


def changelogs(
    target: Target,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written, and write nothing.")] = False,
    application_id: Annotated[str | None, typer.Option(help="Of a topology: the application's id.")] = None,
    log: Annotated[str | None, typer.Option(help="Of a topology: its log, kafka://HOST:PORT.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Of a topology: the directory or URL of its state.")] = None,
    config: Annotated[Path | None, typer.Option(help="Of a topology: a .properties file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the state to the changelogs of a Java application with the same id. Stop the application first."""
    options = {"--application-id": application_id, "--log": log, "--checkpoint": checkpoint, "--config": config}
    app = load_application(target, options)
    with stderr().status(f"Comparing the state of {app.application_id} with its changelogs …") as status:

        def show_progress(part: Export) -> None:
            status.update(f"{part.topic}: {part.written} of {part.entries} entries of a partition written")

        exports = app.write_changelogs(dry_run=dry_run, told=show_progress)
    print_rows([export._asdict() for export in exports], Export._fields, as_json=as_json)
    print_note("Nothing was changed: this was a dry run." if dry_run else f"{app.application_id} can continue in Java.")
