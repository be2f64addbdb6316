"""Which application is meant: its checkpoint, and its topology where the checkpoint does not say enough."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.app import Application
from headrace.cli.loading import load
from headrace.query.follower import Follower
from headrace.topology.builder import Topology

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
