"""`headrace dashboard` and `headrace replica`: serve an application from its checkpoint over HTTP."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from headrace.cli.options import Checkpoint, Program, load_topology, open_follower
from headrace.cli.output import print_note
from headrace.spark.application_state import ended_by_signals
from headrace.web.dashboard_json import ApplicationView
from headrace.web.server import Server

Host = Annotated[str, typer.Option(help="The address to listen on. Other than this machine's own, it needs a token.")]
Port = Annotated[int, typer.Option(help="The port to listen on; 0 chooses a free one.")]
Token = Annotated[str | None, typer.Option(help="The token that lets clients read and act.", envvar="HEADRACE_TOKEN")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Let everybody read who reaches the address.")]


def dashboard(
    checkpoint: Checkpoint,
    topology: Program = None,
    host: Host = "127.0.0.1",
    port: Port = 8089,
    token: Token = None,
    insecure: Insecure = False,
) -> None:
    """Serve the dashboard of an application, until Ctrl-C."""
    replica(checkpoint, topology, host, port, token, insecure)


def replica(
    checkpoint: Checkpoint,
    topology: Program = None,
    host: Host = "127.0.0.1",
    port: Port = 8090,
    token: Token = None,
    insecure: Insecure = False,
    state_dir: Annotated[
        str | None, typer.Option(help="Keep the copy in this directory, if it is too large for memory.")
    ] = None,
) -> None:
    """Serve a copy of the stores that follows the application, until Ctrl-C."""
    follower, loaded = open_follower(checkpoint, topology, state_dir), load_topology(topology)
    view = ApplicationView(follower=follower, topology=None if loaded is None else loaded.describe())
    with (
        closing(follower),
        ended_by_signals() as stop,
        Server(view, host=host, port=port, token=token, insecure=insecure) as server,
    ):
        print_note(f"{server.url} shows {checkpoint}. Ctrl-C ends it.")
        stop.wait()
