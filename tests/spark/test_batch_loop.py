"""The loop of batches as a state machine: no thread, no socket, and a clock that the tests turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Application, StreamsBuilder, serde
from headrace.checkpoint.coordinator import CommitOptions, Coordinator
from headrace.checkpoint.local_copies import LocalCopies
from headrace.checkpoint.storage import open_storage
from headrace.log.open import open_log
from headrace.log.protocol import Records
from headrace.model.ids import TaskId, TopicPartition
from headrace.query.metrics import NodeIndex
from headrace.runtime.failures import Place
from headrace.spark.application_state import QueryStoppedError
from headrace.spark.batch_commits import BatchCommits
from headrace.spark.batch_loop import MAX_ATTEMPTS, BatchLoop
from headrace.spark.batch_planner import Planner
from headrace.spark.job_planner import plan_job
from headrace.spark.slot_messages import AbortBatch, AtRecord, BatchBroken, BatchDone, RunBatch
from headrace.spark.slot_runner import SlotRunner
from headrace.spark.stats import ApplicationStats
from headrace.spark.topics import first_positions, prepare_topics

REGISTRATION = 11  # of the only slot


class StoppedClock:
    def now(self) -> int:
        return 5


class OneSlot:
    """One slot that runs what it is told, when the test says so; and the world around the loop."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        builder = StreamsBuilder()
        counts = builder.stream("lines", key=serde.STRING, value=serde.STRING).group_by_key().count()
        counts.to_stream().to("counts", key=serde.STRING, value=serde.LONG)
        app = Application(
            "loop", builder.build(), f"file:{folder}/log", checkpoint=str(folder / "checkpoint"), **settings
        )
        self.log, storage = open_log(app.setup.log), open_storage(app.setup.checkpoint)
        self.log.create_topic("lines", 1)
        self.log.create_topic("counts", 1)
        topics = prepare_topics(self.log, app.setup.graph, app.setup.config)
        planned = plan_job(app.setup, self.log, storage, topics)
        self.coordinator = Coordinator.open(
            storage, self.log, "loop", planned.fingerprint,
            topics={topic: self.log.topic(topic).id for topic in topics},
            positions=first_positions(self.log, app.setup.graph, app.setup.config, topics),
            options=CommitOptions(max_undelivered=0, background=False),
        )  # fmt: skip
        self.job = planned.job.with_checkpoint(self.coordinator.ledger, 1)
        self._runner = SlotRunner(self.job, LocalCopies(str(folder / "state"), self.job.checkpoint_id, locks=False))
        self.now, self.sent, self.committed = 100.0, list[Any](), list[int]()
        self.delivery_wait, self.is_there, self.unreached = 0.0, True, list[tuple[int, int, int]]()
        self.stats, clock = ApplicationStats(NodeIndex(self.job.graph, "loop"), None), StoppedClock()
        self.commits = BatchCommits(self.job, self.coordinator, self.stats, clock=clock, seconds=lambda: self.now)
        self.loop = BatchLoop(
            self.job,
            Planner(self.job, self.log, seconds=lambda: self.now),
            self.commits,
            self,
            clock=clock,
            seconds=lambda: self.now,
            estimate_wait=lambda lead: self.delivery_wait,
            on_commit=self.committed.append,
        )

    # ------------------------------------------------------------------------------------------------------ as Slots
    @property
    def layout(self) -> dict[int, int]:
        return {0: REGISTRATION}

    def lay_out(self, tasks: list[TaskId]) -> dict[TaskId, int] | None:
        return dict.fromkeys(tasks, 0) if self.is_there else None

    def is_live(self, registration: int) -> bool:
        return self.is_there

    def send(self, registration: int, message: Any) -> None:
        assert registration == REGISTRATION
        self.sent.append(message)

    def replace_unreached(self, reporter: int, peer: int, attempt: int) -> None:
        self.unreached.append((reporter, peer, attempt))

    # ------------------------------------------------------------------------------------------------- what tests do
    def produce(self, *keys: str) -> None:
        records = Records([key.encode() for key in keys], [b"v"] * len(keys), [5] * len(keys))
        self.log.append([(TopicPartition("lines", 0), records)])

    def order(self) -> RunBatch:
        """The last message, which has orders."""
        assert isinstance(self.sent[-1], RunBatch)
        return self.sent[-1]

    def run(self, order: RunBatch) -> BatchDone:
        messages = [raw for level in order.levels for _, raw in self._runner.handle(level, [])]
        return BatchDone(order.attempt, messages, [1.0] * len(order.levels), [0.0] * len(order.levels))

    def close(self) -> None:
        self._runner.close()
        self.coordinator.close()
        self.log.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[OneSlot]:
    made = OneSlot(tmp_path)
    yield made
    made.close()


def advance_to_orders(world: OneSlot) -> RunBatch:
    if not world.loop.is_running:
        world.loop.advance()
    assert world.loop.is_running
    return world.order()


def fail_attempt(world: OneSlot) -> None:
    order = advance_to_orders(world)
    world.loop.handle(REGISTRATION, BatchBroken(order.attempt, "the log is away\nline 2", None))
    world.loop.advance()


def counts(world: OneSlot) -> list[tuple[bytes | None, int]]:
    rows = [row for chunk in world.log.read(TopicPartition("counts", 0), 0) for row in chunk.rows()]
    return [(key, int.from_bytes(value or b"", "big")) for _, key, value, *_ in rows]


