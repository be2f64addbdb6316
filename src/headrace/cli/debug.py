"""`headrace trace` and `headrace replay-batch`: what the application did with a record, and with a batch.

Both run committed batches again in this process, from the checkpoint and the log, without any effect. See
`spark.batch_replay`.
"""

from __future__ import annotations

import inspect
import pdb  # noqa: T100 - the command offers the debugger
import sys
from collections.abc import Callable
from contextlib import closing, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.app import Application
from headrace.cli.options import AsJson, Target, load_application, open_checkpoint
from headrace.cli.output import CommandError, make_table, print_json, print_note, stdout
from headrace.errors import StreamsError
from headrace.runtime.failures import Place
from headrace.spark.job import absolute

ApplicationId = Annotated[str | None, typer.Option(help="The application id. Only with a Topology.")]
LogAddress = Annotated[str | None, typer.Option(help="The log. Only with a Topology.", envvar="HEADRACE_LOG")]
CheckpointAddress = Annotated[str | None, typer.Option(help="The checkpoint, or a copy of it. [the application's own]")]
ConfigFile = Annotated[Path | None, typer.Option(help="A .properties file. Only with a Topology.")]
SideEffects = Annotated[bool, typer.Option("--side-effects", help="Call the functions of foreach, peek and print too.")]


def trace(
    target: Target,
    topic: Annotated[str, typer.Option(help="The topic of the record.")],
    offset: Annotated[int, typer.Option(min=0, help="Its offset.")],
    partition: Annotated[int, typer.Option(min=0, help="Its partition.")] = 0,
    side_effects: SideEffects = False,
    application_id: ApplicationId = None,
    log: LogAddress = None,
    checkpoint: CheckpointAddress = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the way of one record through the operators, and what each gave. Nothing is written.

    The record is traced in the batch that processed it, with the state of then; if the checkpoint no longer has that
    batch, or no batch has read the record yet, in the current state. The output says which.
    """
    app = _load(target, application_id, log, checkpoint, config)
    from headrace.spark.batch_replay import Replay  # noqa: PLC0415 - other commands save the import

    with closing(Replay(app.setup, side_effects=side_effects)) as replay, redirect_stdout(sys.stderr):
        found = replay.trace(topic, partition, offset)
    if as_json:
        print_json(found.as_dict())
    else:
        sys.stdout.write(f"{found}\n")


def replay_batch(
    target: Target,
    batch: Annotated[int, typer.Argument(metavar="N", help="The number of the batch.")],
    debugger: Annotated[bool, typer.Option("--pdb", help="Open the debugger where a function fails.")] = False,
    break_at: Annotated[
        str | None,
        typer.Option(metavar="OPERATOR", help="Open the debugger before this operator gets a record."),
    ] = None,
    side_effects: SideEffects = False,
    application_id: ApplicationId = None,
    log: LogAddress = None,
    checkpoint: CheckpointAddress = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> int:
    """Run a batch of the checkpoint again in this process, without any effect, and compare it with what was committed.

    The functions of the program run, so breakpoint() works. Exit with 1 if something differs.
    """
    app = _load(target, application_id, log, checkpoint, config)
    from headrace.spark.batch_replay import Replay  # noqa: PLC0415 - other commands save the import

    watch = None if break_at is None else _break_at(break_at, app)
    with closing(Replay(app.setup, side_effects=side_effects, watch=watch)) as replay:
        try:
            with redirect_stdout(sys.stderr if as_json else sys.stdout):
                report = replay.run(batch)
        except StreamsError as error:
            if debugger and error.__cause__ is not None:
                print_note(f"headrace: {error}")
                pdb.post_mortem(error.__cause__.__traceback__)
            raise
    if as_json:
        print_json(report.as_dict())
    else:
        columns = ["task", "read", "received", "sent", "written", "state", "dropped", "differences"]
        stdout().print(make_table(report.tasks, columns))
        rows = [difference._asdict() for difference in report.differences]
        if rows:
            stdout().print(make_table(rows, ["task", "what", "where", "committed", "replayed"]))
    for sentence in report.not_compared:
        print_note(f"Not compared: {sentence}")
    if report.skipped:
        print_note(f"Not called: the functions of {', '.join(report.skipped)} (--side-effects calls them).")
    verdict = "as it was committed" if report.is_same else f"with {len(report.differences)} differences"
    print_note(f"Batch {batch} ran again, {verdict}. Nothing was written.")
    return int(not report.is_same)


def _load(
    target: str, application_id: str | None, log: str | None, checkpoint: str | None, config: Path | None
) -> Application:
    options: dict[str, Any] = {
        "--application-id": application_id, "--log": log, "--checkpoint": checkpoint, "--config": config,
    }  # fmt: skip
    app = load_application(target, options, ignored={"--log", "--checkpoint"})
    if checkpoint is not None:
        app.setup = replace(app.setup, checkpoint=absolute(checkpoint))
    open_checkpoint(app.setup.checkpoint)  # opening a missing directory would create it
    return app


def _break_at(operator: str, app: Application) -> Callable[[Place], None]:
    """Return a function that opens the debugger in the frame that calls an operator."""
    nodes = app.setup.graph.nodes
    if operator not in nodes:
        raise CommandError(f"the topology has no operator {operator!r} (it has: {', '.join(nodes)})")

    def stop(place: Place) -> None:
        if place.node == operator:
            sys.stderr.write(f"> {place}: `step` goes into the operator; key and value are those that it gets\n")
            frame = inspect.currentframe()
            pdb.Pdb().set_trace(None if frame is None else frame.f_back)

    return stop
