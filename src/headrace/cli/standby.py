"""`headrace run --standby`: an instance that waits until the running one is gone, and then takes over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from headrace.app import Application
from headrace.cli.output import print_note
from headrace.errors import AlreadyRunningError, StreamsError
from headrace.model.clock import SystemClock
from headrace.query.follower import Follower
from headrace.query.standby import read_report, wait_for_takeover
from headrace.query.status import ApplicationReport, RunningApplication, SampledRecord
from headrace.spark.application_state import State, ended_by_signals
from headrace.web.server import Server

# Starts the web server of an application, if the command asks for one.
Serve = Callable[[Follower, RunningApplication], AbstractContextManager[Server | None]]


def run_standby(app: Application, serve: Serve) -> None:
    """Follow the application until no instance runs it, then run it until a signal."""
    setup = app.setup
    follower = Follower.open(setup.checkpoint, setup.graph, setup.config)
    instance = StandbyInstance(app, follower)
    app.on_state_change(instance.on_state_change)
    with serve(follower, instance) as server:  # at the same address before and after the takeover
        while True:
            with ended_by_signals() as stop:
                print_note(f"{app.application_id} stands by{f', see {server.url}' if server else ''}. Ctrl-C ends it.")
                is_free = wait_for_takeover(follower, stop)
            if not is_free:
                return
            try:
                instance.is_active.set()
                app.run()
            except AlreadyRunningError:  # another standby took over first
                instance.is_active.clear()
                continue
            return


class StandbyInstance:
    """The application as this process reports it: from the checkpoint while it stands by, itself after a takeover."""

    def __init__(self, app: Application, follower: Follower) -> None:
        self._app, self._follower, self._clock = app, follower, SystemClock()
        self.is_active, self._announced = threading.Event(), False

    def on_state_change(self, state: State, before: State) -> None:
        if state is State.RUNNING and not self._announced:
            self._announced, batch = True, self._follower.freshness.batch
            print_note(f"{self._app.application_id} has taken over after batch {batch}. Ctrl-C ends it.")

    def report(self) -> ApplicationReport:
        if self.is_active.is_set():
            return self._app.report()
        return read_report(self._follower.storage, self._follower.epoch, self._clock.now())

    def pause(self) -> None:
        self._active_app().pause()

    def resume(self) -> None:
        self._active_app().resume()

    def stop(self) -> None:
        self._active_app().stop()

    def snapshot(self) -> None:
        self._active_app().snapshot()

    def scale(self, slots: int) -> int:
        return self._active_app().scale(slots)

    def samples(self, node: str) -> Sequence[SampledRecord]:
        return self._app.samples(node)

    def _active_app(self) -> Application:
        if not self.is_active.is_set():
            raise StreamsError(f"{self._app.application_id} stands by here: send that to the instance that runs")
        return self._app
