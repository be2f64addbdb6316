"""`headrace broker`: a real Kafka broker on this machine, for tests and for trying things out."""

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
from headrace.cli.printing import Failed, say, show_json
from headrace.testing import KafkaBroker
from headrace.testing.kafka_jars import alone, cache_directory

app = typer.Typer(help="Start and stop a Kafka broker on this machine, for tests.", no_args_is_help=True)
Directory = Annotated[Path | None, typer.Option(help="Where it keeps its data; one for all who say none.")]
PATIENCE = 20.0  # seconds that it has to end in good order; it takes 1 or 2


@app.command()
def start(
    directory: Directory = None,
    port: Annotated[int, typer.Option(help="Where it listens; any free one if 0.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Start a broker that goes on in the background; if it runs already, say where."""
    place = _place(directory)
    place.mkdir(parents=True, exist_ok=True)
    with alone(place / "start.lock"):
        if not _runs(place):
            broker = KafkaBroker(place, port=port)
            found = {"address": broker.address, "bootstrap": broker.bootstrap, "pid": broker.pid}
            _notes(place).write_text(json.dumps({**found, "directory": str(place)}), encoding="utf-8")
        notes: dict[str, Any] = json.loads(_notes(place).read_text(encoding="utf-8"))
    if port and not notes["address"].endswith(f":{port}"):
        raise Failed(f"a broker runs in {place} already, at {notes['address']}: stop it first, or choose a --directory")
    if as_json:
        show_json(notes)
        return
    typer.echo(notes["address"])
    say(
        "It goes on in the background. `headrace broker stop` ends it"
        + (f" (--directory {place})." if directory else ".")
    )


@app.command()
def stop(directory: Directory = None, as_json: AsJson = False) -> None:
    """Stop a broker; a directory that was given keeps its topics, the one for all is emptied."""
    place = _place(directory)
    if not _runs(place):
        raise Failed(f"no broker runs in {place}: `headrace broker start` starts one")
    notes: dict[str, Any] = json.loads(_notes(place).read_text(encoding="utf-8"))
    os.kill(notes["pid"], signal.SIGTERM)
    end = time.monotonic() + PATIENCE
    while _runs(place):
        if time.monotonic() > end:
            os.kill(notes["pid"], signal.SIGKILL)
        time.sleep(0.05)
    _notes(place).unlink()
    if directory is None:
        shutil.rmtree(place)
    if as_json:
        show_json(notes)
    else:
        say(f"The broker at {notes['address']} has ended.")


def _place(directory: Path | None) -> Path:
    return directory.absolute() if directory else cache_directory() / "broker"


def _notes(place: Path) -> Path:
    return place / "running.json"


def _runs(place: Path) -> bool:
    """Whether a broker that we have started has its data here: it holds a lock on them for as long as it lives."""
    if not _notes(place).exists():
        return False
    try:
        with (place / "data" / ".lock").open("r+b") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
