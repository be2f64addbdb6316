"""The commands that look at an application from outside."""

from __future__ import annotations

import typer

from headrace.cli import acting, asking, dead_letters, drops, states, watching


def register(app: typer.Typer) -> None:
    """Adds them to the command line."""
    app.command("query")(asking.query)
    app.add_typer(states.state, name="state")
    app.add_typer(states.checkpoints, name="checkpoint")
    app.command("status")(watching.status)
    app.command("top")(watching.top)
    app.command("pause")(acting.pause)
    app.command("resume")(acting.resume)
    app.command("snapshot")(acting.snapshot)
    app.command("dashboard")(watching.dashboard)
    app.command("replica")(watching.replica)
    app.add_typer(dead_letters.app, name="dead-letters")
    app.command("drops")(drops.drops)
