"""`headrace broker`: start and stop a Kafka broker on this machine, for tests."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.background_server import choose_directory, end_server, read_status, status_file, write_status
from headrace.cli.options import AsJson
from headrace.cli.output import CommandError, print_json, print_note
from headrace.testing import KafkaBroker
from headrace.testing.broker import alone

app = typer.Typer(help="Start and stop a Kafka broker on this machine, for tests.", no_args_is_help=True)
Directory = Annotated[Path | None, typer.Option(help="The directory of its data; without it, one that all share.")]


@app.command()
def start(
    directory: Directory = None,
    port: Annotated[int, typer.Option(help="The port to listen on; 0 chooses a free one.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Start a broker in the background, and print its address. If one runs there already, print its address."""
    folder = choose_directory(directory, "broker")
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder / "start.lock"):
        if not _is_running(folder):
            broker = KafkaBroker(folder, port=port)
            found = {"address": broker.address, "bootstrap": broker.bootstrap, "pid": broker.pid}
            write_status(folder, {**found, "directory": str(folder)})
        status = read_status(folder)
    if port and not status["address"].endswith(f":{port}"):
        raise CommandError(
            f"a broker runs in {folder} already, at {status['address']}: stop it first, or choose a --directory"
        )
    if as_json:
        print_json(status)
        return
    typer.echo(status["address"])
    print_note(
        "It runs in the background. `headrace broker stop` ends it"
        + (f" (--directory {folder})." if directory else ".")
    )


@app.command()
def stop(directory: Directory = None, as_json: AsJson = False) -> None:
    """Stop a broker. A given directory keeps its topics, the shared one is deleted."""
    folder = choose_directory(directory, "broker")
    if not _is_running(folder):
        raise CommandError(f"no broker runs in {folder}: `headrace broker start` starts one")
    status = end_server(folder, _is_running, remove=directory is None)
    if as_json:
        print_json(status)
    else:
        print_note(f"The broker at {status['address']} has ended.")


def _is_running(folder: Path) -> bool:
    """Return True if a broker that this command started runs on the directory; it locks its data while it lives."""
    if not status_file(folder).exists():
        return False
    try:
        with (folder / "data" / ".lock").open("r+b") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
