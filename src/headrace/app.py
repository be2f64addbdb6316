"""An application: a topology, the log that it reads and writes, and the checkpoint that it lives from."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, overload

from headrace.checkpoint.change_plan import ChangePlan
from headrace.checkpoint.changelog_export import Export, OnExport, ignore_export
from headrace.checkpoint.steps import AtStep, ignore_step
from headrace.config import Config
from headrace.config.parsing import Trigger
from headrace.config.settings import field_of, settings_of
from headrace.connect.source import RunningSources, create_source_topics
from headrace.directories import state_directory
from headrace.errors import StageRerunError, StreamsError, summarize
from headrace.extras import needs_extra
from headrace.hints import explain_names
from headrace.log.open import open_log
from headrace.log.protocol import Log
from headrace.model.ids import TaskId
from headrace.model.partitioner import KeyPartitioner
from headrace.model.windows import milliseconds
from headrace.query.follower import view_latest
from headrace.query.metrics import NodeIndex, streams_metrics
from headrace.query.queries import Position, Query, QueryResult
from headrace.query.status import ApplicationReport, SampledRecord, format_samples
from headrace.secrets import log_own_lines
from headrace.spark.application_state import QueryStoppedError, State, ended_by_signals
from headrace.spark.changelogs import write_changelogs
from headrace.spark.job import (
    Setup,
    absolute,
    given_state_directory,
    log_address,
    make_config,
    remove_old_state,
    remove_state,
)
from headrace.spark.stats import ApplicationStats
from headrace.spark.topics import parse_start
from headrace.state.protocols import (
    KeyValueStore,
    ReadOnlyKeyValueStore,
    ReadOnlySessionStore,
    ReadOnlyVersionedStore,
    ReadOnlyWindowStore,
    SessionStore,
    VersionedStore,
    WindowStore,
)
from headrace.state.spec import StoreSpec, store_name
from headrace.topology.builder import Topology

if TYPE_CHECKING:
    from headrace.spark.run import Run

_log = logging.getLogger(__name__)
K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")
LOOK = 0.25  # seconds between two checks of a run
RERUNS = 5  # runs in a row that end because of Spark, without a batch in between


class _Arguments(NamedTuple):
    """What an application was made with, for `with_settings`."""

    topology: Topology
    log: str | None
    checkpoint: str | None
    guarantee: str | None
    commit_interval: int | timedelta | None
    spark: Any
    master: str | None
    trigger: Trigger | None
    config: Mapping[str, Any] | str | Path | None
    at_step: AtStep
    options: Mapping[str, Any]


@explain_names(
    {
        "all_metadata": "report(), or metadata_for_key(store, key) for the task of a key",
        "metadata_for_all_streams_clients": "report(), or metadata_for_key(store, key) for the task of a key",
        "streams_metadata_for_store": "metadata_for_key(store, key)",
        "query_metadata_for_key": "metadata_for_key(store, key)",
        "metadata_for_local_threads": "report()",
        "local_threads_metadata": "report()",
        "all_local_store_partition_lags": "report()",
        "get_store": "store(name)",
        "get_state_store": "store(name)",
        "set_state_listener": "on_state_change(listener)",
        "set_uncaught_exception_handler": "run(), which raises the error, or on_state_change(listener)",
        "set_global_state_restore_listener": "report()",
        "add_stream_thread": "scale(slots), or Spark's number of cores: master=",
        "remove_stream_thread": "scale(slots), or Spark's number of cores: master=",
        "shutdown": "stop()",
    },
)
class Application:
    """Runs a topology on Spark, exactly once, from the log to the state and back to the log.

    `with Application(...) as app:` starts and stops it. `run()` runs it until a signal, `run_available()` until
    everything in the log has been processed. All durations are milliseconds as `int`, or a `timedelta`.

    `log` is `file:DIRECTORY` or `kafka://HOST:PORT`. `checkpoint` is a directory or the URL of an object store.
    `spark` is a SparkSession; without one Headrace makes its own, on `master`. `trigger` is "real-time" (slots stay
    alive between batches: milliseconds) or "micro-batch" (a Spark job for every batch: cores are free in between).

    With `backfill`, a start that finds new stores fills them from history first: the source topics are read again up to
    the current positions, for these stores only. `starts` says where new source topics begin: "earliest", "latest", an
    offset, a `datetime`, or a `timedelta` before now; without it `auto.offset.reset` does.

    `config` is a mapping with Kafka Streams' dotted names or the path of a `.properties` file; the same settings can be
    given as keywords, which win. A setting that neither gives is looked up in the environment:
    `HEADRACE_COMMIT_INTERVAL_MS`.

    >>> from headrace import StreamsBuilder
    >>> builder = StreamsBuilder()
    >>> builder.stream("lines").to("copies")
    >>> app = Application("copy", builder.build(), log="file:./data", commit_interval=500)
    >>> app.state, app.setup.config.commit_interval_ms
    (<State.CREATED: 'CREATED'>, 500)
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
        spark: Any = None,
        master: str | None = None,
        trigger: Trigger | None = None,
        backfill: bool = False,
        starts: Mapping[str, str | int | datetime | timedelta] | None = None,
        config: Mapping[str, Any] | str | Path | None = None,
        at_step: AtStep = ignore_step,  # called at every step of a batch, in the process that takes it
        **options: Any,
    ) -> None:
        if not isinstance(topology, Topology):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Application needs a Topology, as builder.build() makes it, not {topology!r}")
        self._given = _Arguments(
            topology, log, checkpoint, guarantee, commit_interval, spark, master, trigger, config, at_step, options
        )
        settings = make_config(
            application_id, config, options,
            guarantee=guarantee, commit_interval=commit_interval, trigger=trigger,
        )  # fmt: skip
        self.application_id, self.topology = application_id, topology.configured(settings)
        graph = self.topology.graph()
        self.setup = Setup(
            application_id=application_id,
            graph=graph,
            config=settings,
            log=log_address(log, settings),
            checkpoint=absolute(checkpoint or f"{application_id}-checkpoint"),
            state_dir=given_state_directory(settings),
            at_step=at_step,
            spark=spark,
            master=master,
            backfill=backfill,
            starts={topic: parse_start(start) for topic, start in (starts or {}).items()},
        )
        self._state, self._listeners = State.CREATED, list[Callable[[State, State], None]]()
        self._lock, self._over = threading.RLock(), threading.Event()
        self._run: Run | None = None
        self._sources: RunningSources | None = None
        self._watcher: threading.Thread | None = None
        self._failed: Exception | None = None
        self._paused = self._is_ending = False
        self._changes: dict[str, Any] | None = None  # that the last start made to the checkpoint
        self._totals = ApplicationStats(NodeIndex(graph, application_id), settings.errors_dead_letter_queue_topic_name)

    def with_settings(self, settings: Mapping[str, Any]) -> Application:
        """Returns an application that differs in these settings, which have Kafka Streams' dotted names.

        >>> from headrace import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> builder.stream("lines").to("copies")
        >>> app = Application("copy", builder.build(), log="file:./data", commit_interval=500)
        >>> app.with_settings({"commit.interval.ms": 100}).setup.config.commit_interval_ms
        100
        """
        given, changed = self._given, {field_of(name) for name in settings}
        other = Application(
            self.application_id,
            given.topology,
            given.log,
            checkpoint=given.checkpoint,
            guarantee=None if "processing_guarantee" in changed else given.guarantee,
            commit_interval=None if "commit_interval_ms" in changed else given.commit_interval,
            spark=given.spark,
            master=given.master,
            trigger=None if "processing_trigger" in changed else given.trigger,
            config={**settings_of(given.config), **settings},
            at_step=given.at_step,
            **{name: value for name, value in given.options.items() if name not in changed},
        )
        other._listeners = [*self._listeners]
        return other

    # ------------------------------------------------------------------------------------------- starting, stopping
    def start(self) -> None:
        """Takes over the checkpoint, delivers what the log lacks, and continues where the last run ended."""
        with self._lock:
            if self._run is not None:
                raise StreamsError(f"{self.application_id} is {self._state} already")
            self._failed, self._over, self._is_ending = None, threading.Event(), False
            self._become(State.REBALANCING)
            if self._over.is_set():  # a listener has stopped it
                self._become(State.NOT_RUNNING)
                return
            try:
                self._create_source_topics()
                self._run = self._opened()
                remove_old_state(self._run.job)
                self._sources = self._started_sources()  # the owner of the checkpoint runs them
            except BaseException:
                self._become(State.ERROR)
                run, self._run = self._run, None
                if run is not None:
                    run.close()
                raise
            self._become(State.RUNNING)
            if not self._over.is_set():
                name = f"headrace {self.application_id}"
                self._watcher = threading.Thread(target=self._watch, name=name, daemon=True)
                self._watcher.start()

    def _opened(self) -> Run:
        # Importing Spark takes a second, which a test of a topology need not spend.
        with needs_extra("spark"):
            from headrace.spark.run import Run  # noqa: PLC0415

        run = Run(self.setup, self._totals, paused=self._paused, describe=self._describe)
        plan = run.coordinator.changes
        if plan is not None:
            new = {change.name for change in plan.changes if (change.subject, change.action) == ("store", "new")}
            empty = sorted(new - self.setup.graph.global_stores.keys())
            if empty and not self.setup.backfill:
                _log.warning(
                    "begins empty, because it is new: %s. Started with --backfill, it is filled from what the log has",
                    ", ".join(empty),
                )
            made = plan.to_json()
            self._changes = {**made, "changes": [change for change in made["changes"] if change["action"] != "kept"]}
        return run

    def _open_log(self) -> Log:
        return open_log(self.setup.log, self.setup.config.client_settings)

    def _create_source_topics(self) -> None:
        if self.topology.sources:
            with closing(self._open_log()) as log:
                create_source_topics(log, self.topology.sources, self.setup.config.num_partitions)

    def _started_sources(self) -> RunningSources | None:
        sources, config = self.topology.sources, self.setup.config
        if not sources:
            return None
        return RunningSources(
            self.application_id, sources, self._open_log,
            default_partitions=config.num_partitions, at_step=self.setup.at_step,
            log_record_values=config.log_record_values,
        )  # fmt: skip

    def _describe(self) -> dict[str, Any]:
        """What the heartbeat says about the sources, and about the changes of the last start."""
        sources, changes = self._sources, self._changes
        found: dict[str, Any] = {} if sources is None else {"sources": [r._asdict() for r in sources.reports()]}
        return found if changes is None else {**found, "changes": changes}

    def stop(self) -> None:
        """Ends after the batch that is running, and delivers what is committed.

        A batch that runs for longer than eight seconds is cut off; the next start runs it again. A listener of state
        changes may call it, too.
        """
        self._stop(None)

    def close(self, timeout: int | timedelta | None = None) -> bool:
        """Stops, and waits at most `timeout` (ms or a timedelta) for it; without one it is `stop`.

        True if the batch that was running has ended and everything committed is in the log. Else both are cut off, and
        the log says so: the next start runs the batch again, or delivers it. No result is lost or written twice.
        """
        return self._stop(None if timeout is None else milliseconds(timeout, "the timeout of close") / 1000)

    def _stop(self, timeout: float | None) -> bool:
        """Stops within so many seconds; True if nothing was cut off."""
        end = None if timeout is None else time.monotonic() + timeout
        self._over.set()
        watcher = self._watcher
        if watcher is not None and watcher is not threading.current_thread():
            watcher.join(timeout)
        with self._lock:
            run, self._run, self._watcher = self._run, None, None
            sources, self._sources = self._sources, None
            if sources is not None:
                sources.close()
            if run is None:
                return True
            if self._failed is None:
                self._become(State.PENDING_SHUTDOWN)
            is_whole = False
            try:
                is_whole = run.close(
                    None if end is None else max(0.0, end - time.monotonic()), self._describe_failure()
                )
            except Exception:
                if self._failed is None:
                    raise
            finally:
                self._become(State.NOT_RUNNING if self._failed is None else State.ERROR)
        if not is_whole and timeout is not None and self._failed is None:
            _log.warning(
                "%s did not stop within %d ms and was cut off: the next start continues with the last batch",
                self.application_id,
                timeout * 1000,
            )
        return is_whole

    def run(self) -> None:
        """Runs until SIGINT or SIGTERM, until another thread stops it, or until it fails.

        The signals stop it as `stop` does. A second SIGINT ends the process at once, as a crash would: the next start
        continues with the last batch.
        """
        with ended_by_signals(self._announce_end) as over, self._running_until(over):
            while not over.wait(LOOK):
                self._check()
                if self._state is State.NOT_RUNNING:  # another thread, or a listener, has stopped it
                    return

    def run_available(self) -> None:
        """Processes what is in the log, and in the sources, and stops: for batch use."""
        with ended_by_signals(self._announce_end) as over, self._running_until(over):
            self._drain(over.is_set, None)

    @contextmanager
    def _running_until(self, over: threading.Event) -> Generator[None]:
        """Starts and stops the application. A start that fails after a signal is no error.

        The signal may have ended a process that the start needs: systemd sends it to all processes of a service.
        """
        log_own_lines()
        try:
            self.start()
        except Exception as error:
            if not over.is_set():
                raise
            _log.info("%s was stopped while it started: %s", self.application_id, self._summarize(error))
        try:
            yield
        finally:
            self.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()

    # ---------------------------------------------------------------------------------------------- while it runs
    @property
    def is_ready(self) -> bool:
        """True when it runs and a batch can begin: Spark has started the slots, and these have the tasks."""
        run = self._run
        return run is not None and self._state is State.RUNNING and run.is_ready

    @property
    def state(self) -> State:
        """The state, under Kafka Streams' name: CREATED, RUNNING, NOT_RUNNING and so on."""
        return self._state

    def on_state_change(self, listener: Callable[[State, State], None]) -> None:
        """Calls `listener(new, old)` at every change of the state, in the thread that makes it."""
        self._listeners.append(listener)

    def _announce_end(self) -> None:
        """Says at the signal that the application ends, though the start or the batch that runs may take seconds."""
        if self._state in {State.REBALANCING, State.RUNNING}:
            self._become(State.PENDING_SHUTDOWN)
            self._is_ending = True

    def _become(self, state: State) -> None:
        if self._is_ending and state in {State.REBALANCING, State.RUNNING}:
            return
        before, self._state = self._state, state
        for listener in self._listeners if before != state else ():
            try:
                listener(state, before)
            except Exception:  # noqa: BLE001 - a listener is the user's
                _log.exception("a listener of %s failed", self.application_id)

    def _watch(self) -> None:
        """Checks the run: plans it again when topics have changed, and ends it when it has failed."""
        reruns = 0
        while not self._over.wait(LOOK):
            try:
                if self._sources is not None:
                    self._sources.check()
                number = self._running().coordinator.number
                if not self._running().look():
                    self._reopen()
                reruns = reruns if number == self._running().coordinator.number else 0
            except (StageRerunError, QueryStoppedError) as error:
                reruns += 1
                _log.warning("%s", self._summarize(error))
                self._try_again(error, reruns)
            except Exception as error:  # noqa: BLE001 - `_check` raises it in the thread that waits
                if not self._over.is_set():  # else a listener has stopped it
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
            if self._over.is_set():  # a listener has stopped it
                return
            self._running().close()
            self._run = self._opened()
            self._become(State.RUNNING)

    def _fail(self, error: Exception) -> None:
        self._failed = error
        _log.error("%s has stopped: %s", self.application_id, self._describe_failure())
        self._become(State.PENDING_ERROR)
        self.stop()

    def _describe_failure(self) -> str | None:
        """Why the application has failed, without data of records unless a setting allows it; None if it has not."""
        return None if self._failed is None else self._summarize(self._failed)

    def _summarize(self, error: Exception) -> str:
        return summarize(error, with_values=self.setup.config.log_record_values)

    def _check(self) -> None:
        if self._failed is not None:
            if isinstance(self._failed, StreamsError):
                raise self._failed
            what = f"{self.application_id} has stopped"
            raise StreamsError(
                f"{what}: {self._failed}", summary=f"{what}: {summarize(self._failed)}"
            ) from self._failed

    def _running(self) -> Run:
        if self._run is None:
            self._check()
            raise StreamsError(f"{self.application_id} is {self._state}: start it first")
        return self._run

    def pause(self) -> None:
        """Starts no further batch until `resume`; it may be called before `start`."""
        with self._lock:
            self._paused = True
            if self._run is not None:
                self._run.pause(paused=True)

    def resume(self) -> None:
        """Starts batches again after `pause`."""
        with self._lock:
            self._paused = False
            if self._run is not None:
                self._run.pause(paused=False)

    def scale(self, slots: int) -> int:
        """Sets the number of slots while the application runs; tasks move with their state, between two batches.

        Returns the number that Spark has room for, which is at most one for each task. Only with the real-time trigger.
        """
        if slots < 1:
            raise ValueError(f"an application needs at least one slot, not {slots}")
        return self._running().scale(slots)

    def snapshot(self) -> None:
        """Has the state of every task merged into one file of the checkpoint; batches continue meanwhile."""
        self._running().snapshot()

    @property
    def is_paused(self) -> bool:
        """True after `pause`, until `resume`."""
        return self._paused

    def drain(self, timeout: int | timedelta | None = None) -> None:
        """Waits until everything in the log has been processed and delivered.

        If that takes longer than `timeout` (ms or a timedelta), a `StreamsError` is raised and the application goes on.
        """
        self._drain(lambda: False, None if timeout is None else milliseconds(timeout, "the timeout of drain"))

    def _drain(self, over: Callable[[], bool], timeout: int | None) -> None:
        end = None if timeout is None else time.monotonic() + timeout / 1000
        while not over():
            run, sources = self._running(), self._sources
            # The sources first: what they have written must be in the extents.
            is_read = sources is None or sources.is_caught_up
            if run.wait(run.is_settled, 0.02) and is_read:
                return
            if end is not None and time.monotonic() > end:
                raise StreamsError(f"{self.application_id} did not settle in {timeout} ms")

    def clean_up(self) -> None:
        """Removes the local copies of the state, never the checkpoint; the application must not be running."""
        if self._run is not None:
            raise StreamsError(f"{self.application_id} is {self._state}: stop it before its local state is removed")
        remove_state(state_directory(self.setup.state_dir), self.application_id)

    def plan(self) -> ChangePlan:
        """Compares the topology with the checkpoint: what the next start keeps, renames, moves, adds and removes.

        Nothing is changed, and the application may be running. `print(app.plan().describe())` shows the plan;
        `plan.decisions` has what the user must decide before the application starts.
        """
        with needs_extra("spark"):
            from headrace.spark.job_planner import read_change_plan  # noqa: PLC0415 - as in `_opened`

        return read_change_plan(self.setup)

    def write_changelogs(self, *, dry_run: bool = False, told: OnExport = ignore_export) -> list[Export]:
        """Writes the state to Kafka Streams' changelog topics, so that a Java application can continue from it.

        The application must not be running. `told` is called with every partition that is done.
        """
        return write_changelogs(self.setup, dry_run=dry_run, on_export=told)

    # --------------------------------------------------------------------------------------------- reading the state
    @overload
    def store(self, store: StoreSpec[KeyValueStore[K, V]]) -> ReadOnlyKeyValueStore[K, V]: ...
    @overload
    def store(self, store: StoreSpec[WindowStore[K, V]]) -> ReadOnlyWindowStore[K, V]: ...
    @overload
    def store(self, store: StoreSpec[SessionStore[K, V]]) -> ReadOnlySessionStore[K, V]: ...
    @overload
    def store(self, store: StoreSpec[VersionedStore[K, V]]) -> ReadOnlyVersionedStore[K, V]: ...
    @overload
    def store(self, store: str) -> Any: ...
    def store(self, store: str | StoreSpec[Any]) -> Any:
        """A read-only view of a store over all tasks; every call answers as of the last batch.

        The store is given by its name, or by its spec: then the view has the types of its keys and values.
        """
        name = store_name(store)
        return view_latest(name, lambda: self._running().follower.refresh())  # noqa: PLW0108 - another run may follow

    def query(
        self,
        store: str | StoreSpec[Any],
        query: Query[R],
        *,
        at_least: Position | int | None = None,
        as_of: int | None = None,
    ) -> QueryResult[R]:
        """Answers a query as of the last batch, which must have reached `at_least`, or of an earlier one, `as_of`.

        `app.query("counts", KeyQuery[str, int]("hello")).result` is an `int | None`.
        """
        return self._running().follower.query(store_name(store), query, at_least=at_least, as_of=as_of)

    def metadata_for_key(
        self, store: str | StoreSpec[Any], key: Any, partitioner: KeyPartitioner[Any] | None = None
    ) -> TaskId:
        """The task that has a key of a store; of a windowed store, the key without its window.

        `partitioner` is needed if the topic behind which the store is has a partitioner that is a plain function.
        """
        return self._running().task_of(store_name(store), key, partitioner)

    def metrics(self) -> dict[str, float]:
        """Counts and times in milliseconds, under Kafka Streams' names; the parts of a count follow a slash."""
        return streams_metrics(self.report(), self._running().coordinator.ledger)

    def samples(self, node: str) -> list[SampledRecord]:
        """The last records that a source read or a sink wrote, as text."""
        return format_samples(self.setup.graph, self.setup.config, node, self._totals.samples(node))

    def report(self) -> ApplicationReport:
        """The state of the application and of its last batches, for a dashboard."""
        run, failed = self._run, self._failed
        known: dict[str, Any] = {} if run is None else run.observed()
        sources = self._sources
        if sources is not None:
            known["sources"] = sources.reports()
        known["changes"] = self._changes
        error = None if failed is None else str(failed)
        return ApplicationReport(state=self._state, paused=self._paused, error=error, **known)


def read_store(
    spark: Any,
    checkpoint: str | Path,
    store: str,
    batch: int | None = None,
    *,
    topology: Topology | None = None,
    config: Config | None = None,
) -> Any:
    """A store as a Spark DataFrame, as of a batch that is kept, or of the last one.

    Serdes that are not Headrace's own need the topology, and defaults of the application its config.
    """
    with needs_extra("spark"):
        from headrace.spark.store_frames import read_store as read  # noqa: PLC0415

    return read(spark, checkpoint, store, batch, topology=topology, config=config)
