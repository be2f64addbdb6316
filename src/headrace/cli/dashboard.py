"""`headrace dashboard` and `headrace replica`: serve an application from its checkpoint over HTTP."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from headrace.cli.options import Checkpoint, Program, load_topology, open_follower
from headrace.cli.output import print_note
from headrace.cli.web_server import ServerOptions, takes_server
from headrace.secrets import mask_secrets
from headrace.spark.application_state import ended_by_signals
from headrace.web.dashboard_json import ApplicationView


@takes_server(port=8089)
def dashboard(checkpoint: Checkpoint, topology: Program = None, *, server: ServerOptions) -> None:
    """Serve the dashboard of an application, until Ctrl-C."""
    _serve(checkpoint, topology, None, server)


@takes_server(port=8090)
def replica(
    checkpoint: Checkpoint,
    topology: Program = None,
    state_dir: Annotated[
        str | None, typer.Option(help="Keep the copy in this directory, if it is too large for memory.")
    ] = None,
    *,
    server: ServerOptions,
) -> None:
    """Serve a copy of the stores that follows the application, until Ctrl-C."""
    _serve(checkpoint, topology, state_dir, server)


def _serve(checkpoint: str, topology: str | None, state_dir: str | None, options: ServerOptions) -> None:
    follower, loaded = open_follower(checkpoint, topology, state_dir), load_topology(topology)
    view = ApplicationView(follower=follower, topology=None if loaded is None else loaded.describe())
    with closing(follower), ended_by_signals() as stop, options.open(view) as server:
        print_note(f"{server.link} shows {mask_secrets(checkpoint)}. Ctrl-C ends it.")
        stop.wait()
