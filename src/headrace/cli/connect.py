"""`headrace connect`: run sources without an application, and a Kafka Connect worker on this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from headrace.cli.options import AsJson, LogAddress
from headrace.cli.output import CommandError, UsageError, make_table, print_json, print_note, print_rows, stderr
from headrace.connect.pipeline import read_pipeline
from headrace.connect.source import RunningSources
from headrace.directories import cache_directory
from headrace.log.open import open_log
from headrace.spark.application_state import ended_by_signals, is_alive
from headrace.testing.broker import alone
from headrace.testing.connect_worker import ConnectWorker, deploy_connector, list_connectors

app = typer.Typer(help="Run sources, and a Kafka Connect worker.", no_args_is_help=True)
Directory = Annotated[Path | None, typer.Option(help="The directory of the worker; without it, one that all share.")]
COLUMNS = ["name", "topic", "state", "records", "lag", "failures", "error"]
STOP_TIMEOUT = 30.0  # seconds until the worker is killed


@app.command()
def run(
    pipeline: Annotated[Path, typer.Argument(help="A TOML file with sources.")],
    log: LogAddress = None,
    once: Annotated[bool, typer.Option("--once", help="Read what is there, then stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read sources into topics of a log, exactly once, until Ctrl-C. They need no application and no Spark."""
    found = read_pipeline(pipeline)
    address = found.log or log
    if address is None:
        raise UsageError(f"which log? Write log = in {pipeline}, or give --log file:DIRECTORY")
    sources = RunningSources(found.name, found.sources, lambda: open_log(address))
    try:
        with ended_by_signals() as stop, Live(_render(sources), console=stderr(), auto_refresh=False) as live:
            while not stop.wait(0.2):
                sources.check()
                live.update(_render(sources), refresh=True)
                if once and sources.is_caught_up:
                    break
    finally:
        sources.close()
    print_rows([report._asdict() for report in sources.reports()], COLUMNS, as_json=as_json)


def _render(sources: RunningSources) -> Group:
    rows = [report._asdict() for report in sources.reports()]
    return Group(make_table(rows, COLUMNS), Text("Ctrl-C ends it; the log has the positions."))


# ------------------------------------------------------------------------------------------------------ Kafka Connect
@app.command()
def start(
    log: LogAddress = None,
    plugin: Annotated[
        list[str] | None, typer.Option(help="GROUP:ARTIFACT:VERSION of a connector in Maven's repository.")
    ] = None,
    config: Annotated[list[Path] | None, typer.Option(help="A JSON file with the settings of a connector.")] = None,
    directory: Directory = None,
    port: Annotated[int, typer.Option(help="The port of its REST interface; 0 chooses a free one.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Start a Kafka Connect worker in the background, with any connector; if one runs, give it the connectors."""
    if log is None or not log.startswith("kafka://"):
        raise UsageError("a Kafka Connect worker needs a Kafka cluster: --log kafka://HOST:PORT")
    connectors = [_read_config(file) for file in config or ()]
    folder = _choose_directory(directory)
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder / "start.lock"):
        status: dict[str, Any] | None = _find_running(folder)
        if status is None:
            worker = ConnectWorker(log.removeprefix("kafka://"), plugin or (), directory=folder, port=port)
            status = {"url": worker.url, "pid": worker.pid, "log": log, "plugins": plugin or []}
            _status_file(folder).write_text(json.dumps(status), encoding="utf-8")
        elif status["log"] != log or set(plugin or ()) - set(status["plugins"]):
            raise CommandError(
                f"a worker runs in {folder} already, for {status['log']} with the plugins {status['plugins']}: "
                "`headrace connect stop` it first, or choose a --directory"
            )
    names = [deploy_connector(status["url"], connector) for connector in connectors]
    if as_json:
        print_json({**status, "connectors": names})
        return
    typer.echo(status["url"])
    print_note("It runs in the background. `headrace connect status` shows its connectors, `connect stop` ends it.")


@app.command()
def status(directory: Directory = None, as_json: AsJson = False) -> int:
    """Show the connectors of the worker. Exit with 1 if one has failed."""
    running = _require_running(_choose_directory(directory))
    connectors = list_connectors(running["url"])
    if as_json:
        print_json({**running, "connectors": connectors})
    else:
        rows = [{**connector, "tasks": " ".join(connector["tasks"])} for connector in connectors]
        print_rows(rows, ["name", "type", "state", "tasks", "error"], as_json=False)
    return int(any("FAILED" in (connector["state"], *connector["tasks"]) for connector in connectors))


@app.command()
def stop(directory: Directory = None, as_json: AsJson = False) -> None:
    """Stop the worker. The cluster keeps its connectors and their offsets: the next worker goes on with them."""
    folder = _choose_directory(directory)
    running = _require_running(folder)
    os.kill(running["pid"], signal.SIGTERM)
    end = time.monotonic() + STOP_TIMEOUT
    while _find_running(folder) is not None:
        if time.monotonic() > end:
            os.kill(running["pid"], signal.SIGKILL)
        time.sleep(0.1)
    _status_file(folder).unlink(missing_ok=True)
    if directory is None:
        shutil.rmtree(folder)
    if as_json:
        print_json(running)
    else:
        print_note(f"The worker at {running['url']} has ended.")


def _read_config(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CommandError(f"{file} is not JSON: {error}") from error


def _choose_directory(directory: Path | None) -> Path:
    return directory.absolute() if directory else cache_directory() / "connect"


def _status_file(folder: Path) -> Path:
    return folder / "running.json"


def _find_running(folder: Path) -> dict[str, Any] | None:
    """Return the worker that this command has started in a directory, if it still runs."""
    if not _status_file(folder).exists():
        return None
    found: dict[str, Any] = json.loads(_status_file(folder).read_text(encoding="utf-8"))
    return found if _is_worker(found["pid"], folder) else None


def _is_worker(process: int, folder: Path) -> bool:
    """Return True if the process is the worker of the directory: another one may have got its number since."""
    if not is_alive(process):
        return False
    command = Path(f"/proc/{process}/cmdline")
    return not command.parent.parent.joinpath("self").exists() or str(folder).encode() in command.read_bytes()


def _require_running(folder: Path) -> dict[str, Any]:
    found = _find_running(folder)
    if found is None:
        raise CommandError(f"no worker runs in {folder}: `headrace connect start` starts one")
    return found
