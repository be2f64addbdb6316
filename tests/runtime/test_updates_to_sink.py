"""Updates of a table that go to a sink at once: the same records, in the same order, as one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from headrace import KStream, KTable, Materialized, SessionWindows, SlidingWindows, StreamsBuilder, TimeWindows, serde
from headrace.config import Config
from headrace.log.protocol import Records
from headrace.model.ids import TaskId, TopicPartition
from headrace.runtime.environment import Result
from headrace.runtime.operators import relay
from headrace.runtime.rows import Input, Inputs, PartitionBatch
from headrace.runtime.task import Task, TaskEnvironment
from headrace.state.engine import MemoryEngine, Version
from tests.runtime.streams import TEXTS

Event = tuple[str, int, str | None]  # key, timestamp and value
PARTITIONS = 7


def encode(text: str) -> bytes:
    if "!" in text:
        raise ValueError("this text cannot be written")
    return text.encode()


def encode_key(text: str) -> bytes:
    if text == "d":
        raise ValueError("this key cannot be written")
    return text.encode()


KEY = serde.serde_of(encode_key, bytes.decode, name="key", immutable=True)
TEXT = serde.serde_of(encode, bytes.decode, name="text", immutable=True)
STORE = Materialized("texts", **TEXTS)
HOPPING = TimeWindows.of(10, advance=5, grace=30)


def append(key: str, value: str | None, so_far: str) -> str | None:
    """Collects letters; `-` deletes what was collected. Aggregates in windows get null, too."""
    return None if value == "-" else so_far + (value or "")


def merge(key: str, left: str, right: str) -> str:
    return left + right


def latest(stream: KStream) -> KTable:
    return stream.to_table(store=STORE)


def collected(stream: KStream) -> KTable:
    return stream.group_by_key().aggregate(str, append, store=STORE)


def counted(stream: KStream) -> KTable:
    return stream.group_by_key().count()


def windowed(stream: KStream) -> KTable:
    return stream.group_by_key().windowed_by(HOPPING).aggregate(str, append, store=STORE)


def sliding(stream: KStream) -> KTable:
    windows = SlidingWindows.of(10, grace=30)
    return stream.group_by_key().windowed_by(windows).aggregate(str, append, store=STORE)


def sessions(stream: KStream) -> KTable:
    windows = SessionWindows.of(5, grace=30)
    return stream.group_by_key().windowed_by(windows).aggregate(str, append, merger=merge, store=STORE)


SERDES: dict[Callable[[KStream], KTable], tuple[Any, Any]] = {  # of keys and values
    latest: (KEY, TEXT),
    collected: (KEY, TEXT),
    counted: (KEY, serde.LONG),
    windowed: (serde.windowed(KEY, 10), TEXT),
    sliding: (serde.windowed(KEY, 10), TEXT),
    sessions: (serde.session_windowed(KEY), TEXT),
}


def run(program: Callable[[KStream], KTable], batches: Sequence[Sequence[Event]], *, at_once: bool) -> list[Result]:
    """The results of the batches. A `peek` before the sink makes the table forward its updates one by one."""
    builder = StreamsBuilder()
    updates, (key, value) = program(builder.stream("in", **TEXTS)).to_stream(), SERDES[program]
    (updates if at_once else updates.peek(lambda key, value: None)).to("out", key=key, value=value)
    graph = builder.build().graph()
    config = Config.of({"application.id": "app", "production.exception.handler": "continue"})
    assert any(relay.find_sink(graph, name) for name in graph.nodes) == at_once
    around = TaskEnvironment(config, {}, lambda topic: PARTITIONS)
    task = Task(TaskId(0, 0), graph, list(graph.nodes), MemoryEngine(), around, clock=0)
    results: list[Result] = []
    for number, events in enumerate(batches):
        at, offsets = TopicPartition("in", 0), range(1000 * number, 1000 * number + len(events))
        records = Records(
            [key.encode() for key, _, _ in events],
            [None if value is None else value.encode() for _, _, value in events],
            [time for _, time, _ in events],
            [(("offset", b"%d" % offset),) for offset in offsets],
        )
        rows = [PartitionBatch(at, offsets, records)] if events else []
        results.append(task.run(Inputs({at: Input(rows, offsets.stop)}), clock=0, version=Version(number + 1, "a")))
    return results


events = some.tuples(
    some.sampled_from("aabbcd"), some.integers(0, 60), some.sampled_from(["x", "y", "z", "-", "!", None])
)


@pytest.mark.parametrize("program", SERDES, ids=lambda program: program.__name__)
@given(batches=some.lists(some.lists(events, max_size=12), min_size=1, max_size=4))
def test_what_goes_to_a_sink_at_once_is_what_goes_there_one_by_one(
    program: Callable[[KStream], KTable], batches: Sequence[Sequence[Event]]
):
    at_once, one_by_one = run(program, batches, at_once=True), run(program, batches, at_once=False)
    assert [result.outputs for result in at_once] == [result.outputs for result in one_by_one]
    assert [result.dropped for result in at_once] == [result.dropped for result in one_by_one]
    assert [result.delta.changes for result in at_once] == [result.delta.changes for result in one_by_one]


@pytest.mark.parametrize("program", SERDES, ids=lambda program: program.__name__)
def test_many_updates_go_to_a_sink_without_a_call_for_each(
    program: Callable[[KStream], KTable], monkeypatch: pytest.MonkeyPatch
):
    batch = [(f"k{number}", number % 3, "x") for number in range(1000)]
    found = run(program, [batch], at_once=True)
    assert len({key for result in found for _, _, key, *_ in result.outputs}) >= 1000

    def one_by_one(*_: Any) -> Any:
        raise AssertionError("an update was forwarded alone")

    monkeypatch.setattr("headrace.runtime.tables.Cache._emit_all", one_by_one)
    assert [result.outputs for result in run(program, [batch], at_once=True)] == [result.outputs for result in found]
