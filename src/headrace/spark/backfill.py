"""Fills new stores from history: runs the part of the topology that leads to them, over the records read so far.

    describe_history(log, graph, ledger, …)    what the plan says of a store: how many records, and since when
    make_backfill(setup, planned, …)           the function that a coordinator calls at the takeover

The part runs as an application of its own inside the takeover, with the ordinary slots, in a checkpoint of its own
(`checkpoint.backfill_checkpoint`), and with a log that discards what it writes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.checkpoint.backfill_checkpoint import (
    Backfill,
    FilledStores,
    Progress,
    Ranges,
    backfill_address,
    begin_backfill,
    check_rows_in_flight,
    discard_backfill,
    find_ranges,
    form_of_part,
)
from headrace.checkpoint.change_plan import ChangePlan
from headrace.checkpoint.fingerprint import Fingerprint
from headrace.checkpoint.ledger import Ledger
from headrace.checkpoint.recovery import recover_ledger
from headrace.checkpoint.storage import open_storage
from headrace.directories import state_directory
from headrace.errors import StageRerunError, StreamsError, summarize
from headrace.log.open import open_log
from headrace.log.protocol import Item, Log
from headrace.model.ids import TopicPartition
from headrace.query.metrics import NodeIndex
from headrace.spark.application_state import QueryStoppedError
from headrace.spark.job import BACKFILL_STATE, PartOfRun, Setup, remove_state
from headrace.spark.stats import ApplicationStats
from headrace.topology.ancestry import Ancestry, keep_ancestors
from headrace.topology.graph import Graph

if TYPE_CHECKING:
    from headrace.spark.job_planner import PlannedJob
    from headrace.spark.run import Run

_log = logging.getLogger(__name__)
_LOOK = 0.1  # seconds between two looks at the progress
_RERUNS = 5  # runs that Spark may end, before the backfill fails
_NO_SHARES = 1 << 62  # bytes from which on a batch is delivered in shares: never


class DiscardingLog:
    """A log that is only read: it remembers the number of the last delivery, and discards records and positions."""

    def __init__(self, log: Log) -> None:
        self._log, self._last = log, -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def begin_delivery(self, application: str, number: int, items: Sequence[Item]) -> Callable[[], None]:
        self._last = number
        return lambda: None

    def deliver(self, application: str, number: int, items: Sequence[Item]) -> bool:
        self._last = number
        return True

    def append(self, items: Sequence[Item], **_options: Any) -> list[int]:
        return [0] * len(items)

    def delivered(self, application: str) -> int:
        return self._last

    def mark_delivered(self, application: str, number: int | None) -> None:
        self._last = -1 if number is None else number

    def committed(self, group: str) -> dict[TopicPartition, int]:
        return {}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], **_options: Any) -> None:
        pass


# ------------------------------------------------------------------------------------------------------- what to read
def describe_history(log: Log, part: Ancestry, positions: Mapping[TopicPartition, int]) -> str | None:
    """Says what a store can be filled from: the records that the log still has, and since when; None if it has none.

    `positions` are those at which the application continues.
    """
    existing = part.topics & log.topics().keys()  # the application creates the others when it starts
    ranges = find_ranges(log.extents(sorted(existing)), positions)
    topics = sorted({at.topic for at in ranges.stops})
    if not ranges.records:
        return None
    text = f"{ranges.records:,} records of {', '.join(topics)}"
    cut = [at for at, start in ranges.starts.items() if start > 0 and ranges.stops[at] > 0]
    if not cut:
        return f"{text}, from the first one"
    since = [found for at in cut if (found := _first_time(log, at, ranges)) is not None]
    if not since:
        return f"{text}: all others are no longer in the log"
    moment = datetime.fromtimestamp(max(since) / 1000, UTC).isoformat(timespec="seconds")
    return f"{text}, complete only from {moment} on: earlier ones are no longer in the log"


def _first_time(log: Log, at: TopicPartition, ranges: Ranges) -> int | None:
    """Returns the time of the first record that a partition still has."""
    start, stop = ranges.starts[at], ranges.stops[at]
    for chunk in log.read(at, start, stop) if start < stop else ():
        for _, _, _, timestamp, _ in chunk.rows():
            return timestamp
    return None


# ------------------------------------------------------------------------------------------------------------ the run
def make_backfill(setup: Setup, planned: PlannedJob, topics: Collection[str], open_run: Callable[..., Run]) -> Backfill:
    """Returns the function that fills the new stores of an application, which reads `topics`."""

    def fill(
        plan: ChangePlan, ledger: Ledger, positions: Mapping[TopicPartition, int], renew: Callable[[], None]
    ) -> FilledStores:
        part = keep_ancestors(setup.graph, plan.fillable, topics, planned.job.partitions)
        checkpoint = open_storage(setup.checkpoint)
        check_rows_in_flight(checkpoint, ledger, plan, part.graph.internal_topics)
        discard_backfill(setup.checkpoint)
        with closing(open_log(setup.log, setup.config.client_settings)) as log:
            ranges = find_ranges(log.extents(sorted(part.topics)), positions)
            for at, start in sorted(ranges.starts.items()):
                if start > 0:
                    _log.warning("the log has no records of %s before offset %d: the backfill lacks them", at, start)
            ids = {topic: log.topic(topic).id for topic in sorted({at.topic for at in ranges.stops})}
        storage = open_storage(backfill_address(setup.checkpoint))
        form = form_of_part(part, planned.fingerprint)
        begin_backfill(storage, setup.application_id, form, ids, ranges)
        stores = tuple(sorted(plan.fillable))
        _log.info("%s is filled from %d records of %s", ", ".join(stores), ranges.records, ", ".join(ids))
        _run(_make_setup(setup, part.graph, form), ranges, stores, renew, open_run)
        numbers = {whole: number for number, whole in part.numbers.items()}
        return FilledStores(storage, recover_ledger(storage, 1), numbers, plan.fillable)

    return fill


def _make_setup(setup: Setup, graph: Graph, form: Fingerprint) -> Setup:
    return replace(
        setup,
        graph=graph,
        config=replace(setup.config, delivery_job_min_bytes=_NO_SHARES),
        checkpoint=backfill_address(setup.checkpoint),
        backfill=False,
        starts={},
        part=PartOfRun({shape.number: shape.tasks for shape in form.groups}),
    )


def _run(
    setup: Setup, ranges: Ranges, stores: tuple[str, ...], renew: Callable[[], None], open_run: Callable[..., Run]
) -> None:
    """Runs the part of the topology until it has read its ranges."""
    dead_letters = setup.config.errors_dead_letter_queue_topic_name
    stats = ApplicationStats(NodeIndex(setup.graph, setup.application_id), dead_letters)
    log = DiscardingLog(open_log(setup.log, setup.config.client_settings))
    reruns = 0
    try:
        while True:
            try:
                _run_once(setup, ranges, stores, renew, lambda: open_run(setup, stats, log=log))
            except (StageRerunError, QueryStoppedError) as error:
                reruns += 1
                if reruns > _RERUNS:
                    raise
                _log.warning("%s", summarize(error, with_values=setup.config.log_record_values))
            else:
                return
    finally:
        log.close()
        remove_state(state_directory(setup.state_dir), setup.application_id, suffix=BACKFILL_STATE)


def _run_once(
    setup: Setup, ranges: Ranges, stores: tuple[str, ...], renew: Callable[[], None], open_run: Callable[[], Run]
) -> None:
    run = open_run()
    try:
        while True:
            positions = run.coordinator.ledger.positions
            read = sum(max(0, min(positions.get(at, 0), stop) - ranges.starts[at]) for at, stop in ranges.stops.items())
            setup.on_backfill(Progress(stores, read, ranges.records))
            renew()
            if run.wait(run.is_settled, _LOOK):
                break
            run.look()  # raises errors; the application itself looks for changed topics after the backfill
        if run.coordinator.ledger.carried:
            raise StreamsError("the backfill has ended with rows in flight: start the application again")
    finally:
        run.close()
    setup.on_backfill(Progress(stores, ranges.records, ranges.records, is_done=True))
