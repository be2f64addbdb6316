"""Options that several commands share, and the objects that they name: logs, checkpoints, applications, topologies."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial, update_wrapper
from importlib import import_module
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer

from headrace.app import Application
from headrace.checkpoint.storage import Storage, open_storage
from headrace.cli.output import CommandError, UsageError
from headrace.config.properties import read_properties
from headrace.config.settings import client_settings_in
from headrace.log.open import find_directory, resolve_log
from headrace.log.protocol import Log
from headrace.query.follower import Follower
from headrace.secrets import has_credentials, is_secret, mask_secrets
from headrace.spark.topics import parse_start
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
StartsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        metavar="[TOPIC=]WHERE",
        help="Where new sources begin: earliest, latest, an offset, YYYY-MM-DDTHH:MM:SS.sss, or PnDTnHnMnS before now.",
    ),
]
CommandConfig = Annotated[
    Path | None, typer.Option("--command-config", help="A .properties file with client settings, such as TLS and SASL.")
]


_URL = re.compile(r"[\w+.-]+://")
PATIENCE = 5000  # ms that a command waits for brokers, unless --command-config says otherwise


def takes_log(
    *, stays: bool = False, creates: bool = False
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Give a command the options that name a log. The command gets the open log as its first argument.

    A command that `stays` waits for brokers as a program does, after the first answer. One that `creates` begins an
    embedded log that does not exist.
    """
    return partial(_take_log, stays=stays, creates=creates)


def _take_log(command: Callable[..., Result], *, stays: bool, creates: bool) -> Callable[..., Result]:

    def run(
        *,
        log: LogAddress = None,
        bootstrap_server: Servers = None,
        command_config: CommandConfig = None,
        **options: Any,
    ) -> Result:
        if stays:
            with closing(log_at(log, bootstrap_server, command_config, creates=creates)) as opened:
                opened.topics()  # an error if no broker answers
        patience = None if stays else PATIENCE
        with closing(log_at(log, bootstrap_server, command_config, patience=patience, creates=creates)) as opened:
            return command(opened, **options)

    own = list(signature(command, eval_str=True).parameters.values())[1:]
    shared = list(signature(run, eval_str=True).parameters.values())[:-1]
    update_wrapper(run, command)
    options = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in (*own, *shared)]
    setattr(run, "__signature__", Signature(options))  # noqa: B010 - typer reads the options from it
    return run


