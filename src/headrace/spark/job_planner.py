"""Plans the job of an application: task counts, sub-topologies whose source topics have grown, and rescaling.

    planned = plan_job(setup, log, storage, topics)
    Coordinator.open(…, planned.fingerprint, divider=make_divider(setup, start_context))

When a source topic of a sub-topology with state has grown, the records pass a reader from then on
(`topology.subtopologies.route_sources`), because producers place keys by the new number. The sub-topology keeps its
task count until all topics that it joins have grown; then its state is divided at the takeover.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from typing import Any, NamedTuple

from headrace.checkpoint.carry_over import find_migrations
from headrace.checkpoint.change_plan import ChangePlan, align_fingerprint, plan_changes
from headrace.checkpoint.coordinator import CommitHooks, Coordinator
from headrace.checkpoint.fingerprint import Fingerprint, compute_fingerprint
from headrace.checkpoint.ledger import Ledger
from headrace.checkpoint.recovery import read_fingerprint, recover_ledger
from headrace.checkpoint.rescale import Divider, Piece, Progress, Share, ignore_progress
from headrace.checkpoint.sink_delivery import find_sinks
from headrace.checkpoint.storage import Storage, open_storage
from headrace.errors import StreamsError, TopologyError
from headrace.log.open import open_log
from headrace.log.protocol import Log
from headrace.model.ids import TopicPartition
from headrace.runtime.partitioning import lay_out_state
from headrace.spark.backfill import describe_history
from headrace.spark.job import Job, Setup
from headrace.spark.session import start_context
from headrace.spark.topics import (
    check_starts,
    chosen_positions,
    find_global_topics,
    find_reset,
    find_start,
    first_positions,
    prepare_topics,
    topics_read,
)
from headrace.topology.ancestry import keep_ancestors
from headrace.topology.subtopologies import (
    Plan,
    hold_counts,
    partition_counts,
    plan,
    route_sources,
    task_counts,
)

_log = logging.getLogger(__name__)
IN_DRIVER = 16 << 20  # bytes of state that the driver divides itself: a Spark job would take longer to start
_TICK = 1.0  # seconds between two renewals of the lease while Spark divides


class PlannedJob(NamedTuple):
    """A job, the fingerprint of its topology, and the partitions of each topic that it reads."""

    job: Job
    fingerprint: Fingerprint
    counts: Mapping[str, int]


def plan_job(
    setup: Setup, log: Log, storage: Storage, topics: Collection[str], wished: Mapping[str, int] | None = None
) -> PlannedJob:
    """Plans a job. `topics` are those that it reads, `wished` are new partition counts of internal topics."""
    graph, config, stages = setup.graph, setup.config, plan(setup.graph)
    known = {name: topic.partitions for name, topic in log.topics().items()}
    if config.auto_create_topics_enable:  # the start creates missing topics
        known |= {topic: config.num_partitions for topic in topics if topic not in known}
    source_partitions = {topic: known[topic] for topic in topics}
    before = align_fingerprint(read_fingerprint(storage), graph, stages, config)
    held = hold_counts(graph, stages, known, {g.number: g.tasks for g in before.groups if g.stores} if before else {})
    for topic, count in sorted(held.items()):
        _log.warning(
            "%s has %d partitions, but topics that it is joined with have fewer: the application goes on with %d "
            "until all have the same number",
            topic,
            known[topic],
            count,
        )
    known |= held
    partitions = partition_counts(graph, stages, known, {**(before.partitions if before else {}), **(wished or {})})
    tasks = dict(task_counts(stages, known, partitions))
    for number, stage in stages.stages.items():
        matched = [known[topic] for topic in topics for p in stage.patterns if re.fullmatch(p, topic)]
        tasks[number] = max([tasks[number], *matched])
    if setup.part is not None:
        tasks |= setup.part.tasks
    fingerprint = compute_fingerprint(
        graph, stages, config, tasks=tasks, partitions=partitions, before=before, held=held
    )
    routed = route_sources(stages, fingerprint.routed)
    tasks |= {reader: tasks[number] for reader, number in routed.readers.items()}
    if stages.global_nodes:
        tasks[len(stages.stages)] = 1
    job = Job(
        application=setup.application_id,
        graph=graph,
        plan=routed,
        config=config,
        tasks=tasks,
        partitions=partitions,
        log=setup.log,
        checkpoint=setup.checkpoint,
        state=setup.state_dir,
        source_partitions=source_partitions,
        grown_from=fingerprint.routed,
        at_step=setup.at_step,
        is_backfill=setup.part is not None,
    )
    return PlannedJob(job, fingerprint, {topic: known[topic] for topic in topics})


# ------------------------------------------------------------------------------------------------------------ dividing
def make_divider(
    setup: Setup,
    context: Callable[[], Any],
    on_progress: Callable[[Progress], None] = ignore_progress,
) -> Divider:
    """Returns the divider of the application's state. It calls `context` for a SparkContext if there is much state."""
    stages = plan(setup.graph).stages

    def run(pieces: Sequence[Piece], work: Callable[[Storage, Piece], list[Share]]) -> Iterator[list[Share]]:
        size = sum(delta.blob.size for piece in pieces for _, chain in piece.sources for delta in chain)
        if size <= IN_DRIVER:
            storage = open_storage(setup.checkpoint)
            return (work(storage, piece) for piece in pieces)
        return run_on_spark(context(), setup.checkpoint, pieces, work)

    return Divider(
        layout_of=lambda number: lay_out_state(setup.graph, stages[number], setup.config),
        run=run,
        on_progress=on_progress,
    )


