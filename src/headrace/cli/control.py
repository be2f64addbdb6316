"""`headrace pause`, `headrace resume` and `headrace snapshot`: control a running application over its web server."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.dashboard import Token
from headrace.cli.output import print_note
from headrace.query.client import Client

Url = Annotated[str, typer.Option(help="Where `headrace run --web` serves the application.", envvar="HEADRACE_URL")]
DEFAULT_URL = "http://127.0.0.1:8089"


def pause(url: Url = DEFAULT_URL, token: Token = None) -> None:
    """Pause an application: no further batch begins until it is resumed."""
    _act(url, token, "pause")
    print_note("Paused: no further batch begins until `headrace resume`.")


def resume(url: Url = DEFAULT_URL, token: Token = None) -> None:
    """Resume an application that was paused."""
    _act(url, token, "resume")
    print_note("Resumed.")


def snapshot(url: Url = DEFAULT_URL, token: Token = None) -> None:
    """Merge the deltas of the state, so that a restart reads one file for each task."""
    _act(url, token, "snapshot")
    print_note("Started: the next batches add the snapshots to the checkpoint.")


def _act(url: str, token: str | None, action: str) -> None:
    with Client(url, token=token) as client:
        client.act(action)
