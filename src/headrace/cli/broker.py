"""`headrace broker`: start and stop a Kafka broker on this machine, for tests."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.options import AsJson
from headrace.cli.output import CommandError, print_json, print_note
from headrace.testing import KafkaBroker
from headrace.testing.broker import alone, cache_directory

app = typer.Typer(help="Start and stop a Kafka broker on this machine, for tests.", no_args_is_help=True)
Directory = Annotated[Path | None, typer.Option(help="The directory of its data; without it, one that all share.")]
SHUTDOWN_TIMEOUT = 20.0  # seconds until the broker is killed; a clean shutdown takes 1 or 2


@app.command()
def start(
    directory: Directory = None,
    port: Annotated[int, typer.Option(help="The port to listen on; 0 chooses a free one.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Start a broker in the background, and print its address. If one runs there already, print its address."""
    folder = _choose_directory(directory)
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder / "start.lock"):
        if not _is_running(folder):
            broker = KafkaBroker(folder, port=port)
            found = {"address": broker.address, "bootstrap": broker.bootstrap, "pid": broker.pid}
            _status_file(folder).write_text(json.dumps({**found, "directory": str(folder)}), encoding="utf-8")
        status: dict[str, Any] = json.loads(_status_file(folder).read_text(encoding="utf-8"))
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
    folder = _choose_directory(directory)
    if not _is_running(folder):
        raise CommandError(f"no broker runs in {folder}: `headrace broker start` starts one")
    status: dict[str, Any] = json.loads(_status_file(folder).read_text(encoding="utf-8"))
    os.kill(status["pid"], signal.SIGTERM)
    end = time.monotonic() + SHUTDOWN_TIMEOUT
    while _is_running(folder):
        if time.monotonic() > end:
            os.kill(status["pid"], signal.SIGKILL)
        time.sleep(0.05)
    _status_file(folder).unlink()
    if directory is None:
        shutil.rmtree(folder)
    if as_json:
        print_json(status)
    else:
        print_note(f"The broker at {status['address']} has ended.")


def _choose_directory(directory: Path | None) -> Path:
    return directory.absolute() if directory else cache_directory() / "broker"


def _status_file(folder: Path) -> Path:
    return folder / "running.json"


def _is_running(folder: Path) -> bool:
    """Return True if a broker that this command started runs on the directory; it locks its data while it lives."""
    if not _status_file(folder).exists():
        return False
    try:
        with (folder / "data" / ".lock").open("r+b") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
