"""Records that are counted before the operators see them leave no other trace than those that come one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as some

from headrace import Materialized, StreamsBuilder, Topology, serde
from headrace.config import Config
from headrace.log.protocol import Chunk, Records
from headrace.model.ids import TaskId, TopicPartition
from headrace.runtime.operators.aggregate import counted_topics
from headrace.runtime.rows import Input, Inputs, PartitionBatch, batch_outputs, batch_rows, read_batches
from headrace.runtime.task import Task, TaskEnvironment
from headrace.state.engine import MemoryEngine, Version
from headrace.topology.subtopologies import plan

CONFIG = Config.of({"application.id": "app", "deserialization.exception.handler": "continue"})
LogRecord = tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes], ...]]


def by_key() -> Topology:
    builder = StreamsBuilder()
    counted = builder.stream("in", key=serde.STRING, value=serde.LONG).group_by_key().count()
    counted.to_stream().to("out", key=serde.STRING, value=serde.LONG)
    return builder.build()


def by_word() -> Topology:
    builder = StreamsBuilder()
    lines = builder.stream("in", key=serde.STRING, value=serde.STRING)
    words = lines.flat_map_values(lambda line: (line or " ").split(" ")).group_by(
        lambda _, word: word or None, key=serde.STRING, value=serde.STRING
    )
    words.count().to_stream().to("out", key=serde.STRING, value=serde.LONG)
    return builder.build()


class Seen(NamedTuple):
    """All that can be seen of a run from outside."""

    outputs: list[list[Any]]
    dropped: Counter[str]
    state: dict[TaskId, list[tuple[bytes, bytes]]]
    rows: int  # that went from task to task


def run(topology: Topology, batches: Sequence[Sequence[Sequence[LogRecord]]], *, at_once: bool) -> Seen:
    """Batches of partitions of records; `at_once`: counted in bulk and sent as counts, or row by row."""
    graph = topology.graph()
    stages = plan(graph).stages
    around = TaskEnvironment(CONFIG, {}, lambda _: 2, combines=at_once)
    tasks: dict[TaskId, Task] = {}
    seen = Seen([], Counter(), {}, 0)
    offsets = Counter[int]()
    sent = 0

    def task(number: int, partition: int) -> Task:
        id_ = TaskId(number, partition)
        if id_ not in tasks:
            tasks[id_] = Task(id_, graph, stages[number].nodes, MemoryEngine(), around, clock=0)
        return tasks[id_]

    for number, batch in enumerate(batches):
        inbox: list[PartitionBatch] = []
        outputs: list[Any] = []
        version = Version(number, "a")
        for partition, records in enumerate(batch):
            chunk = Chunk(range(offsets[partition], offsets[partition] + len(records)), Records.from_rows(records))
            offsets[partition] += len(records)
            at = TopicPartition("in", partition)
            pieces = read_batches(at, [chunk])
            if at_once:
                inputs = Inputs({at: Input(pieces, offsets[partition])})
            else:  # one batch for each row: none of them is counted
                inputs = Inputs(carried=[one for piece in pieces for row in piece.rows() for one in batch_rows([row])])
            result = task(0, partition).run(inputs, clock=0, version=version)
            seen.dropped.update(result.dropped)
            if len(stages) == 1:
                outputs += [(topic, *record) for topic, _, *record, _ in result.outputs]
                continue
            for rows, are_counts in ((result.outputs, False), (result.counts, True)):
                if rows:
                    to = TopicPartition(rows[0][0], 0)
                    inbox.append(batch_outputs(to, rows, range(len(rows)), are_counts=are_counts))
        if len(stages) > 1:
            sent += sum(map(len, inbox))
            result = task(1, 0).run(Inputs(received=inbox), clock=0, version=version)
            seen.dropped.update(result.dropped)
            outputs += [(topic, *record) for topic, _, *record, _ in result.outputs]
        seen.outputs.append(outputs)
    state = {id_: list(task.state.engine.scan(b"", None)) for id_, task in tasks.items()}
    return seen._replace(state=state, rows=sent)


def records(values: some.SearchStrategy[bytes | None]) -> some.SearchStrategy[list[LogRecord]]:
    headers = some.sampled_from([(), (("h", b"1"),)])
    keys = some.sampled_from([b"a", b"b", b"c", b"", b"\xff", None])
    return some.lists(some.tuples(keys, values, some.integers(0, 50), headers), max_size=12)


def batches(values: some.SearchStrategy[bytes | None]) -> some.SearchStrategy[list[list[list[LogRecord]]]]:
    return some.lists(some.lists(records(values), min_size=2, max_size=2), min_size=1, max_size=3)


LONGS = some.sampled_from([serde.LONG.encode(1), serde.LONG.encode(2), b"bad", None])
LINES = some.sampled_from([b"one", b"one two", b"two one two", b"three", b"", b"two  three", None])


@given(batches(LONGS))
def test_a_partition_batch_that_is_counted_leaves_what_its_records_leave(given_batches: Any) -> None:
    assert run(by_key(), given_batches, at_once=True) == run(by_key(), given_batches, at_once=False)


@given(batches(LINES))
def test_counts_that_are_sent_leave_what_the_records_leave(given_batches: Any) -> None:
    at_once, one_by_one = run(by_word(), given_batches, at_once=True), run(by_word(), given_batches, at_once=False)
    assert at_once._replace(rows=0) == one_by_one._replace(rows=0)
    assert at_once.rows <= one_by_one.rows


def test_a_key_is_sent_once_a_batch() -> None:
    lines: list[LogRecord] = [(None, b"one two one", 5, ()), (None, b"one", 3, ())]
    assert run(by_word(), [[lines]], at_once=True).rows == 2
    assert run(by_word(), [[lines]], at_once=False).rows == 4


class Watching:
    def init(self, context: Any) -> None: ...

    def process(self, record: Any) -> None: ...


@pytest.mark.parametrize(
    "change, is_counted",
    [
        (lambda words: words.count(), True),
        (lambda words: words.count(store=Materialized("s", caching=False)), False),
        (lambda words: words.reduce(lambda one, other: one + other), False),
        (lambda words: words.count().to_stream().process(Watching), False),
    ],
)
def test_records_are_counted_together_only_where_no_operator_needs_each(
    change: Callable[[Any], Any], is_counted: bool
) -> None:
    builder = StreamsBuilder()
    words = builder.stream("in").group_by(lambda _, word: word)
    change(words)
    graph = builder.build().graph()
    assert bool(counted_topics(graph, CONFIG)) is is_counted
    assert not counted_topics(graph, Config.of({"application.id": "app", "statestore.cache.max.bytes": 0}))


def test_a_counter_beside_another_source_is_told_of_every_record() -> None:
    builder = StreamsBuilder()
    counts = builder.stream("in").group_by(lambda _, word: word).count()
    builder.stream("other").join(counts, lambda left, right: (left, right)).to("out")
    assert not counted_topics(builder.build().graph(), CONFIG)