def run_on_spark(
    context: Any, address: str, pieces: Sequence[Piece], work: Callable[[Storage, Piece], list[Share]]
) -> Iterator[list[Share]]:
    """Runs each piece in a task of a Spark job: the executors read and write the state, not the driver."""

    def run(index: int) -> list[Share]:
        return work(open_storage(address), pieces[index])

    with ThreadPoolExecutor(1, "headrace rescale") as threads:
        job = threads.submit(lambda: context.parallelize(range(len(pieces)), len(pieces)).map(run).collect())
        while not wait([job], _TICK).done:
            yield []  # progress, which renews the lease
        yield from job.result()


# ------------------------------------------------------------------------------------------------------------ commands
def read_change_plan(setup: Setup, *, migrates_all: bool = False) -> ChangePlan:
    """Compares the checkpoint of an application with its topology. Nothing is changed."""
    storage, log = open_storage(setup.checkpoint), open_log(setup.log, setup.config.client_settings)
    try:
        ledger = recover_ledger(storage, 1)
        if ledger.fingerprint is None:
            raise StreamsError(f"{storage.describe()} has no batch yet: there is nothing that could change")
        topics = topics_read(setup.graph, setup.application_id, log.topics())
        planned = plan_job(setup, log, storage, topics)
        stages, partitions = plan(setup.graph).stages, planned.job.partitions

        check_starts(setup.starts, topics, find_global_topics(setup.graph))
        positions = {**find_first_positions(setup, log, topics, ledger), **ledger.positions}

        def describe(store: str) -> str | None:
            part = keep_ancestors(setup.graph, {store}, topics, partitions)
            return describe_history(log, part, positions)

        return plan_changes(
            ledger,
            planned.fingerprint,
            migrations={store: m.before for store, m in find_migrations(setup.graph, setup.config).items()},
            refusals=lambda number: lay_out_state(setup.graph, stages[number], setup.config).refusals,
            history=describe,
            starts={topic: describe_start(setup, topic) for topic in topics},
            migrates_all=migrates_all,
        )
    finally:
        log.close()


def check_topics(setup: Setup) -> None:
    """Raises the error that a first start would raise, if the topics in the log do not suit the topology."""
    with closing(open_log(setup.log, setup.config.client_settings)) as log:
        plan_job(setup, log, open_storage("memory:///"), topics_read(setup.graph, setup.application_id, log.topics()))


def find_first_positions(setup: Setup, log: Log, topics: Collection[str], ledger: Ledger) -> dict[TopicPartition, int]:
    """Returns where the application begins with topics that it has never read."""
    new = set(topics) & log.topics().keys() - {at.topic for at in ledger.positions}
    chosen = chosen_positions(log, setup.starts, log.extents(sorted(new - find_global_topics(setup.graph))))
    return first_positions(log, setup.graph, setup.config, new) | chosen


