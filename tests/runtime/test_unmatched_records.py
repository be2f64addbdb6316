"""Records of an outer join without a partner: when a task emits them, and what it stores of them."""

import pytest

from headrace import JoinWindows, StreamsBuilder, StreamsError, serde
from headrace.config import Config
from headrace.model.ids import TaskId
from headrace.runtime.rows import Inputs, batch_rows
from headrace.runtime.task import Task, TaskEnvironment
from headrace.state.engine import MemoryEngine, Version
from headrace.topology.nodes import StreamJoin

INTERVAL = 1000


class Join:
    """A left join of two streams within 10 ms in one task."""

    def __init__(self) -> None:
        builder = StreamsBuilder()
        left = builder.stream("left", key=serde.STRING, value=serde.STRING)
        right = builder.stream("right", key=serde.STRING, value=serde.STRING)
        joined = left.left_join(right, lambda one, other: f"{one}+{other}", windows=JoinWindows.of(10))
        joined.to("out", key=serde.STRING, value=serde.STRING)
        self.graph, self.engine = builder.build().graph(), MemoryEngine()
        self.number = self.offset = 0
        self.open()

    def open(self) -> None:
        config = Config.of({"application.id": "app", "emit.interval.ms": INTERVAL})
        around = TaskEnvironment(config, {})
        self.task = Task(TaskId(0, 0), self.graph, list(self.graph.nodes), self.engine, around, clock=0)

    def run(self, clock: int, *records: tuple[str, str, int]) -> list[str]:
        """Runs a batch of (topic, value, timestamp), all with the same key; returns the values that come out."""
        self.number += 1
        rows = [
            (topic, 0, offset, b"k", value.encode(), timestamp, (), (timestamp, topic, 0, offset))
            for offset, (topic, value, timestamp) in enumerate(records, self.offset)
        ]
        self.offset += len(rows)
        result = self.task.run(Inputs(received=batch_rows(rows)), clock=clock, version=Version(self.number, "t"))
        return [(output[3] or b"").decode() for output in result.outputs]

    @property
    def waiting(self) -> int:
        """The number of unmatched records in the committed state."""
        (store,) = {node.outer_store for node in self.graph.nodes.values() if isinstance(node, StreamJoin)}
        return self.task.state.table(store or "").count()


def test_a_batch_that_emits_lets_out_all_that_expire_up_to_its_end():
    join = Join()
    assert join.run(5000, ("left", "a", 0), ("left", "b", 20), ("left", "c", 40)) == ["a+None", "b+None"]
    assert join.waiting == 1


def test_between_two_emissions_the_interval_passes():
    join = Join()
    assert join.run(5000, ("left", "a", 0), ("left", "b", 20)) == ["a+None"]
    assert join.run(5500, ("left", "c", 40), ("left", "d", 60)) == []
    assert join.task.next_tick == 5000 + INTERVAL
    assert join.run(5000 + INTERVAL) == ["b+None", "c+None"]
    assert join.task.next_tick is None


def test_records_that_wait_survive_a_restart_and_find_partners():
    join = Join()
    assert join.run(5000, ("left", "a", 0), ("left", "b", 0), ("left", "c", 5)) == []
    assert join.waiting == 2  # a and b have one place
    join.open()
    assert join.run(5001, ("right", "r", 12)) == ["c+r"]
    assert join.waiting == 1
    assert join.run(7000, ("left", "d", 40)) == ["a+None", "b+None"]


def test_a_record_that_finds_its_partner_in_the_same_batch_is_never_stored():
    join = Join()
    assert join.run(5000, ("left", "a", 0), ("right", "r", 3)) == ["a+r"]
    assert join.waiting == 0


def test_a_batch_that_fails_leaves_nothing_behind():
    join = Join()
    with pytest.raises(StreamsError):
        join.run(5000, ("left", "a", 0), ("left", "without a time", -1))
    assert join.run(5001, ("left", "b", 40)) == []
    assert join.waiting == 1
