"""The options of commands that start the web server, or that are clients of one.

A token is never an argument: every user of a machine can read the arguments of its processes. It comes from a file
(`--token-file`) or from the environment (`HEADRACE_TOKEN`); without either, the server makes one and prints it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from headrace.cli.output import CommandError, UsageError, print_note
from headrace.extras import needs_extra
from headrace.query.client import Client
from headrace.web import ApplicationView

if TYPE_CHECKING:
    from headrace.web import Server

Result = TypeVar("Result")
TOKEN = "HEADRACE_TOKEN"  # noqa: S105 - the name of the variable
DEFAULT_URL = "http://127.0.0.1:8089"


def _reject_token(given: str | None) -> None:
    if given is not None:
        raise UsageError(
            f"other users of this machine can read a token among the arguments: give --token-file FILE, or set {TOKEN}"
        )


Host = Annotated[str, typer.Option(help="The address to listen on: 127.0.0.1 is reached from this machine only.")]
Port = Annotated[int, typer.Option(help="The port to listen on; 0 chooses a free one.")]
HealthPort = Annotated[int | None, typer.Option(help="Answer /health and /ready on this port, too, without TLS.")]
NoToken = Annotated[
    bool, typer.Option("--no-token", "--insecure", help="No token: let everybody read who reaches the address.")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(help=f"A file with the token of the server; or set {TOKEN}.", envvar="HEADRACE_TOKEN_FILE"),
]  # fmt: skip
TokenArgument = Annotated[str | None, typer.Option("--token", hidden=True, callback=_reject_token)]
Certificate = Annotated[
    Path | None, typer.Option("--tls-cert", help="Serve HTTPS with this PEM certificate.", envvar="HEADRACE_TLS_CERT")
]
PrivateKey = Annotated[
    Path | None, typer.Option("--tls-key", help="The PEM private key of --tls-cert.", envvar="HEADRACE_TLS_KEY")
]
Url = Annotated[
    str, typer.Option(help="The address or the link that `headrace run --web` prints.", envvar="HEADRACE_URL")
]
Certificates = Annotated[
    Path | None,
    typer.Option("--tls-ca", help="Trust the certificates in this PEM file.", envvar="HEADRACE_TLS_CA"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What the options of a command say about its web server."""

    host: str
    port: int
    health_port: int | None
    token: str | None
    insecure: bool
    certificate: Path | None
    private_key: Path | None

    def open(self, view: ApplicationView) -> Server:
        """Return a server of a view, which is started by `with`."""
        with needs_extra("web"):  # other commands need no web server
            from headrace.web.access import is_loopback  # noqa: PLC0415
            from headrace.web.server import Server  # noqa: PLC0415

        if not is_loopback(self.host):
            if self.insecure:
                print_note(f"Everybody who reaches {self.host} can read the stores: there is no token.")
            elif self.certificate is None:
                print_note(
                    "Without TLS the token can be read on its way: give --tls-cert, or put a proxy with TLS in front."
                )
        return Server(
            view,
            host=self.host,
            port=self.port,
            health_port=self.health_port,
            token=self.token,
            insecure=self.insecure,
            certificate=self.certificate,
            private_key=self.private_key,
        )


def takes_server(*, port: int) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Give a command the options of a web server. The command gets them as its keyword argument `server`."""

    def decorate(command: Callable[..., Result]) -> Callable[..., Result]:
        def run(
            *,
            host: Host = "127.0.0.1",
            port: Port = port,
            health_port: HealthPort = None,
            token_file: TokenFile = None,
            no_token: NoToken = False,
            tls_cert: Certificate = None,
            tls_key: PrivateKey = None,
            token: TokenArgument = None,
            **options: Any,
        ) -> Result:
            if no_token and token_file is not None:
                raise UsageError("give --token-file or --no-token, not both")
            server = ServerOptions(
                host=host,
                port=port,
                health_port=health_port,
                token=None if no_token else read_token(token_file),
                insecure=no_token,
                certificate=tls_cert,
                private_key=tls_key,
            )
            return command(**options, server=server)

        own = [each for each in signature(command, eval_str=True).parameters.values() if each.name != "server"]
        shared = list(signature(run, eval_str=True).parameters.values())[:-1]
        update_wrapper(run, command)
        parameters = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in (*own, *shared)]
        setattr(run, "__signature__", Signature(parameters))  # noqa: B010 - typer reads the options from it
        return run

    return decorate


def read_token(file: Path | None) -> str | None:
    """Return the token in a file, or else that of the environment; None if there is neither."""
    if file is None:
        return os.environ.get(TOKEN) or None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"the token file {file} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error
    if not token or "\n" in token:
        raise CommandError(f"the token file {file} must have one line, the token")
    return token


def open_client(url: str, token_file: Path | None, certificates: Path | None) -> Client:
    """Return a client of the server at an address, or at the link that it printed."""
    if any("#token=" in argument for argument in sys.argv):
        print_note(
            "Other users of this machine can read the token among the arguments: set HEADRACE_URL to the link instead."
        )
    return Client(url, token=read_token(token_file), certificates=certificates)
