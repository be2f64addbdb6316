"""`headrace registry`: start and stop a schema registry on this machine, for tests."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.options import AsJson
from headrace.cli.output import CommandError, print_json, print_note
from headrace.testing import SchemaRegistry
from headrace.testing.broker import alone, cache_directory

app = typer.Typer(help="Start and stop a schema registry on this machine, for tests.", no_args_is_help=True)
Directory = Annotated[Path | None, typer.Option(help="The directory of its output; without it, one that all share.")]
SHUTDOWN_TIMEOUT = 20.0  # seconds until the registry is killed


@app.command()
def start(
    directory: Directory = None,
    port: Annotated[int, typer.Option(help="The port to listen on; 0 chooses a free one.")] = 0,
    compatibility: Annotated[
        str, typer.Option(help="What a new version of a schema must be: BACKWARD, FORWARD, FULL or NONE.")
    ] = "BACKWARD",
    as_json: AsJson = False,
) -> None:
    """Start a registry in the background, and print its address. If one runs there already, print its address."""
    folder = _choose_directory(directory)
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder / "start.lock"):
        if not _is_running(folder):
            registry = SchemaRegistry(folder, port=port, compatibility=compatibility)
            found = {"url": registry.url, "pid": registry.pid, "directory": str(folder)}
            _status_file(folder).write_text(json.dumps(found), encoding="utf-8")
        status = _read_status(folder)
    if port and f":{port}/" not in status["url"]:
        raise CommandError(
            f"a registry runs in {folder} already, at {status['url']}: stop it first, or choose a --directory"
        )
    if as_json:
        print_json(status)
        return
    typer.echo(status["url"])
    print_note(
        "It runs in the background, with its schemas in memory. `headrace registry stop` ends it"
        + (f" (--directory {folder})." if directory else ".")
    )


@app.command()
def stop(directory: Directory = None, as_json: AsJson = False) -> None:
    """Stop a registry. Its schemas are gone."""
    folder = _choose_directory(directory)
    if not _is_running(folder):
        raise CommandError(f"no registry runs in {folder}: `headrace registry start` starts one")
    status = _read_status(folder)
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
        print_note(f"The registry at {status['url']} has ended.")


def _choose_directory(directory: Path | None) -> Path:
    return directory.absolute() if directory else cache_directory() / "registry"


def _status_file(folder: Path) -> Path:
    return folder / "running.json"


def _read_status(folder: Path) -> dict[str, Any]:
    return json.loads(_status_file(folder).read_text(encoding="utf-8"))


def _is_running(folder: Path) -> bool:
    """Return True if the registry that this command started in the directory answers."""
    if not _status_file(folder).exists():
        return False
    try:
        with urllib.request.urlopen(f"{_read_status(folder)['url']}/config", timeout=10):  # noqa: S310 - http
            return True
    except urllib.error.HTTPError:
        return True
    except (urllib.error.URLError, OSError):
        return False
