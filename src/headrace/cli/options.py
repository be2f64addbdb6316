"""Options that several commands have, and the log that they mean.

What `module:attribute` names: an application, or a topology to make one of.

Which application is meant: its checkpoint, and its topology where the checkpoint does not say enough.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from headrace.app import Application
from headrace.cli.printing import Failed, WrongUsage
from headrace.log import Log, open_log
from headrace.query.follower import Follower
from headrace.topology.builder import Topology
from headrace.topology.graph import Graph

LogAddress = Annotated[
    str | None, typer.Option("--log", help="The log, file:DIRECTORY.", envvar="HEADRACE_LOG", show_envvar=True)
]
Servers = Annotated[
    str | None, typer.Option("--bootstrap-server", help="HOST:PORT of a Kafka broker: short for --log kafka://…")
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


def address_of(log: str | None, servers: str | None = None) -> str:
    """The address of the log that is meant."""
    if servers is not None:
        return servers if "://" in servers else f"kafka://{servers}"
    if log is None:
        raise WrongUsage("which log? Give --log file:DIRECTORY, or set HEADRACE_LOG")
    return log


def log_at(log: str | None, servers: str | None = None) -> Log:
    """The log that is meant, opened."""
    return open_log(address_of(log, servers))


def load(target: str) -> Topology | Application:
    """The topology or the application that a module has, or that a function in it makes without arguments."""
    thing = _attribute(target)
    if not isinstance(thing, Topology | Application) and callable(thing):
        try:
            thing = cast("Any", thing)()
        except TypeError as error:
            raise Failed(f"{target} cannot be called without arguments: {error}") from error
    if isinstance(thing, Topology | Application):
        return thing
    raise Failed(
        f"{target} is a {type(thing).__name__}: name an Application, a Topology, or a function without arguments that "
        "makes one"
    )


def graph_of(thing: Topology | Application) -> Graph:
    """The graph of a topology, or of the one that an application runs."""
    return thing.graph() if isinstance(thing, Topology) else thing.setup.graph


def _attribute(target: str) -> Any:
    module_name, colon, path = target.partition(":")
    if not (module_name and colon and path):
        raise WrongUsage(f"write MODULE:ATTRIBUTE, such as shop.orders:app, not {target!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        thing = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise Failed(f"there is no module {module_name!r} in {here} or among those installed") from error
        raise
    for name in path.split("."):
        if not hasattr(thing, name):
            raise Failed(f"{module_name} has no {path!r}: name what it calls its application or its topology")
        thing = getattr(thing, name)
    return thing


Checkpoint = Annotated[
    str,
    typer.Option("--checkpoint", help="Its directory, or the URL of an object store.", envvar="HEADRACE_CHECKPOINT"),
]
Program = Annotated[
    str | None,
    typer.Option("--topology", metavar="MODULE:ATTRIBUTE", help="The topology: for serdes that are not Headrace's."),
]
AsOf = Annotated[int | None, typer.Option("--as-of", help="A batch that is still kept, not the last one.")]


def follower_of(checkpoint: str, program: str | None, state_dir: str | None = None) -> Follower:
    """A follower of the application that is meant, with its copy in memory or in a directory."""
    thing = None if program is None else load(program)
    if isinstance(thing, Application):
        return Follower.open(checkpoint, thing.setup.graph, thing.setup.config, state_dir=state_dir)
    return Follower.open(checkpoint, thing, state_dir=state_dir)


def topology_of(program: str | None) -> Topology | None:
    thing = None if program is None else load(program)
    return thing if isinstance(thing, Topology) else None