def log_at(
    log: str | None,
    servers: str | None = None,
    config: Path | None = None,
    *,
    patience: int | None = PATIENCE,
    creates: bool = True,
) -> Log:
    """Open the log that the options name, with the client settings of `--command-config`.

    `patience` is how many milliseconds a call waits for brokers, if these settings do not say it. Without `creates` an
    embedded log must exist.
    """
    if servers is None and log is None and config is not None:
        servers = read_properties(config).get("bootstrap.servers")
    if servers is not None:
        log = servers if "://" in servers or servers.startswith("file:") else f"kafka://{servers}"
    if log is None:
        raise UsageError("which log? Give --log file:DIRECTORY, or set HEADRACE_LOG")
    directory = find_directory(log)
    if not creates and directory is not None and not directory.exists():
        raise CommandError(
            f"there is no log at {log}. `headrace topics create` begins one, and so does an application that runs"
        )
    settings: dict[str, Any] = dict(read_properties(config)) if config is not None else {}
    # Where a command gives up soon, it prints the error, and the program's log need not say it before.
    logging.getLogger("headrace.log.kafka").setLevel(logging.NOTSET if patience is None else logging.ERROR)
    if log.startswith("kafka://"):
        settings = {**client_settings_in(os.environ), **settings}
        if patience is not None:
            settings.setdefault("default.api.timeout.ms", str(patience))
    return resolve_log(log, settings)[0]


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

    An application has its own settings: `--set` changes some of them. Other options beside it are an error, except
    those that are `ignored`.
    """
    config, pairs = options.get("--config"), parse_pairs(options.get("--set") or [], "--set")
    loaded = load(target)
    if isinstance(loaded, Application):
        useless = [flag for flag, value in options.items() if value and flag not in {"--set", *ignored}]
        if useless:
            raise UsageError(f"{target} is an Application, which has its own settings: leave {', '.join(useless)} out")
        return loaded.with_settings(pairs) if pairs else loaded
    settings = {**(read_properties(config) if config else {}), **pairs}
    name, log = options["--application-id"] or settings.get("application.id"), options["--log"]
    for value, flag in ((name, "--application-id"), (log or settings.get("bootstrap.servers"), "--log")):
        if value is None:
            raise UsageError(f"{target} is a Topology: give {flag} (and --checkpoint), too")
    state_dir = options.get("--state-dir") or settings.get("state.dir")
    return Application(
        str(name), loaded, log, checkpoint=options["--checkpoint"], config={**settings, "state.dir": state_dir}
    )


_STORE = (
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, or what else the tools of the object store read"
)
_KAFKA = (
    "HEADRACE_SASL_USERNAME and HEADRACE_SASL_PASSWORD in the environment, or sasl.username and sasl.password in a "
    "file that only you can read (--config, --command-config)"
)
_REGISTRY = "HEADRACE_SCHEMA_REGISTRY_URL in the environment, to the address with user and password"
# What to set instead of credentials in an option: in its address, or in its setting, key=value.
ADDRESSES = {
    "--checkpoint": _STORE, "--from-checkpoint": _STORE,
    "--log": _KAFKA, "--bootstrap-server": _KAFKA, "--from": _KAFKA,
}  # fmt: skip
SETTINGS = {
    "--set": "{variable} in the environment, or give --config with a file that only you can read",
    "--property": _REGISTRY, "--formatter-property": _REGISTRY, "--reader-property": _REGISTRY,
}  # fmt: skip


def check_no_credentials(arguments: Sequence[str]) -> None:
    """Rejects passwords and keys among the arguments of a command. What the environment gives is not among them."""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        flag, equals, value = argument.partition("=")
        given = value if equals else following
        name, _, setting = given.partition("=")
        if flag in ADDRESSES and has_credentials(given):
            what, advice = f"{flag} {mask_secrets(given)}", ADDRESSES[flag]
        elif flag in SETTINGS and (is_secret(name) or (_URL.match(setting) and has_credentials(setting))):
            what, advice = f"{flag} {name}=…", SETTINGS[flag]
        else:
            continue
        variable = f"HEADRACE_{name.upper().replace('.', '_')}"
        raise UsageError(
            f"{what}: all users of a machine can read the arguments of its processes. Leave the credentials out, and "
            f"set {advice.format(variable=variable)}"
        )


def choose_starts(app: Application, given: Sequence[str] | None) -> None:
    """Take over where new sources begin: WHERE for all of them, or TOPIC=WHERE for one."""
    starts = dict(app.setup.starts)
    for text in given or ():
        topic, _, where = text.rpartition("=")
        if topic in starts and topic not in app.setup.starts:
            raise UsageError(f"--from {text}: {topic or 'every source'} has a beginning already, give one")
        try:
            starts[topic] = parse_start(where)
        except ValueError as error:
            raise UsageError(f"--from {text}: {error}") from None
    app.setup = replace(app.setup, starts=starts)


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
    typer.Option(
        "--topology",
        metavar="MODULE:ATTRIBUTE",
        help="The topology, for serdes of your own; or the Application, which has the checkpoint, too.",
    ),
]
AsOf = Annotated[int | None, typer.Option("--as-of", help="Read the state after this batch, if it is still kept.")]


def open_follower(checkpoint: str, program: str | None, state_dir: str | None = None) -> Follower:
    """Follow a checkpoint, with its copy of the state in memory or in a directory."""
    loaded = None if program is None else load(program)
    place = find_checkpoint(checkpoint, loaded)
    if isinstance(loaded, Application):
        return Follower.open(place, loaded.setup.graph, loaded.setup.config, state_dir=state_dir)
    return Follower.open(place, loaded, state_dir=state_dir)


def find_checkpoint(checkpoint: str, loaded: Topology | Application | None) -> str:
    """Return the checkpoint that an option names, or else that of the application that `--topology` names."""
    if checkpoint:
        return checkpoint
    if isinstance(loaded, Application):
        return loaded.setup.checkpoint
    raise UsageError(
        "which application? Give --checkpoint, or set HEADRACE_CHECKPOINT, or name an Application: --topology shop:app"
    )


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
