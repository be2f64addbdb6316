"""`headrace changelogs`: writes the state of an application where Kafka Streams looks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.app import Application
from headrace.checkpoint.changelog_export import Export
from headrace.cli.options import AsJson, load
from headrace.cli.printing import WrongUsage, err, say, show

Target = Annotated[
    str, typer.Argument(metavar="MODULE:ATTRIBUTE", help="An Application or a Topology, or a function that makes one.")
]


def changelogs(
    target: Target,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")] = False,
    application_id: Annotated[str | None, typer.Option(help="Of a topology: the application's id.")] = None,
    log: Annotated[str | None, typer.Option(help="Of a topology: its log, kafka://HOST:PORT.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Of a topology: the directory or URL of its state.")] = None,
    config: Annotated[Path | None, typer.Option(help="Of a topology: a .properties file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the state to the topics where a Java application of the same id looks for it. It must not be running."""
    app = _application(target, application_id, log, checkpoint, config)
    with err().status(f"Comparing the state of {app.application_id} with its changelogs …") as status:

        def tell(part: Export) -> None:
            status.update(f"{part.topic}: {part.written} of {part.entries} entries of a partition written")

        done = app.write_changelogs(dry_run=dry_run, told=tell)
    show([export._asdict() for export in done], Export._fields, as_json=as_json)
    say("Nothing was changed: this was a dry run." if dry_run else f"{app.application_id} can go on in Java.")


def _application(
    target: str, application_id: str | None, log: str | None, checkpoint: str | None, config: Path | None
) -> Application:
    thing = load(target)
    if isinstance(thing, Application):
        if application_id or log or checkpoint or config:
            raise WrongUsage(
                f"{target} gives an Application, which says itself what it is: leave the other options out"
            )
        return thing
    if application_id is None:
        raise WrongUsage(f"{target} gives a Topology: give --application-id, --log and --checkpoint, too")
    return Application(application_id, thing, log, checkpoint=checkpoint, config=config)
