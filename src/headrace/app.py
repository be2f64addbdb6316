"""An application: a topology, the log that it reads and writes, and the checkpoint that it lives from."""

from __future__ import annotations

import re
import signal
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from headrace.commit.coordinator import Coordinator, Habits, World
from headrace.commit.fingerprint import fingerprint_of
from headrace.commit.steps import AtStep, unobserved
from headrace.commit.storage import open_storage
from headrace.config import Config
from headrace.errors import StreamsError
from headrace.log.creating import Creating
from headrace.log.open import open_log
from headrace.log.protocol import Log
from headrace.plan.copartition import partition_counts, task_counts
from headrace.plan.cut import plan
from headrace.spark.host import Host
from headrace.spark.job import Job
from headrace.spark.session import session
from headrace.spark.view import view_of
from headrace.topology.builder import Topology
from headrace.topology.nodes import Sink, Source


class Application:
    """Runs a topology on Spark, exactly once, from the log to the state and back to the log.

    `with Application(...) as app:` starts and stops it; `run()` runs until a signal, `run_available()` until what is in
    the log has been processed.
    """

    def __init__(
        self,
        application_id: str,
        topology: Topology,
        log: str,
        *,
        checkpoint: str | None = None,
        state_dir: str | None = None,
        guarantee: str | None = None,
        spark: Any = None,  # a SparkSession; without one Headrace makes its own
        config: Mapping[str, Any] | None = None,
        at_step: AtStep = unobserved,  # told of every step of a batch, in whichever process it is taken
    ) -> None:
        self.application_id, self._graph = application_id, topology.graph()
        self._plan = plan(self._graph)
        given = {"processing.guarantee": guarantee} if guarantee else {}
        self._config = Config.of({**(config or {}), **given, "application.id": application_id})
        self._address, self._checkpoint = log, checkpoint or f"{application_id}-checkpoint"
        local = state_dir or self._config.state_dir or str(Path(tempfile.gettempdir()) / "headrace")
        self._state, self._spark = local, spark
        self._at_step = at_step
        self._host: Host | None = None

    # ------------------------------------------------------------------------------------------- starting, stopping
    def start(self) -> None:
        """Takes over the checkpoint, delivers what the log lacks, and goes on where the last run ended."""
        self._log = open_log(self._address)
        topics = self._prepare_topics(self._log)
        job = self._job(topics)
        stages = {number: count for number, count in job.tasks.items() if number in self._plan.stages}
        self._coordinator = Coordinator.open(
            open_storage(self._checkpoint),
            Creating(self._log),
            self.application_id,
            fingerprint_of(self._graph, self._plan, self._config, tasks=stages, partitions=job.partitions),
            topics={name: self._log.topic(name).id for name in topics},
            positions={at: extent.earliest for at, extent in self._log.extents(sorted(topics)).items()},
            habits=Habits(exactly_once=self._config.processing_guarantee == "exactly_once"),
            world=World(at_step=self._at_step),
        )
        self._topics = sorted(topics)
        spark = self._spark or session()
        self.job = job.placed(self._coordinator.ledger.checkpoint, spark.sparkContext.defaultParallelism)
        self._host = Host(spark, self.job, self._coordinator) if job.tasks else None

    def _job(self, topics: set[str]) -> Job:
        known = {name: topic.partitions for name, topic in self._log.topics().items()}
        partitions = partition_counts(self._graph, self._plan, known)
        tasks = task_counts(self._plan, known, partitions)
        for number, stage in self._plan.stages.items():
            matched = [known[topic] for topic in topics for pattern in stage.patterns if re.fullmatch(pattern, topic)]
            tasks[number] = max([tasks[number], *matched])
        if self._plan.global_nodes:
            tasks[len(self._plan.stages)] = 1
        return Job(
            application=self.application_id,
            graph=self._graph,
            plan=self._plan,
            config=self._config,
            tasks=tasks,
            partitions=partitions,
            log=self._address,
            checkpoint=self._checkpoint,
            state=self._state,
            at_step=self._at_step,
        )

    def _prepare_topics(self, log: Log) -> set[str]:
        """Sees that the topics that are named exist, and gives those that are read."""
        existing, read = log.topics(), set[str]()
        nodes = self._graph.nodes.values()
        for source in (node for node in nodes if isinstance(node, Source)):
            read |= {topic for topic in source.topics if topic not in self._graph.internal_topics}
            if source.pattern:
                read |= {topic for topic in existing if source.pattern.fullmatch(topic)}
        written = {node.topic for node in nodes if isinstance(node, Sink) and isinstance(node.topic, str)}
        for topic in sorted((read | written) - self._graph.internal_topics.keys() - existing.keys()):
            log.create_topic(topic)
        return read

    def stop(self) -> None:
        """Ends after the batch that is running; what is committed is delivered."""
        if self._host is not None:
            self._host.stop()
        self._coordinator.close()
        self._log.close()

    def run(self) -> None:
        """Runs until SIGINT or SIGTERM."""
        over = threading.Event()

        def end(number: int, frame: FrameType | None) -> None:
            over.set()

        before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            with self:
                while not over.wait(0.2):
                    self._check()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run_available(self) -> None:
        """Processes what is in the log, and stops: for batch use."""
        with self:
            self.drain()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ---------------------------------------------------------------------------------------------- while it runs
    def drain(self, timeout: float | None = None) -> None:
        """Waits until everything in the log has been processed and delivered, and nothing moves any more."""
        end = None if timeout is None else time.monotonic() + timeout
        while self._host is not None and not self._host.wait(self._settled, 0.02):
            self._check()
            if end is not None and time.monotonic() > end:
                raise StreamsError(f"{self.application_id} did not settle in {timeout:g} s")

    def _check(self) -> None:
        if self._host is not None:
            self._host.check()

    def _settled(self) -> bool:
        ledger, extents = self._coordinator.ledger, self._log.extents(self._topics)
        read = all(ledger.positions.get(at, 0) >= extent.end for at, extent in extents.items())
        return read and not ledger.carried and self._coordinator.delivered >= ledger.number

    def store(self, name: str) -> Any:
        """A store of all tasks, for reading, as of the last batch."""
        return view_of(self.job, self._coordinator.ledger, name)

    def metrics(self) -> dict[str, int]:
        """`dropped-records-total`, and the same by reason."""
        dropped = self._coordinator.ledger.dropped
        by_reason = {f"dropped-records-total/{reason}": count for reason, count in sorted(dropped.items())}
        return {"dropped-records-total": sum(dropped.values()), **by_reason}
