"""`headrace registry`: start and stop a schema registry on this machine, for tests."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.background_server import choose_directory, end_server, read_status, status_file, write_status
from headrace.cli.options import AsJson
from headrace.cli.output import CommandError, print_json, print_note
from headrace.testing import SchemaRegistry
from headrace.testing.broker import alone

app = typer.Typer(help="Start and stop a schema registry on this machine, for tests.", no_args_is_help=True)
Directory = Annotated[Path | None, typer.Option(help="The directory of its output; without it, one that all share.")]


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
    folder = choose_directory(directory, "registry")
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder / "start.lock"):
        if not _is_running(folder):
            registry = SchemaRegistry(folder, port=port, compatibility=compatibility)
            write_status(folder, {"url": registry.url, "pid": registry.pid, "directory": str(folder)})
        status = read_status(folder)
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
    folder = choose_directory(directory, "registry")
    if not _is_running(folder):
        raise CommandError(f"no registry runs in {folder}: `headrace registry start` starts one")
    status = end_server(folder, _is_running, remove=directory is None)
    if as_json:
        print_json(status)
    else:
        print_note(f"The registry at {status['url']} has ended.")


def _is_running(folder: Path) -> bool:
    """Return True if the registry that this command started in the directory answers."""
    if not status_file(folder).exists():
        return False
    try:
        with urllib.request.urlopen(f"{read_status(folder)['url']}/config", timeout=10):  # noqa: S310 - http
            return True
    except urllib.error.HTTPError:
        return True
    except (urllib.error.URLError, OSError):
        return False
