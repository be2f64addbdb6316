"""`headrace dashboard` and `headrace replica`: serve an application from its checkpoint over HTTP."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Annotated

import typer

from headrace.app import Application
from headrace.cli.options import Checkpoint, Program, load, open_follower
from headrace.cli.output import print_note
from headrace.cli.web_server import ServerOptions, takes_server
from headrace.errors import StreamsError
from headrace.spark.application_state import ended_by_signals
from headrace.spark.job import absolute
from headrace.web import ApplicationView


@takes_server(port=8089)
def dashboard(checkpoint: Checkpoint = "", topology: Program = None, *, server: ServerOptions) -> None:
    """Serve the dashboard of an application, until Ctrl-C."""
    _serve(open_view(checkpoint, topology), server)


@takes_server(port=8090)
def replica(
    checkpoint: Checkpoint = "",
    topology: Program = None,
    state_dir: Annotated[
        str | None, typer.Option(help="Keep the copy in this directory, if it is too large for memory.")
    ] = None,
    *,
    server: ServerOptions,
) -> None:
    """Serve a copy of the stores that follows the application, until Ctrl-C."""
    _serve(_view_as_given(checkpoint, topology, state_dir), server)


def _serve(view: ApplicationView, options: ServerOptions) -> None:
    with closing(view.follower), ended_by_signals() as stop, options.open(view) as server:
        print_note(f"{server.link} shows {view.follower.storage.describe()}. Ctrl-C ends it.")
        stop.wait()


def open_view(checkpoint: str, program: str | None) -> ApplicationView:
    """Return what a checkpoint says about its application, with the graph of the program if there is one.

    An application whose topology is not the checkpoint's any more is shown as the checkpoint has it, with the plan of
    what its next start changes.
    """
    loaded = None if program is None else load(program)
    if isinstance(loaded, Application):
        if checkpoint:
            loaded.setup = replace(loaded.setup, checkpoint=absolute(checkpoint))
        if _has_changed(loaded):
            return ApplicationView(follower=open_follower(loaded.setup.checkpoint, None, None), plan=loaded.plan)
    return _view_as_given(checkpoint, program, None)


def _view_as_given(checkpoint: str, program: str | None, state_dir: str | None) -> ApplicationView:
    """Return a view whose stores are those of the program: it knows their retention, which the checkpoint does not."""
    follower, loaded = open_follower(checkpoint, program, state_dir), None if program is None else load(program)
    topology = loaded.topology if isinstance(loaded, Application) else loaded
    return ApplicationView(follower=follower, topology=None if topology is None else topology.describe())


def _has_changed(app: Application) -> bool:
    try:
        return app.plan().has_changes
    except StreamsError as error:  # the log is away, or there is no batch yet
        print_note(f"What the next start changes is not known: {error}")
        return False
