"""Options that several commands have, and the log that they mean."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.printing import WrongUsage
from headrace.log import Log, open_log

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