def test_a_batch_is_planned_run_and_committed(world: OneSlot):
    assert world.loop.advance().for_records
    world.produce("a", "b", "a")
    order = advance_to_orders(world)
    assert world.loop.advance().seconds > 1000  # nothing to do before the slot answers
    world.loop.handle(REGISTRATION, world.run(order))
    assert world.loop.advance() == (0.0, False)
    assert world.committed == [world.coordinator.ledger.number]
    assert sorted(counts(world)) == [(b"a", 2), (b"b", 1)]
    assert world.loop.advance().for_records


def test_a_committed_batch_that_is_not_counted_yet_is_not_taken_for_the_end(world: OneSlot, monkeypatch: Any):
    seen, add = list[bool](), world.stats.add
    monkeypatch.setattr(
        world.stats, "add", lambda *given: seen.append(world.commits.has_sent_stream_time) or add(*given)
    )
    world.produce("a")
    world.loop.handle(REGISTRATION, world.run(advance_to_orders(world)))
    world.loop.advance()
    assert seen == [False]
    assert world.commits.has_sent_stream_time


def test_nothing_begins_before_the_slots_are_there(world: OneSlot):
    world.produce("a")
    world.is_there = False
    assert 0 < world.loop.advance().seconds < 1
    assert not world.loop.is_running
    assert not world.loop.is_ready
    world.is_there = True
    advance_to_orders(world)
    assert world.loop.is_ready


def test_a_lost_slot_aborts_the_attempt_and_the_batch_is_planned_again_with_what_has_arrived(world: OneSlot):
    world.produce("a")
    first = advance_to_orders(world)
    done = world.run(first)
    world.loop.handle(REGISTRATION, None)
    world.produce("b")
    world.loop.advance()
    assert world.sent[-1] == AbortBatch(first.attempt)
    second = advance_to_orders(world)
    assert second.attempt == first.attempt + 1
    world.loop.handle(REGISTRATION, done)  # of the attempt that was aborted
    assert world.loop.advance().seconds > 1000
    world.loop.handle(REGISTRATION, world.run(second))
    world.loop.advance()
    assert counts(world) == [(b"a", 1), (b"b", 1)]


def test_a_slot_that_is_lost_before_its_orders_counts_as_lost(world: OneSlot):
    world.produce("a")
    world.loop.advance()
    world.loop.handle(REGISTRATION, None)
    world.loop.advance()
    world.is_live = lambda registration: False
    world.loop.advance()
    world.loop.advance()
    assert [type(message) for message in world.sent] == [RunBatch, AbortBatch, RunBatch, AbortBatch]


def test_attempts_that_fail_are_made_later_and_later_and_not_for_ever(world: OneSlot):
    world.produce("a")
    pauses = list[float]()
    for _ in range(MAX_ATTEMPTS - 1):
        fail_attempt(world)
        wait = world.loop.advance()
        pauses.append(0.0 if world.loop.is_running else wait.seconds)
        world.now += pauses[-1]
    with pytest.raises(QueryStoppedError, match=f"could not be run in {MAX_ATTEMPTS} attempts: the log is away"):
        fail_attempt(world)
    assert pauses == sorted(pauses)
    assert pauses[0] == 0.0
    assert pauses[-1] > 3 * pauses[1] > 0


def test_the_call_in_which_slots_are_lost_is_watched_and_then_fails(world: OneSlot):
    world.produce("a")
    place = Place("KSTREAM-AGGREGATE", "lines", 0, 0)
    for losses in range(3):
        order = advance_to_orders(world)
        assert order.is_watched == (losses >= 2)
        if order.is_watched:
            world.loop.handle(REGISTRATION, AtRecord(order.attempt, place))
        world.loop.handle(REGISTRATION, None)
        world.loop.advance()
        world.now += 10
    order = advance_to_orders(world)
    assert [suspect for suspect, _ in order.suspects] == [place]


def test_a_slot_that_does_not_reach_another_is_reported(world: OneSlot):
    world.produce("a")
    order = advance_to_orders(world)
    world.loop.handle(REGISTRATION, BatchBroken(order.attempt, "no route", 3))
    assert world.unreached == [(REGISTRATION, 3, order.attempt)]


def test_a_batch_waits_for_the_delivery_of_the_one_before(world: OneSlot):
    world.produce("a")
    world.delivery_wait = 0.5
    assert world.loop.advance() == (0.5, False)
    assert not world.loop.is_running
    world.delivery_wait = 0.0
    advance_to_orders(world)


def test_batches_begin_at_most_once_in_the_commit_interval(tmp_path: Path):
    world = OneSlot(tmp_path, commit_interval_ms=2000)
    world.produce("a")
    world.loop.handle(REGISTRATION, world.run(advance_to_orders(world)))
    world.loop.advance()
    world.produce("b")
    assert world.loop.advance() == (2.0, False)
    world.now += 2.5
    advance_to_orders(world)
    world.close()


def test_a_topic_that_is_deleted_while_the_loop_waits_makes_the_application_start_again(world: OneSlot):
    assert world.loop.advance().for_records
    world.log.delete_topic("lines")
    with pytest.raises(QueryStoppedError, match="'lines'"):
        world.loop.await_records()
