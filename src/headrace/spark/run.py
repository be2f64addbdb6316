"""One run of an application: it takes over the checkpoint, starts the engine of the trigger, and closes both.

`Application` opens a `Run`, calls `look` regularly, and opens another run when topics have changed or after an error
that a new start can cure. Opening a run delivers the batches that are committed but not in the log yet.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from pyspark import SparkContext

from headrace.checkpoint.backfill_checkpoint import discard_backfill
from headrace.checkpoint.carry_over import find_migrations
from headrace.checkpoint.compaction import CompactionPolicy
from headrace.checkpoint.coordinator import CommitHooks, CommitOptions, Coordinator
from headrace.checkpoint.ledger import manifest_numbers
from headrace.checkpoint.manifest import Changelog
from headrace.checkpoint.recovery import read_positions
from headrace.checkpoint.rescale import Progress
from headrace.checkpoint.sink_delivery import ShareOut, Written, find_sinks
from headrace.checkpoint.storage import Storage, open_storage
from headrace.config.settings import Config, name_settings_of_other_trigger
from headrace.errors import (
    ConfigError,
    LogUnavailableError,
    StreamsError,
    TopicExistsError,
    UnknownStoreError,
    UnknownTopicError,
)
from headrace.log.open import open_log
from headrace.log.protocol import Extent, HasBrokers, Log
from headrace.model.ids import TaskId, TopicPartition
from headrace.model.partitioner import KeyPartitioner
from headrace.query.follower import Follower
from headrace.runtime.partitioning import find_partition
from headrace.runtime.serdes import register_schemas
from headrace.spark.application_state import Heartbeat
from headrace.spark.backfill import make_backfill
from headrace.spark.changelogs import await_empty_group, find_changelogs, find_members
from headrace.spark.job import Job, Setup, find_secrets, is_local
from headrace.spark.job_planner import PlannedJob, make_divider, plan_job
from headrace.spark.micro_batch import MicroBatchQuery
from headrace.spark.real_time import RealTimeEngine
from headrace.spark.session import (
    SlotCount,
    check_context,
    count_slots,
    encrypts_rpc,
    explain_lost_jvm,
    session_of,
    start_context,
)
from headrace.spark.slot_pool import count_held_slots
from headrace.spark.stats import ApplicationStats
from headrace.spark.topics import (
    await_ends,
    check_starts,
    chosen_positions,
    find_global_topics,
    first_positions,
    prepare_topics,
    topics_read,
)

_log = logging.getLogger(__name__)
TOPIC_CHECK_INTERVAL = 1.0  # seconds between two checks for new, deleted or grown topics
TOPICS_CHANGE, TOPICS_RETRY = 5.0, 0.1  # seconds that a start tries again while topics are deleted and created


def _log_progress(progress: Progress) -> None:
    listed = ", ".join(map(str, progress.subtopologies))
    _log.info(
        "the state of sub-topology %s is divided: %d of %d tasks, %d entries",
        listed,
        progress.tasks,
        progress.of_tasks,
        progress.entries,
    )


def check_settings(config: Config) -> None:
    """Rejects settings that only work in one process, and names those that the chosen trigger does not read."""
    if (config.schema_registry_url or "").startswith("mock://"):
        raise ConfigError(
            "schema.registry.url=mock://… is a registry inside one process, and slots are processes of their own: "
            "start one with `headrace registry start`, or test with TopologyTestDriver"
        )
    name_settings_of_other_trigger(config)


def check_cores(job: Job, found: SlotCount) -> None:
    """Raises an error if slots would hold every core, and a sink runs Spark jobs: these would wait for ever."""
    is_full = found.free is not None and found.free < 1
    if job.config.processing_trigger == "real-time" and job.has_spark_sinks and is_full:
        raise ConfigError(
            f"to_spark runs Spark jobs, but slots of the real-time trigger hold all cores ({found.reason}): "
            "start Spark with one core more, or set trigger='micro-batch'"
        )


def warn_about_secrets(context: SparkContext, job: Job) -> None:
    """Warns if passwords or keys leave this machine unencrypted with the job, whatever engine sends it."""
    found = [] if is_local(context) or encrypts_rpc(context) else find_secrets(job)
    if found:
        _log.warning(
            "the passwords or keys of %s go to the hosts of the cluster unencrypted, as part of the application: set "
            "spark.network.crypto.enabled, unless you trust the network between its hosts",
            ", ".join(found),
        )


class Run:
    """A running application. It continues where the last run ended."""

    def __init__(
        self,
        setup: Setup,
        stats: ApplicationStats,
        *,
        paused: bool = False,
        describe: Callable[[], dict[str, Any]] = dict,
        log: Log | None = None,
    ) -> None:
        """`describe` returns what the heartbeat reports besides the slots. `log` is the setup's log; it stays open."""
        self._setup, self._stats = setup, stats
        check_settings(setup.config)
        register_schemas(setup.graph, setup.config)
        starting = self._starting = start_context(setup.master, setup.config.num_stream_threads, given=setup.spark)
        self._check_log((starting.result().master if starting.done() else setup.master) or "local")
        self._engine: MicroBatchQuery | RealTimeEngine | None = None
        self._has_engine = threading.Event()  # or it is known that there will be none
        self._delivered_positions: Mapping[TopicPartition, int] | None = None  # not yet committed to the consumer group
        self._log = log or open_log(setup.log, setup.config.client_settings)
        self._close_log = self._log.close if log is None else lambda: None
        try:
            job, self.coordinator = self._take_over()
            if setup.part is None:
                discard_backfill(setup.checkpoint)
        except BaseException:
            self._close_log()
            raise
        try:
            context = starting.result()
            check_context(context)
            self._check_log(context.master or "local")
            found = count_slots(
                context, sum(job.tasks.values()), setup.config.num_stream_threads, job.free_cores,
                others=count_held_slots(),
            )  # fmt: skip
            check_cores(job, found)
        except BaseException:
            self._has_engine.set()
            self.coordinator.close()
            self._close_log()
            raise
        self._context = context
        self.job = job.with_checkpoint(self.coordinator.ledger, found.slots)
        self._topics_checked = time.monotonic()
        self._heartbeat = Heartbeat(self.coordinator.renew_lease)  # Spark may start more slowly than the lease lasts
        self._is_closing = False
        warn_about_secrets(context, self.job)
        try:
            self._check_positions()
            if job.tasks and setup.config.processing_trigger == "real-time":
                self._engine = RealTimeEngine(context, self.job, self.coordinator, stats, paused=paused)
                describe_slots = self._engine.describe_slots
                self.coordinator.describe_owner(lambda: {**describe_slots(), **self._describe_state(), **describe()})
            elif job.tasks:
                self.coordinator.describe_owner(lambda: {**self._describe_state(), **describe()})
                session = setup.spark or session_of(context)
                self._engine = MicroBatchQuery(session, self.job, self.coordinator, stats, paused=paused)
            self._has_engine.set()
        except BaseException:
            self.close()
            raise

    def _take_over(self) -> tuple[Job, Coordinator]:
        """Plans the job and opens its checkpoint. While another client deletes and creates topics, it tries again."""
        if isinstance(self._log, HasBrokers):
            self._log.check_brokers()
        storage, end = open_storage(self._setup.checkpoint), time.monotonic() + TOPICS_CHANGE
        while True:
            try:
                self.topics = prepare_topics(self._log, self._setup.graph, self._setup.config)
                planned = plan_job(self._setup, self._log, storage, self.topics)
                return planned.job, self._open_coordinator(storage, planned)
            except (UnknownTopicError, TopicExistsError):
                if time.monotonic() > end:
                    raise
                time.sleep(TOPICS_RETRY)

    def _check_log(self, master: str) -> None:
        if self._setup.log.startswith("file:") and not master.startswith("local"):
            raise ConfigError(
                f"{self._setup.log} is a log on this machine, but Spark runs on {master}: executors on other hosts "
                "cannot read it. Use a Kafka log, or --master local[N]"
            )

    def _check_positions(self) -> None:
        """Raises an error for partitions without a position: the reset policy "none" gives them no start."""
        known = self.coordinator.ledger.positions
        unknown = sorted(str(at) for at in self._used_extents() if at not in known)
        if unknown:
            raise StreamsError(
                f"{', '.join(unknown)} was never read, and auto.offset.reset is none: say where to begin, earliest or "
                "latest, or with headrace reset"
            )

    def _open_coordinator(self, storage: Storage, planned: PlannedJob) -> Coordinator:
        setup, job = self._setup, planned.job
        found = {name: self._log.topic(name) for name in self.topics}
        self._known = {name: (topic.partitions, topic.id) for name, topic in found.items()}
        await_ends(self._log, read_positions(storage), {name: topic.id for name, topic in found.items()})
        self._counts = planned.counts
        changelogs = self._find_changelogs(
            storage, job
        )  # before the positions, which a Java application may still move
        return Coordinator.open(
            storage,
            self._log,
            setup.application_id,
            planned.fingerprint,
            topics={name: topic.id for name, topic in found.items()},
            changelogs=changelogs,
            migrations=find_migrations(setup.graph, setup.config),
            positions=self._first_positions(storage),
            divider=make_divider(setup, self._starting.result, _log_progress),
            backfill=make_backfill(setup, planned, self.topics, Run) if setup.backfill else None,
            options=CommitOptions(
                exactly_once=setup.config.processing_guarantee == "exactly_once",
                share_bytes=setup.config.delivery_job_min_bytes,
                keep=setup.config.checkpoint_keep_batches,
                compaction=CompactionPolicy(max_deltas=setup.config.checkpoint_max_deltas),
                sink_backlog=setup.config.sink_backlog_max_batches,
                sink_backoff_ms=setup.config.sink_retry_backoff_max_ms,
            ),
            sinks=find_sinks(setup.graph, setup.config),
            hooks=CommitHooks(
                at_step=setup.at_step,
                delivered=self._record_delivery,
                deliver_in_shares=self._deliver_in_shares,
                write_in_slots=self._write_in_slots,
                spark=self._session,
            ),
        )

    def _first_positions(self, storage: Storage) -> dict[TopicPartition, int]:
        """Returns where to begin with partitions that were never read.

        New partitions of a topic that is read already begin at their first record, whatever the reset policy says:
        producers write to them from the time when the topic got them.
        """
        setup = self._setup
        positions = first_positions(self._log, setup.graph, setup.config, self.topics)
        of_globals = find_global_topics(setup.graph)
        check_starts(setup.starts, self.topics, of_globals)
        extents, read = self._used_extents(), {at.topic for at in read_positions(storage)}
        for topic in sorted(setup.starts.keys() & read):
            _log.warning("%s has a position already, and is read on from there: --from is for new sources", topic)
        new = {at: extent for at, extent in extents.items() if at.topic not in read and at.topic not in of_globals}
        chosen = chosen_positions(self._log, setup.starts, new)
        grown = {at: extent.earliest for at, extent in extents.items() if at.topic in read}
        return {at: offset for at, offset in (positions | chosen | grown).items() if self._is_used(at)}

    def _is_used(self, at: TopicPartition) -> bool:
        """False for a partition that is not read yet, because topics that its topic is joined with lack it."""
        return at.partition < self._counts.get(at.topic, at.partition + 1)

    def _used_extents(self) -> dict[TopicPartition, Extent]:
        extents = self._log.extents(sorted(self.topics))
        return {at: extent for at, extent in extents.items() if self._is_used(at)}

    def _ends(self) -> dict[TopicPartition, int]:
        """Returns the offsets up to which the application reads: the ends of the log, or of its range."""
        stops = self.coordinator.ledger.stops
        return {at: min(extent.end, stops.get(at, extent.end)) for at, extent in self._extents().items()}

    def _find_changelogs(self, storage: Storage, job: Job) -> dict[str, Changelog]:
        """Returns the changelogs of a Java application, after it has stopped; none if a checkpoint exists."""
        if manifest_numbers(storage) or not self._setup.log.startswith("kafka:"):
            return {}
        application = self._setup.application_id
        if find_members(self._log, application) and find_changelogs(self._log, job, self._log.committed(application)):
            await_empty_group(self._log, application)  # only then its offsets are final
        return find_changelogs(self._log, job, self._log.committed(application))

    def _deliver_in_shares(self, number: int) -> Sequence[str] | None:
        """Delivers a batch in shares. Catch-up at start is delivered by the driver, because no slot is running yet."""
        return None if self._engine is None else self._engine.shares.deliver(self._log, number)

    def _write_in_slots(
        self, sink: str, number: int, parts: Sequence[str], share_out: ShareOut
    ) -> Sequence[Written] | None:
        """Has slots write the parts of a batch for a sink, as soon as slots run; None if the driver has to write."""
        self._has_engine.wait()
        return None if self._engine is None else self._engine.shares.write_sink(sink, number, parts, share_out)

    def _describe_state(self) -> dict[str, Any]:
        """What `headrace status` shows of the sinks, and whether a batch can run."""
        return {"sinks": [report._asdict() for report in self.coordinator.sinks.reports()], "ready": self.is_ready}

    def _session(self) -> Any:
        return self._setup.spark or session_of(self._starting.result())

    def _record_delivery(self, number: int, positions: Mapping[TopicPartition, int]) -> None:
        self._delivered_positions = positions
        if self._engine is not None:
            self._engine.record_delivery(number)

    def _commit_group_offsets(self) -> None:
        """Commits the positions to the application's consumer group, for Kafka's tools and for a Java application."""
        positions, self._delivered_positions = self._delivered_positions, None
        if positions is not None and self._setup.log.startswith("kafka:"):
            try:
                self._log.commit(self._setup.application_id, positions)
            except StreamsError as error:
                _log.warning("the positions were not committed to the consumer group: %s", error)

    # -------------------------------------------------------------------------------------------------- while it runs
    def look(self) -> bool:
        """Raises errors of the run. Returns False if the topics have changed, so that the run must be planned again."""
        self._heartbeat.check()
        self.coordinator.check()
        self._commit_group_offsets()
        if self._engine is not None:
            with explain_lost_jvm(self._context):
                self._engine.check()
                self._engine.look()
        if time.monotonic() < self._topics_checked + TOPIC_CHECK_INTERVAL:
            return True
        self._topics_checked = time.monotonic()
        try:
            topics = self._log.topics()
        except LogUnavailableError as error:  # the run goes on; a batch that needs the log fails itself
            _log.info("the topics were not checked: %s", error)  # Kafka's client warns that brokers are away
            return True
        read = topics_read(self._setup.graph, self._setup.application_id, topics)
        return {name: (topics[name].partitions, topics[name].id) for name in read & topics.keys()} == self._known

    def is_settled(self) -> bool:
        """True if everything in the log has been processed and delivered."""
        ledger = self.coordinator.ledger
        number = ledger.number
        # Deliveries are checked first: the application may read their records, which must then be in the extents.
        if self.coordinator.delivered < number or not self.coordinator.sinks.has(number):
            return False
        is_read = all(ledger.positions.get(at, 0) >= end for at, end in self._ends().items())
        is_time_sent = self._engine is None or self._engine.has_sent_stream_time
        at_rest = is_read and is_time_sent and not ledger.carried and not ledger.changelogs
        return at_rest and ledger.number == number and not self._is_closing

    def _extents(self) -> dict[TopicPartition, Extent]:
        """Returns the extents of all topics that are read; none while the run closes, when the log may be closed."""
        try:
            return self._used_extents()
        except Exception:
            if self._is_closing:
                return {}
            raise

    @cached_property
    def follower(self) -> Follower:
        """The stores after the last batch. The copy is made at the first query."""
        setup, coordinator = self._setup, self.coordinator
        storage = open_storage(setup.checkpoint)
        return Follower(storage, setup.graph, setup.config, latest=lambda: coordinator.ledger.number)

    def task_of(self, store: str, key: Any, partitioner: KeyPartitioner[Any] | None) -> TaskId:
        """Returns the task that holds a key of a store."""
        job = self.job
        tasks = [task for task in job.all_tasks() if store in job.stores_of(task.subtopology)]
        if not tasks:
            raise UnknownStoreError(store, sorted(job.graph.stores))
        if len(tasks) == 1:  # that of a global store, or of a topic with one partition
            return tasks[0]
        stage = job.plan.stages[tasks[0].subtopology]
        return tasks[find_partition(job.graph, stage, job.config, key, len(tasks), partitioner)]

    def observed(self) -> dict[str, Any]:
        """Returns what is known of the run beyond its checkpoint: delivered batches, ends of the log, phases, stats."""
        return {
            "ready": self.is_ready,
            "delivered": self.coordinator.delivered,
            "sinks": self.coordinator.sinks.reports(),
            "ends": self._ends(),
            **({} if self._engine is None else self._engine.observed()),
            **self._stats.observed(),
        }

    @property
    def is_ready(self) -> bool:
        """True if a batch can run: Spark has started the query or the slots."""
        return self._engine is None or self._engine.is_ready

    def wait(self, reached: Callable[[], bool], timeout: float) -> bool:
        return reached() if self._engine is None else self._engine.wait(reached, timeout)

    def pause(self, paused: bool) -> None:
        if self._engine is not None:
            self._engine.pause(paused)

    def scale(self, slots: int) -> int:
        """Sets the number of slots; returns how many there will be."""
        if not isinstance(self._engine, RealTimeEngine):
            raise StreamsError(
                "only the real-time trigger has slots that can be added: with micro-batch, stop the application and "
                "set num.stream.threads"
            )
        return self._engine.scale(slots)

    def snapshot(self) -> None:
        """Requests a snapshot of every task, and a batch that writes it."""
        self.coordinator.request_snapshots()
        if self._engine is not None:
            self._engine.look()

    # ------------------------------------------------------------------------------------------------------- its end
    def close(self, timeout: float | None = None, error: str | None = None) -> bool:
        """Closes the run after the running batch is committed and delivered. `error` is the reason, for others to read.

        After `timeout` seconds the batch or its delivery is cut off, and the method returns False: the next start runs
        the batch again, or delivers it.
        """
        self._is_closing = True
        self._has_engine.set()
        self.coordinator.sinks.stop_waiting()
        end = None if timeout is None else time.monotonic() + timeout
        is_ended = self._engine is None or self._engine.stop(timeout)
        self._heartbeat.stop()
        try:
            is_delivered = self.coordinator.close(None if end is None else max(0.0, end - time.monotonic()), error)
            return is_ended and is_delivered
        finally:
            if self._engine is not None:
                self._engine.clear()
            self._commit_group_offsets()
            self._close_log()
