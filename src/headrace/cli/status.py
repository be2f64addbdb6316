"""`headrace status`, `top`, `dashboard` and `replica`: how an application is doing, seen from its checkpoint.

`headrace drops`: the records that an application left out, by reason.

`headrace pause`, `resume` and `snapshot`: what can be done to an application that runs, over its web server.

The commands that look at an application from outside.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from headrace.checkpoint.ledger import manifest_numbers, read_manifest
from headrace.checkpoint.storage import open_storage
from headrace.cli import dead_letters, query, state
from headrace.cli.options import AsJson, Checkpoint, Program, follower_of, topology_of
from headrace.cli.printing import Failed, out, say, show, show_json, table_of
from headrace.query.client import Client
from headrace.spark.application_state import ended_by_signals
from headrace.web.application_view import ApplicationView
from headrace.web.server import Server

Host = Annotated[str, typer.Option(help="The address to listen on; other than this machine's own needs a token.")]
Port = Annotated[int, typer.Option(help="The port to listen on; 0: any that is free.")]
Token = Annotated[str | None, typer.Option(help="Who has it may read and act.", envvar="HEADRACE_TOKEN")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Let everybody read who reaches the address.")]


def status(checkpoint: Checkpoint, topology: Program = None, as_json: AsJson = False) -> int:
    """How an application is doing; 1 if it is not well."""
    board = _board(checkpoint, topology)
    told = board.status()
    if as_json:
        show_json(told)
    else:
        out().print(_shown(board))
    return int(not told["healthy"])


def top(
    checkpoint: Checkpoint,
    topology: Program = None,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
) -> None:
    """Watch an application in the terminal, until Ctrl-C."""
    board = _board(checkpoint, topology)
    if once:
        out().print(_shown(board))
        return
    with ended_by_signals() as over, Live(_shown(board), console=out(), auto_refresh=False) as live:
        while not over.wait(interval):
            board.follower.refresh()
            live.update(_shown(board), refresh=True)


def dashboard(
    checkpoint: Checkpoint,
    topology: Program = None,
    host: Host = "127.0.0.1",
    port: Port = 8089,
    token: Token = None,
    insecure: Insecure = False,
) -> None:
    """Serve the dashboard of an application, until Ctrl-C."""
    _serve(checkpoint, topology, host, port, token, insecure=insecure)


def replica(
    checkpoint: Checkpoint,
    topology: Program = None,
    host: Host = "127.0.0.1",
    port: Port = 8090,
    token: Token = None,
    insecure: Insecure = False,
    state_dir: Annotated[
        str | None, typer.Option(help="Where the copy lies, if it is too large for memory; by default in memory.")
    ] = None,
) -> None:
    """Answer questions from a copy of the stores that follows the application, until Ctrl-C."""
    _serve(checkpoint, topology, host, port, token, insecure=insecure, state_dir=state_dir)


def _serve(
    checkpoint: str,
    topology: str | None,
    host: str,
    port: int,
    token: str | None,
    *,
    insecure: bool,
    state_dir: str | None = None,
) -> None:
    given = topology_of(topology)
    follower = follower_of(checkpoint, topology, state_dir)
    board = ApplicationView(follower=follower, topology=None if given is None else given.describe())
    with (
        closing(follower),
        ended_by_signals() as over,
        Server(board, host=host, port=port, token=token, insecure=insecure) as server,
    ):
        say(f"{server.url} shows {checkpoint}. Ctrl-C ends it.")
        over.wait()


def _board(checkpoint: str, topology: str | None) -> ApplicationView:
    follower = follower_of(checkpoint, topology)
    follower.refresh()
    return ApplicationView(follower=follower)


def _shown(board: ApplicationView) -> Group:
    told = board.status()
    lines: list[Any] = [
        Text(f"{told['application']}  {told['state']}  batch {told['batch']}, delivered {told['delivered']}", "bold"),
        Text(told["verdict"]),
        Text(""),
        table_of(board.stores(), ["name", "kind", "entries"]),
    ]
    rates = [{"topic": topic, "records_per_second": f"{rate:.1f}"} for topic, rate in sorted(told["rates"].items())]
    if rates:
        lines += [Text(""), table_of(rates, ["topic", "records_per_second"])]
    if told["dropped"]:
        dropped = [{"dropped": reason, "records": count} for reason, count in sorted(told["dropped"].items())]
        lines += [Text(""), table_of(dropped, ["dropped", "records"])]
    return Group(*lines)


def drops(checkpoint: Checkpoint, as_json: AsJson = False) -> None:
    """Show how many records were dropped since the beginning, by reason."""
    is_there = "://" in checkpoint or Path(checkpoint.removeprefix("file:")).is_dir()  # to look is not to make one
    storage = open_storage(checkpoint) if is_there else None
    numbers = manifest_numbers(storage) if storage else []
    if storage is None or not numbers:
        raise Failed(f"there is no checkpoint in {checkpoint}")
    manifest, _ = read_manifest(storage, numbers[-1])
    rows = [{"reason": reason, "records": count} for reason, count in sorted(manifest.dropped.items())]
    show(rows, ["reason", "records"], as_json=as_json)
    say(f"As of batch {manifest.number}, {sum(manifest.dropped.values())} records in all.")


Url = Annotated[str, typer.Option(help="Where `headrace run --web` serves the application.", envvar="HEADRACE_URL")]
HERE = "http://127.0.0.1:8089"


def pause(url: Url = HERE, token: Token = None) -> None:
    """Let no further batch begin, until it is resumed."""
    _act(url, token, "pause")
    say("Paused: no further batch begins until `headrace resume`.")


def resume(url: Url = HERE, token: Token = None) -> None:
    """Go on."""
    _act(url, token, "resume")
    say("Resumed.")


def snapshot(url: Url = HERE, token: Token = None) -> None:
    """Have the deltas of the state merged, so that a restart reads one file for each task."""
    _act(url, token, "snapshot")
    say("Begun: the next batches take the snapshots up.")


def _act(url: str, token: str | None, action: str) -> None:
    with Client(url, token=token) as client:
        client.act(action)


def register(app: typer.Typer) -> None:
    """Adds them to the command line."""
    app.command("query")(query.query)
    app.add_typer(state.state, name="state")
    app.add_typer(state.checkpoints, name="checkpoint")
    app.command("status")(status)
    app.command("top")(top)
    app.command("pause")(pause)
    app.command("resume")(resume)
    app.command("snapshot")(snapshot)
    app.command("dashboard")(dashboard)
    app.command("replica")(replica)
    app.add_typer(dead_letters.app, name="dead-letters")
    app.command("drops")(drops)
