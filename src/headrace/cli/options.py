"""Options that several commands share, and the objects that they name: logs, checkpoints, applications, topologies."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from functools import update_wrapper
from importlib import import_module
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer

from headrace.app import Application
from headrace.checkpoint.storage import Storage, open_storage
from headrace.cli.output import CommandError, UsageError
from headrace.config.properties import read_properties
from headrace.log.open import resolve_log
from headrace.log.protocol import Log
from headrace.query.follower import Follower
from headrace.topology.builder import Topology
from headrace.topology.graph import Graph

Result = TypeVar("Result")
LogAddress = Annotated[
    str | None,
    typer.Option(
        "--log", help="The log: file:DIRECTORY or kafka://HOST:PORT.", envvar="HEADRACE_LOG", show_envvar=True
    ),
]
Servers = Annotated[
    str | None, typer.Option("--bootstrap-server", help="HOST:PORT of a Kafka broker: short for --log kafka://…")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Target = Annotated[
    str, typer.Argument(metavar="MODULE:ATTRIBUTE", help="An Application or a Topology, or a function that makes one.")
]
CommandConfig = Annotated[
    Path | None, typer.Option("--command-config", help="A .properties file with client settings, such as TLS and SASL.")
]


def takes_log(command: Callable[..., Result]) -> Callable[..., Result]:
    """Give a command the options that name a log. The command gets the open log as its first argument."""

    def run(
        *,
        log: LogAddress = None,
        bootstrap_server: Servers = None,
        command_config: CommandConfig = None,
        **options: Any,
    ) -> Result:
        with closing(log_at(log, bootstrap_server, command_config)) as opened:
            return command(opened, **options)

    own = list(signature(command, eval_str=True).parameters.values())[1:]
    shared = list(signature(run, eval_str=True).parameters.values())[:-1]
    update_wrapper(run, command)
    options = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in (*own, *shared)]
    setattr(run, "__signature__", Signature(options))  # noqa: B010 - typer reads the options from it
    return run


def log_at(log: str | None, servers: str | None = None, config: Path | None = None) -> Log:
    """Open the log that the options name, with the client settings of `--command-config`."""
    if servers is None and log is None and config is not None:
        servers = read_properties(config).get("bootstrap.servers")
    if servers is not None:
        log = servers if "://" in servers or servers.startswith("file:") else f"kafka://{servers}"
    if log is None:
        raise UsageError("which log? Give --log file:DIRECTORY, or set HEADRACE_LOG")
    return resolve_log(log, config)[0]


def load(target: str) -> Topology | Application:
    """Load a topology or an application: an attribute of a module, or the result of a function without arguments."""
    loaded = _load_attribute(target)
    if not isinstance(loaded, Topology | Application) and callable(loaded):
        try:
            loaded = cast("Any", loaded)()
        except TypeError as error:
            raise CommandError(f"{target} cannot be called without arguments: {error}") from error
    if isinstance(loaded, Topology | Application):
        return loaded
    raise CommandError(
        f"{target} is a {type(loaded).__name__}: name an Application, a Topology, or a function without arguments that "
        "makes one"
    )


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


def find_graph(loaded: Topology | Application) -> Graph:
    """Return the graph of a topology or of an application."""
    return loaded.graph() if isinstance(loaded, Topology) else loaded.setup.graph


def _load_attribute(target: str) -> Any:
    module_name, colon, path = target.partition(":")
    if not (module_name and colon and path):
        raise UsageError(f"write MODULE:ATTRIBUTE, such as shop.orders:app, not {target!r}")
    directory = str(Path.cwd())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        loaded = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise CommandError(f"there is no module {module_name!r} in {directory} or among those installed") from error
        raise
    for name in path.split("."):
        if not hasattr(loaded, name):
            raise CommandError(f"{module_name} has no {path!r}: name what it calls its application or its topology")
        loaded = getattr(loaded, name)
    return loaded


Checkpoint = Annotated[
    str,
    typer.Option(
        "--checkpoint", help="The directory or the object store URL of the checkpoint.", envvar="HEADRACE_CHECKPOINT"
    ),
]
Program = Annotated[
    str | None,
    typer.Option("--topology", metavar="MODULE:ATTRIBUTE", help="The topology, for serdes of your own."),
]
AsOf = Annotated[int | None, typer.Option("--as-of", help="Read the state after this batch, if it is still kept.")]


def open_follower(checkpoint: str, program: str | None, state_dir: str | None = None) -> Follower:
    """Follow a checkpoint, with its copy of the state in memory or in a directory."""
    loaded = None if program is None else load(program)
    if isinstance(loaded, Application):
        return Follower.open(checkpoint, loaded.setup.graph, loaded.setup.config, state_dir=state_dir)
    return Follower.open(checkpoint, loaded, state_dir=state_dir)


def load_topology(program: str | None) -> Topology | None:
    """Return the topology that `--topology` names; None if it names an application."""
    loaded = None if program is None else load(program)
    return loaded if isinstance(loaded, Topology) else None


def open_checkpoint(checkpoint: str) -> Storage:
    """Open a checkpoint that exists; opening a missing directory would create it."""
    if "://" not in checkpoint and not Path(checkpoint.removeprefix("file:")).is_dir():
        raise CommandError(f"there is no checkpoint in {checkpoint}")
    return open_storage(checkpoint)


def parse_pairs(arguments: Sequence[str], flag: str) -> dict[str, str]:
    """Parse key=value arguments; the last one of a name counts.

    >>> parse_pairs(["print.key=true", "key.separator=,"], "--property")
    {'print.key': 'true', 'key.separator': ','}
    """
    found: dict[str, str] = {}
    for text in arguments:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{flag} takes key=value, not {text!r}")
        found[name] = value
    return found
