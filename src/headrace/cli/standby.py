"""Spark, warm: the first batch of a JVM takes seconds, which one who stands by has, and one who takes over has not.

`headrace run --standby`: an instance that waits until the one that runs is gone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from tempfile import TemporaryDirectory
from typing import Any

from headrace.app import Application
from headrace.cli.printing import say
from headrace.clients import Admin, Producer
from headrace.dsl.builder import StreamsBuilder
from headrace.errors import AlreadyRunningError, StreamsError
from headrace.model.clock import SystemClock
from headrace.query.follower import Follower
from headrace.query.rendering import ShownRecord
from headrace.query.standby import state_of, wait_for_turn
from headrace.query.status import Observation, Observed
from headrace.serde.primitives import STRING
from headrace.spark.application_state import State, ended_by_signals
from headrace.web.server import Server

PATIENCE = 60_000  # ms
_log = logging.getLogger(__name__)


def warm_up(app: Application) -> None:
    """Counts a word in the session of an application, with a log, a checkpoint and a state that are gone afterwards."""
    builder = StreamsBuilder()
    words = builder.stream("words", key=STRING, value=STRING)
    words.group_by(_word, key=STRING, value=STRING).count()
    with TemporaryDirectory(prefix="headrace-warm-up-") as folder:
        log, setup = f"file:{folder}/log", app.setup
        with Admin(log) as admin:
            admin.create_topic("words", partitions=1)
        with Producer(log, key_serde=STRING, value_serde=STRING) as producer:
            producer.send("words", "a", "a")
        made = Application(
            "warm-up", builder.build(), log,
            checkpoint=f"{folder}/checkpoint", state_dir=f"{folder}/state", spark=setup.spark, master=setup.master,
        )  # fmt: skip
        try:
            with made:
                made.drain(PATIENCE)
        except StreamsError as error:  # on a cluster, whose executors cannot read such a log
            _log.info("Spark is not warm: %s", error)


def _word(key: Any, word: Any) -> Any:
    return word


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
