"""`headrace run --standby`: an instance that waits until the one that runs is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from headrace.app import Application
from headrace.cli.printing import say
from headrace.commit.errors import AlreadyRunningError
from headrace.query.follower import Follower
from headrace.query.standing_by import wait_for_turn
from headrace.spark.life import State, ended_by_signals
from headrace.web.server import Server

# The pages, if they are wanted: of the application, or of the copy that a follower has.
Serve = Callable[[Follower | None], AbstractContextManager[Server | None]]


def stand_by(app: Application, serve: Serve) -> None:
    """Follows the application with Spark at hand, and runs it when nobody else does, until a signal."""
    setup, waits = app.setup, threading.Event()
    follower = Follower.open(setup.checkpoint, setup.graph, setup.config)

    def tell(state: State, before: State) -> None:
        if state is State.RUNNING and waits.is_set():
            waits.clear()
            say(f"{app.application_id} has taken over after batch {follower.freshness.batch}. Ctrl-C ends it.")

    app.on_state_change(tell)
    while True:
        waits.set()
        with ended_by_signals() as over, serve(follower) as server:
            say(f"{app.application_id} stands by{f', see {server.url}' if server else ''}. Ctrl-C ends it.")
            is_next = wait_for_turn(follower, over)
        if not is_next:
            return
        try:
            with serve(None):
                app.run()
        except AlreadyRunningError:  # another one that stood by was quicker
            continue
        return
