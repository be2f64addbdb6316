"""`headrace pause`, `resume` and `snapshot`: what can be done to an application that runs, over its web server."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.printing import say
from headrace.cli.watching import Token
from headrace.query.client import Client

Url = Annotated[str, typer.Option(help="Where `headrace run --web` serves the application.", envvar="HEADRACE_URL")]
HERE = "http://127.0.0.1:8089"


def pause(url: Url = HERE, token: Token = None) -> None:
    """Let no further batch begin, until it is resumed."""
    _act(url, token, "pause")
    say("Paused: no further batch begins until `headrace resume`.")


def resume(url: Url = HERE, token: Token = None) -> None:
    """Go on."""
    _act(url, token, "resume")
    say("Resumed.")


def snapshot(url: Url = HERE, token: Token = None) -> None:
    """Have the deltas of the state merged, so that a restart reads one file for each task."""
    _act(url, token, "snapshot")
    say("Begun: the next batches take the snapshots up.")


def _act(url: str, token: str | None, action: str) -> None:
    with Client(url, token=token) as client:
        client.act(action)