def describe_start(setup: Setup, topic: str) -> str:
    """Says where a source begins that was never read."""
    start = find_start(setup.starts, topic)
    if start is not None:
        return f"it begins at {start}, as --from says"
    reset = find_reset(setup.graph, setup.config, topic)
    return (
        f"auto.offset.reset says where it begins: {f'{reset} ms before the start' if isinstance(reset, int) else reset}"
    )


def migrate_application(setup: Setup, on_progress: Callable[[Progress], None] = ignore_progress) -> ChangePlan:
    """Carries out the changes that `read_change_plan` returns, and migrates all values, without running batches."""
    changes = read_change_plan(setup, migrates_all=True)
    storage, log = open_storage(setup.checkpoint), open_log(setup.log, setup.config.client_settings)
    try:
        topics = prepare_topics(log, setup.graph, setup.config)
        planned = plan_job(setup, log, storage, topics)
        with Coordinator.open(
            storage,
            log,
            setup.application_id,
            planned.fingerprint,
            topics={topic: log.topic(topic).id for topic in topics},
            migrations=find_migrations(setup.graph, setup.config),
            migrates_all=True,
            divider=make_divider(
                setup, lambda: start_context(setup.master, setup.config.num_stream_threads).result(), on_progress
            ),
            hooks=CommitHooks(at_step=setup.at_step),
        ):
            return changes
    finally:
        log.close()


def rescale_application(
    setup: Setup, subtopology: int, partitions: int, on_progress: Callable[[Progress], None] = ignore_progress
) -> tuple[int, int]:
    """Gives a sub-topology behind a repartition another number of tasks. Returns the numbers before and after.

    The application must not be running.
    """
    storage, log = open_storage(setup.checkpoint), open_log(setup.log, setup.config.client_settings)
    try:
        before = read_fingerprint(storage)
        if before is None:
            raise StreamsError(
                f"{storage.describe()} has no state yet: give repartition(partitions={partitions}) and start"
            )
        stages = plan(setup.graph)
        topics = topics_read(setup.graph, setup.application_id, log.topics())
        wished = dict.fromkeys(_check_subtopology(setup, stages, subtopology, partitions), partitions)
        planned = plan_job(setup, log, storage, topics, wished)
        was = {shape.number: shape.tasks for shape in before.groups}[subtopology]
        with Coordinator.open(
            storage,
            log,
            setup.application_id,
            planned.fingerprint,
            topics={topic: log.topic(topic).id for topic in topics},
            sinks=find_sinks(setup.graph, setup.config),
            divider=make_divider(
                setup, lambda: start_context(setup.master, setup.config.num_stream_threads).result(), on_progress
            ),
            hooks=CommitHooks(at_step=setup.at_step),
        ):
            return was, planned.job.tasks[subtopology]
    finally:
        log.close()


def _check_subtopology(setup: Setup, stages: Plan, number: int, partitions: int) -> tuple[str, ...]:
    """Returns the internal topics of a sub-topology. Raises an error if their number of partitions cannot change."""
    if partitions < 1:
        raise ValueError(f"a sub-topology needs at least one partition, not {partitions}")
    stage = stages.stages.get(number)
    if stage is None:
        listed = ", ".join(map(str, stages.stages))
        raise TopologyError(f"there is no sub-topology {number} (there are: {listed}); `headrace topology` shows them")
    if stage.topics or stage.patterns:
        first = next(iter((*stage.topics, *stage.patterns)))
        raise TopologyError(
            f"sub-topology {number} reads {first} from the log, and has a task for each of its partitions: give the "
            f"topic more partitions, and the application takes them up while it runs"
        )
    fixed = [topic for topic in stage.inputs if setup.graph.internal_topics[topic].partitions not in (None, partitions)]
    if fixed:
        count = setup.graph.internal_topics[fixed[0]].partitions
        raise TopologyError(
            f"the program says repartition(partitions={count}) for {fixed[0]}: change it to {partitions} there, and "
            "start the application; its state is divided at the start"
        )
    return stage.inputs
