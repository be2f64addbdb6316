"""`headrace run`: runs an application until a signal, or until what is in the log has been processed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.app import Application
from headrace.cli.options import load
from headrace.cli.printing import WrongUsage, err, pairs, say
from headrace.cli.quiet_spark import start_spark
from headrace.cli.standby import Serve, stand_by, warm_up
from headrace.cli.status import Host, Insecure, Port, Token
from headrace.config.properties import read_properties
from headrace.query.follower import Follower
from headrace.query.status import Observed
from headrace.topology.builder import Topology
from headrace.web.application_view import ApplicationView
from headrace.web.server import Server

Target = Annotated[
    str, typer.Argument(metavar="MODULE:ATTRIBUTE", help="An Application or a Topology, or a function that makes one.")
]


def run(
    target: Target,
    once: Annotated[bool, typer.Option("--once", help="Process what is in the log, and end.")] = False,
    standby: Annotated[bool, typer.Option("--standby", help="Wait to take over from the one that runs.")] = False,
    master: Annotated[str | None, typer.Option(help="Spark's: local[4], spark://HOST:7077, yarn, k8s://…")] = None,
    application_id: Annotated[str | None, typer.Option(help="Of a topology: the application's id.")] = None,
    log: Annotated[str | None, typer.Option(help="Of a topology: its log, file:DIR.", envvar="HEADRACE_LOG")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Of a topology: the directory or URL of its state.")] = None,
    state_dir: Annotated[str | None, typer.Option(help="Of a topology: where copies of the state lie.")] = None,
    config: Annotated[Path | None, typer.Option(help="Of a topology: a .properties file.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Of a topology: key=value, wins.")] = None,
    web: Annotated[bool, typer.Option("--web", help="Serve the dashboard and the stores while it runs.")] = False,
    host: Host = "127.0.0.1",
    port: Port = 8089,
    token: Token = None,
    insecure: Insecure = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show what Spark says while it starts.")] = False,
) -> None:
    """Run an application on Spark, until Ctrl-C or SIGTERM."""
    if once and standby:
        raise WrongUsage("--once ends, and --standby waits: give one of them")
    thing = load(target)
    given = {**(read_properties(config) if config else {}), **pairs(settings or [], "--set")}
    places = {"--application-id": application_id, "--checkpoint": checkpoint, "--state-dir": state_dir}
    if isinstance(thing, Topology):
        app = _application(thing, target, given, {**places, "--log": log})
    else:
        app = _ready(thing, target, {**places, "--config": config, "--set": settings})
    start_spark(app, master, verbose=verbose)
    logging.getLogger("headrace.app").setLevel(logging.CRITICAL)  # what stops it is raised, and said once
    if once:
        with err().status(f"{app.application_id} is processing what is there …"):
            app.run_available()
        return
    serve: Serve = partial(_served, app, host, port, token, insecure=insecure) if web else _unserved
    if standby:
        with err().status("Warming up Spark …"):
            warm_up(app)
    (stand_by if standby else _run)(app, serve)
    say(f"{app.application_id} has stopped.")


def _run(app: Application, serve: Serve) -> None:
    setup = app.setup
    with serve(Follower.open(setup.checkpoint, setup.graph, setup.config), app) as server:
        say(f"{app.application_id} is running{f', see {server.url}' if server else ''}. Ctrl-C ends it.")
        app.run()


def _served(
    app: Application, host: str, port: int, token: str | None, follower: Follower, observed: Observed, *, insecure: bool
) -> Server:
    board = ApplicationView(follower=follower, observed=observed, topology=app.topology.describe())
    return Server(board, host=host, port=port, token=token, insecure=insecure)


def _unserved(follower: Follower, observed: Observed) -> AbstractContextManager[None]:
    return nullcontext()


def _ready(app: Application, target: str, given: Mapping[str, Any]) -> Application:
    """An application says itself what it is: what is given beside it would have no effect."""
    useless = [flag for flag, value in given.items() if value]
    if useless:
        raise WrongUsage(f"{target} gives an Application, which says that itself: {', '.join(useless)} has no effect")
    return app


def _application(
    topology: Topology, target: str, settings: Mapping[str, str], places: Mapping[str, str | None]
) -> Application:
    name = places["--application-id"] or settings.get("application.id")
    log = places["--log"]
    for what, flag in ((name, "--application-id"), (log or settings.get("bootstrap.servers"), "--log")):
        if what is None:
            raise WrongUsage(f"{target} gives a Topology: to run it, give {flag} (and --checkpoint), too")
    state_dir = places["--state-dir"] or settings.get("state.dir")
    return Application(
        str(name), topology, log, checkpoint=places["--checkpoint"], config={**settings, "state.dir": state_dir}
    )
