"""`headrace run`: run an application until a signal, or until it has processed the log."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.app import Application
from headrace.cli.dashboard import Host, Insecure, Port, Token
from headrace.cli.options import Target, load, parse_pairs
from headrace.cli.output import UsageError, print_note, stderr
from headrace.cli.spark_startup import start_spark, warm_up
from headrace.cli.standby import Serve, run_standby
from headrace.config.properties import read_properties
from headrace.query.follower import Follower
from headrace.query.status import RunningApplication
from headrace.web.dashboard_json import ApplicationView
from headrace.web.server import Server


def run(
    target: Target,
    once: Annotated[bool, typer.Option("--once", help="Process what is in the log, and end.")] = False,
    standby: Annotated[bool, typer.Option("--standby", help="Wait to take over from the running instance.")] = False,
    master: Annotated[str | None, typer.Option(help="Spark's: local[4], spark://HOST:7077, yarn, k8s://…")] = None,
    application_id: Annotated[str | None, typer.Option(help="Of a topology: the application's id.")] = None,
    log: Annotated[str | None, typer.Option(help="Of a topology: its log, file:DIR.", envvar="HEADRACE_LOG")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Of a topology: the directory or URL of its state.")] = None,
    state_dir: Annotated[str | None, typer.Option(help="Of a topology: the directory of local state.")] = None,
    config: Annotated[Path | None, typer.Option(help="Of a topology: a .properties file.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Of a topology: key=value, which overrides the file.")
    ] = None,
    web: Annotated[bool, typer.Option("--web", help="Serve the dashboard and the stores while it runs.")] = False,
    host: Host = "127.0.0.1",
    port: Port = 8089,
    token: Token = None,
    insecure: Insecure = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show Spark's messages while it starts.")] = False,
) -> None:
    """Run an application on Spark, until Ctrl-C or SIGTERM."""
    if once and standby:
        raise UsageError("--once ends, and --standby waits: give one of them")
    options = {
        "--application-id": application_id,
        "--log": log,
        "--checkpoint": checkpoint,
        "--state-dir": state_dir,
        "--config": config,
        "--set": settings,
    }
    app = load_application(target, options, ignored={"--log"})  # HEADRACE_LOG may be set for other commands
    start_spark(app, master, verbose=verbose)
    logging.getLogger("headrace.app").setLevel(logging.CRITICAL)  # the command prints the error that stops it
    if once:
        with stderr().status(f"{app.application_id} is processing the log …"):
            app.run_available()
        return
    serve: Serve = partial(_serve, app, host, port, token, insecure=insecure) if web else _serve_nothing
    if standby:
        with stderr().status("Warming up Spark …"):
            warm_up(app)
    (run_standby if standby else _run)(app, serve)
    print_note(f"{app.application_id} has stopped.")


def load_application(target: str, options: Mapping[str, Any], *, ignored: Collection[str] = ()) -> Application:
    """Load an application, or make one from a topology and the command's options.

    An application has its own settings, so options beside it are an error, except those that are `ignored`.
    """
    config, pairs = options.get("--config"), parse_pairs(options.get("--set") or [], "--set")
    loaded = load(target)
    if isinstance(loaded, Application):
        useless = [flag for flag, value in options.items() if value and flag not in ignored]
        if useless:
            raise UsageError(f"{target} is an Application, which has its own settings: leave {', '.join(useless)} out")
        return loaded
    settings = {**(read_properties(config) if config else {}), **pairs}
    name, log = options["--application-id"] or settings.get("application.id"), options["--log"]
    for value, flag in ((name, "--application-id"), (log or settings.get("bootstrap.servers"), "--log")):
        if value is None:
            raise UsageError(f"{target} is a Topology: give {flag} (and --checkpoint), too")
    state_dir = options.get("--state-dir") or settings.get("state.dir")
    return Application(
        str(name), loaded, log, checkpoint=options["--checkpoint"], config={**settings, "state.dir": state_dir}
    )


def _run(app: Application, serve: Serve) -> None:
    setup = app.setup
    with serve(Follower.open(setup.checkpoint, setup.graph, setup.config), app) as server:
        print_note(f"{app.application_id} is running{f', see {server.url}' if server else ''}. Ctrl-C ends it.")
        app.run()


def _serve(
    app: Application,
    host: str,
    port: int,
    token: str | None,
    follower: Follower,
    running: RunningApplication,
    *,
    insecure: bool,
) -> Server:
    view = ApplicationView(follower=follower, application=running, topology=app.topology.describe())
    return Server(view, host=host, port=port, token=token, insecure=insecure)


def _serve_nothing(follower: Follower, running: RunningApplication) -> AbstractContextManager[None]:
    return nullcontext()
