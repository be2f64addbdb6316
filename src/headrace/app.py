"""An application: a topology, the log that it reads and writes, and the checkpoint that it lives from."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from headrace.checkpoint.changelog_export import Export, Told, no_progress
from headrace.checkpoint.steps import AtStep, unobserved
from headrace.errors import StageRerunError, StreamsError
from headrace.model.ids import TaskId
from headrace.query.metrics import Flows, streams_metrics
from headrace.query.queries import Position, Query, QueryResult
from headrace.query.rendering import ShownRecord, shown
from headrace.query.status import Observation
from headrace.query.views import view_of_last
from headrace.spark.application_state import QueryStoppedError, State, ended_by_signals
from headrace.spark.changelogs import write_changelogs
from headrace.spark.job import Setup, absolute, configuration, log_address, state_directory
from headrace.spark.stats import ApplicationStats
from headrace.topology.builder import Topology

if TYPE_CHECKING:
    from headrace.spark.run import Run

_log = logging.getLogger(__name__)
LOOK = 0.25  # seconds between two looks at how a run is doing
RERUNS = 5  # runs in a row that end because of Spark, without a batch in between


class Application:
    """Runs a topology on Spark, exactly once, from the log to the state and back to the log.

    `with Application(...) as app:` starts and stops it; `run()` runs until a signal, `run_available()` until what is in
    the log has been processed. Settings go by Kafka Streams' names, in `config` with dots or as keywords.
    """

    State = State

    def __init__(
        self,
        application_id: str,
        topology: Topology,
        log: str | None = None,
        *,
        checkpoint: str | None = None,
        guarantee: str | None = None,
        commit_interval: int | timedelta | None = None,
        spark: Any = None,  # a SparkSession; without one Headrace makes its own
        master: str | None = None,  # where Spark runs, if Headrace makes the session
        config: Mapping[str, Any] | str | Path | None = None,
        at_step: AtStep = unobserved,  # told of every step of a batch, in whichever process it is taken
        **options: Any,
    ) -> None:
        settings = configuration(application_id, config, options, guarantee=guarantee, commit_interval=commit_interval)
        self.application_id, self.topology = application_id, topology
        self.setup = Setup(
            application_id=application_id,
            graph=topology.graph(),
            config=settings,
            log=log_address(log, settings),
            checkpoint=absolute(checkpoint or f"{application_id}-checkpoint"),
            state_dir=state_directory(settings),
            at_step=at_step,
            spark=spark,
            master=master,
        )
        self._state, self._listeners = State.CREATED, list[Callable[[State, State], None]]()
        self._lock, self._over = threading.RLock(), threading.Event()
        self._run: Run | None = None
        self._watcher: threading.Thread | None = None
        self._failed: Exception | None = None
        self._paused = False
        self._totals = ApplicationStats(
            Flows(topology.graph(), application_id), settings.errors_dead_letter_queue_topic_name
        )

    # ------------------------------------------------------------------------------------------- starting, stopping
    def start(self) -> None:
        """Takes over the checkpoint, delivers what the log lacks, and goes on where the last run ended."""
        with self._lock:
            if self._run is not None:
                raise StreamsError(f"{self.application_id} is {self._state} already")
            self._failed, self._over = None, threading.Event()
            self._become(State.REBALANCING)
            try:
                self._run = self._opened()
            except BaseException:
                self._become(State.ERROR)
                raise
            self._become(State.RUNNING)
            self._watcher = threading.Thread(target=self._watch, name=f"headrace {self.application_id}", daemon=True)
            self._watcher.start()

    def _opened(self) -> Run:
        # Spark takes a second to import: who only tests a topology need not wait for it.
        from headrace.spark.run import Run  # noqa: PLC0415

        return Run(self.setup, self._totals, paused=self._paused)

    def stop(self) -> None:
        """Ends after the batch that is running; what is committed is delivered."""
        self._over.set()
        watcher = self._watcher
        if watcher is not None and watcher is not threading.current_thread():
            watcher.join()
        with self._lock:
            run, self._run, self._watcher = self._run, None, None
            if run is None:
                return
            if self._failed is None:
                self._become(State.PENDING_SHUTDOWN)
            try:
                run.close()
            except Exception:
                if self._failed is None:
                    raise
            finally:
                self._become(State.NOT_RUNNING if self._failed is None else State.ERROR)

    def close(self, timeout: float | timedelta | None = None) -> None:
        """The same as `stop`, which ends within ten seconds."""
        self.stop()

    def run(self) -> None:
        """Runs until SIGINT or SIGTERM, until it is stopped, or until something goes wrong."""
        with ended_by_signals() as over, self:
            while not over.wait(LOOK):
                self._check()
                if self._state is State.NOT_RUNNING:  # somebody else has stopped it
                    return

    def run_available(self) -> None:
        """Processes what is in the log, and stops: for batch use."""
        with ended_by_signals() as over, self:
            self._drain(over.is_set, None)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()

    # ---------------------------------------------------------------------------------------------- while it runs
    @property
    def state(self) -> State:
        return self._state

    def on_state_change(self, listener: Callable[[State, State], None]) -> None:
        """Calls `listener(new, old)` at every change, from whichever thread makes it."""
        self._listeners.append(listener)

    def _become(self, state: State) -> None:
        before, self._state = self._state, state
        for listener in self._listeners if before != state else ():
            try:
                listener(state, before)
            except Exception:  # noqa: BLE001 - a listener is the user's
                _log.exception("a listener of %s failed", self.application_id)

    def _watch(self) -> None:
        """Looks after the run: plans it anew when topics have changed, and ends it when something went wrong."""
        reruns = 0
        while not self._over.wait(LOOK):
            try:
                number = self._running().coordinator.number
                if not self._running().look():
                    self._reopen()
                reruns = reruns if number == self._running().coordinator.number else 0
            except (StageRerunError, QueryStoppedError) as error:
                reruns += 1
                _log.warning("%s", error)
                self._try_again(error, reruns)
            except Exception as error:  # noqa: BLE001 - whoever waits for the application is told
                self._fail(error)

    def _try_again(self, error: Exception, reruns: int) -> None:
        try:
            if reruns > RERUNS:
                raise error  # noqa: TRY301
            self._reopen()
        except Exception as failed:  # noqa: BLE001
            self._fail(failed)

    def _reopen(self) -> None:
        with self._lock:
            self._become(State.REBALANCING)
            self._running().close()
            self._run = self._opened()
            self._become(State.RUNNING)

    def _fail(self, error: Exception) -> None:
        _log.error("%s has stopped: %s", self.application_id, error)
        self._failed = error
        self._become(State.PENDING_ERROR)
        self.stop()

    def _check(self) -> None:
        if self._failed is not None:
            if isinstance(self._failed, StreamsError):
                raise self._failed
            raise StreamsError(f"{self.application_id} has stopped: {self._failed}") from self._failed

    def _running(self) -> Run:
        if self._run is None:
            self._check()
            raise StreamsError(f"{self.application_id} is {self._state}: start it first")
        return self._run

    def pause(self) -> None:
        """No further batch begins until `resume`; it may be called before `start`."""
        with self._lock:
            self._paused = True
            if self._run is not None:
                self._run.pause(paused=True)

    def resume(self) -> None:
        with self._lock:
            self._paused = False
            if self._run is not None:
                self._run.pause(paused=False)

    def snapshot(self) -> None:
        """Has the state of every task merged into one file of the checkpoint, beside the batches that follow."""
        self._running().snapshot()

    @property
    def is_paused(self) -> bool:
        return self._paused

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """Waits until everything in the log has been processed and delivered, and nothing moves any more."""
        self._drain(lambda: False, timeout.total_seconds() if isinstance(timeout, timedelta) else timeout)

    def _drain(self, over: Callable[[], bool], timeout: float | None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        while not over():
            run = self._running()
            if run.wait(run.settled, 0.02):
                return
            if end is not None and time.monotonic() > end:
                raise StreamsError(f"{self.application_id} did not settle in {timeout:g} s")

    def clean_up(self) -> None:
        """Removes the local copies of the state, never the checkpoint; not while it runs."""
        if self._run is not None:
            raise StreamsError(f"{self.application_id} is {self._state}: stop it before its local state is removed")
        shutil.rmtree(Path(self.setup.state_dir) / self.application_id, ignore_errors=True)

    def write_changelogs(self, *, dry_run: bool = False, told: Told = no_progress) -> list[Export]:
        """Writes the state to where Kafka Streams looks for it, so that a Java application can go on; stop it first."""
        return write_changelogs(self.setup, dry_run=dry_run, told=told)

    # ---------------------------------------------------------------------------------------------------- looking in
    def store(self, name: str) -> Any:
        """A store of all tasks, for reading; every call is answered as of the last batch."""
        return view_of_last(name, lambda: self._running().follower.refresh())  # noqa: PLW0108 - other runs may follow

    def query(
        self, store: str, query: Query, *, at_least: Position | int | None = None, as_of: int | None = None
    ) -> QueryResult:
        """Answers as of the last batch, which must have reached `at_least`, or as of an earlier one that is kept."""
        return self._running().follower.query(store, query, at_least=at_least, as_of=as_of)

    def metadata_for_key(self, store: str, key: Any) -> TaskId:
        """The task that has a key of a store."""
        return self._running().task_of(store, key)

    def metrics(self) -> dict[str, float]:
        """Counts and times in milliseconds, under Kafka Streams' names; parts of a count stand behind a slash."""
        return streams_metrics(self.observe(), self._running().coordinator.ledger)

    def samples(self, node: str) -> list[ShownRecord]:
        """The last records that went into a source or out of a sink, as text."""
        return shown(self.setup.graph, self.setup.config, node, self._totals.samples(node))

    def observe(self) -> Observation:
        """How it is doing, for a dashboard."""
        run, failed = self._run, self._failed
        known: dict[str, Any] = {} if run is None else run.observed()
        error = None if failed is None else str(failed)
        return Observation(state=self._state, paused=self._paused, error=error, **known)


def read_store(spark: Any, checkpoint: str | Path, store: str, batch: int | None = None, **options: Any) -> Any:
    """A store as a Spark DataFrame, after a batch that is kept, by default the last one.

    `options` are the topology, where serdes are not Headrace's own, and its config.
    """
    from headrace.spark.store_frames import read_store as read  # noqa: PLC0415

    return read(spark, checkpoint, store, batch, **options)
