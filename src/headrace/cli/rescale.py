"""`headrace rescale`: give a sub-topology behind a repartition another number of tasks, with its state."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headrace.checkpoint import rescale as dividing
from headrace.cli.options import AsJson, Target, load_application
from headrace.cli.output import print_json, print_note, stderr
from headrace.extras import needs_extra


def rescale(
    target: Target,
    subtopology: Annotated[int, typer.Option(help="The sub-topology, as `headrace topology` numbers it.")],
    partitions: Annotated[int, typer.Option(help="The new number of its partitions, which is that of its tasks.")],
    application_id: Annotated[str | None, typer.Option(help="The application id. Only with a Topology.")] = None,
    log: Annotated[str | None, typer.Option(help="The log. Only with a Topology.", envvar="HEADRACE_LOG")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="The checkpoint. Only with a Topology.")] = None,
    config: Annotated[Path | None, typer.Option(help="A .properties file. Only with a Topology.")] = None,
    as_json: AsJson = False,
) -> None:
    """Give a sub-topology behind a repartition another number of tasks. Stop the application first."""
    with needs_extra("spark"):  # the import takes a second, which other commands save
        from headrace.spark.job_planner import rescale_application  # noqa: PLC0415

    options = {"--application-id": application_id, "--log": log, "--checkpoint": checkpoint, "--config": config}
    app = load_application(target, options, ignored={"--log"})
    last: dividing.Progress | None = None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr(), transient=True) as bar:
        shown = bar.add_task("Dividing the state", total=None)

        def show(progress: dividing.Progress) -> None:
            nonlocal last
            last = progress
            bar.update(shown, completed=progress.tasks, total=progress.of_tasks)

        before, after = rescale_application(app.setup, subtopology, partitions, show)
    entries, size = (last.entries, last.bytes) if last else (0, 0)
    if as_json:
        print_json(
            {"subtopology": subtopology, "before": before, "after": after, "entries": entries, "bytes": size},
        )
    elif before == after:
        print_note(f"Sub-topology {subtopology} has {after} tasks already.")
    else:
        print_note(
            f"Sub-topology {subtopology} had {before} tasks and has {after}: {entries:,} entries in {size:,} bytes "
            "were divided."
        )
