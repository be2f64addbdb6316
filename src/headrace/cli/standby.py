"""`headrace run --standby`: an instance that waits until the one that runs is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from headrace.app import Application
from headrace.cli.printing import say
from headrace.commit.errors import AlreadyRunningError
from headrace.errors import StreamsError
from headrace.model.clock import SystemClock
from headrace.query.follower import Follower
from headrace.query.liveness import state_of
from headrace.query.samples import ShownRecord
from headrace.query.standing_by import wait_for_turn
from headrace.query.status import Observation, Observed
from headrace.spark.life import State, ended_by_signals
from headrace.web.server import Server

# The pages, if they are wanted: what a follower reads, and what is known of the application beside.
Serve = Callable[[Follower, Observed], AbstractContextManager[Server | None]]


def stand_by(app: Application, serve: Serve) -> None:
    """Follows the application with Spark at hand, and runs it when nobody else does, until a signal."""
    setup = app.setup
    follower = Follower.open(setup.checkpoint, setup.graph, setup.config)
    understudy = Understudy(app, follower)
    app.on_state_change(understudy.tell)
    with serve(follower, understudy) as server:  # the same address before and after
        while True:
            with ended_by_signals() as over:
                say(f"{app.application_id} stands by{f', see {server.url}' if server else ''}. Ctrl-C ends it.")
                is_next = wait_for_turn(follower, over)
            if not is_next:
                return
            try:
                understudy.plays.set()
                app.run()
            except AlreadyRunningError:  # another one that stood by was quicker
                understudy.plays.clear()
                continue
            return


class Understudy:
    """The application as it is seen here: from its checkpoint while it runs elsewhere, then as it is."""

    def __init__(self, app: Application, follower: Follower) -> None:
        self._app, self._follower, self._clock = app, follower, SystemClock()
        self.plays, self._told = threading.Event(), False

    def tell(self, state: State, before: State) -> None:
        if state is State.RUNNING and not self._told:
            self._told, batch = True, self._follower.freshness.batch
            say(f"{self._app.application_id} has taken over after batch {batch}. Ctrl-C ends it.")

    def observe(self) -> Observation:
        if self.plays.is_set():
            return self._app.observe()
        return Observation(state=state_of(self._follower.storage, self._follower.epoch, self._clock.now()))

    def pause(self) -> None:
        self._playing().pause()

    def resume(self) -> None:
        self._playing().resume()

    def stop(self) -> None:
        self._playing().stop()

    def snapshot(self) -> None:
        self._playing().snapshot()

    def samples(self, node: str) -> Sequence[ShownRecord]:
        return self._app.samples(node)

    def _playing(self) -> Application:
        if not self.plays.is_set():
            raise StreamsError(f"{self._app.application_id} stands by here: do that where it runs")
        return self._app
