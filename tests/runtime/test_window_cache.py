"""Windows are updated in memory during a batch: what comes out and what is stored is as if each update were stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from headrace import KTable, Materialized, Record, StreamsBuilder, TimeWindows, ValueAndTimestamp, Windowed, serde
from headrace.config import Config
from headrace.errors import ProcessingError
from headrace.log.protocol import Records
from headrace.model.ids import TaskId, TopicPartition
from headrace.runtime.rows import Input, Inputs, PartitionBatch
from headrace.runtime.task import Task, TaskEnvironment
from headrace.state.engine import MemoryEngine, Version
from tests.runtime.streams import TEXTS

Event = tuple[str, int, str]  # key, timestamp, value
Batches = Sequence[Sequence[Event]]
Entry = tuple[Windowed, Any, int]  # key, value and timestamp

WINDOWED_KEY = serde.windowed(serde.STRING, 10)


def append(key: str, value: str, so_far: str) -> str | None:
    """Collects letters; `-` deletes the window, `!` fails."""
    if value == "!":
        raise ValueError("this letter is not allowed")
    return None if value == "-" else so_far + value


def windowed(builder: StreamsBuilder, windows: TimeWindows) -> KTable:
    grouped = builder.stream("in", **TEXTS).group_by_key().windowed_by(windows)
    return grouped.aggregate(str, append, store=Materialized("texts", **TEXTS))


def cogrouped(builder: StreamsBuilder, windows: TimeWindows) -> KTable:
    """Two operators that update the same windows, in turn."""
    early, late = (
        builder.stream("in", **TEXTS)
        .split(name="letter-")
        .branch(lambda key, value: value < "m", name="early")
        .default_branch(name="late")
        .values()
    )
    both = early.group_by_key().cogroup(append).cogroup(late.group_by_key(), lambda key, value, so_far: value + so_far)
    return both.windowed_by(windows).aggregate(str, store=Materialized("texts", **TEXTS))


class Run:
    """One task with a window store `texts`, which runs batches of events."""

    def __init__(self, builder: StreamsBuilder, *, caching: bool, handler: str = "continue") -> None:
        graph = builder.build().graph()
        config = Config.of(
            {
                "application.id": "app",
                "statestore.cache.max.bytes": 10_000_000 if caching else 0,
                "processing.exception.handler": handler,
            }
        )
        around = TaskEnvironment(config, {}, lambda topic: 1)
        self.task = Task(TaskId(0, 0), graph, list(graph.nodes), MemoryEngine(), around, clock=0)
        self.read, self.batches = 0, 0
        self.dropped = Counter[str]()

    def __call__(self, events: Sequence[Event]) -> list[Entry]:
        """What the batch writes to the topic `out`."""
        at, offsets = TopicPartition("in", 0), range(self.read, self.read + len(events))
        records = Records(
            [key.encode() for key, _, _ in events],
            [value.encode() for _, _, value in events],
            [time for _, time, _ in events],
        )
        self.read, self.batches = self.read + len(events), self.batches + 1
        rows = [PartitionBatch(at, offsets, records)] if events else []
        result = self.task.run(Inputs({at: Input(rows, self.read)}), clock=0, version=Version(self.batches, "a"))
        self.dropped.update(result.dropped)
        return [
            (WINDOWED_KEY.decode(key), None if value is None else value.decode(), timestamp)
            for topic, _, key, value, timestamp, _, _ in result.outputs
            if topic == "out" and key is not None
        ]

    @property
    def stored(self) -> list[tuple[str, int, str]]:
        return [(key.key, key.window.start, held.value) for key, held in self.task.state.store("texts").all()]


def collapse(outputs: Sequence[Sequence[Entry]]) -> list[list[Entry]]:
    """The last update of each window in a batch, by last updates, without windows that come and go within it.

    A tombstone has no timestamp here: a cache gives it that of the record, an operator the largest one of the window.
    """
    table: dict[Windowed, Any] = {}
    collapsed: list[list[Entry]] = []
    for batch in outputs:
        last: dict[Windowed, tuple[Any, int]] = {}
        for key, value, timestamp in batch:
            last.pop(key, None)
            last[key] = (value, -1 if value is None else timestamp)
        collapsed.append(
            [(key, *change) for key, change in last.items() if change[0] is not None or table.get(key) is not None]
        )
        table |= {key: value for key, (value, _) in last.items()}
    return collapsed


events = some.tuples(some.sampled_from("abc"), some.integers(0, 60), some.sampled_from("abcxyz--!"))
batches_of_events = some.lists(some.lists(events, max_size=12), max_size=5)
definitions = some.builds(
    lambda share, grace: TimeWindows.of(10, grace=grace, advance=10 // share),
    some.integers(1, 5),
    some.integers(0, 30),
)


@given(windows=definitions, batches=batches_of_events)
@example(TimeWindows.of(10), [[("a", 1, "x"), ("b", 2, "x"), ("a", 3, "-")], [("a", 4, "y"), ("a", 5, "-")]])
@example(TimeWindows.of(10, advance=2, grace=5), [[("a", 20, "x"), ("b", 3, "x"), ("a", 15, "y"), ("a", 21, "!")]])
def test_a_batch_gives_the_last_of_what_its_records_give(windows: TimeWindows, batches: Batches):
    check_batches(windowed, windows, batches)


@given(batches=batches_of_events)
def test_a_batch_of_a_cogroup_gives_the_last_of_what_its_records_give(batches: Batches):
    # Each operator has a stream time of its own, the store has one: with a short grace it drops what is not late.
    check_batches(cogrouped, TimeWindows.of(10, grace=100, advance=5), batches)


def check_batches(
    program: Callable[[StreamsBuilder, TimeWindows], KTable], windows: TimeWindows, batches: Batches
) -> None:
    runs: list[Run] = []
    for caching in (False, True):
        builder = StreamsBuilder()
        program(builder, windows).to_stream().to("out", key=WINDOWED_KEY, value=serde.STRING)
        runs.append(Run(builder, caching=caching))
    plain, cached = runs
    outputs = [plain(batch) for batch in batches]
    cached_outputs = [
        [(key, value, -1 if value is None else timestamp) for key, value, timestamp in cached(batch)]
        for batch in batches
    ]
    assert cached_outputs == collapse(outputs)
    assert cached.dropped == plain.dropped
    assert set(cached.stored) >= set(plain.stored)  # a cache shows expired windows longer


class Look:
    """Writes down the store when the letter is `?`, and puts a window when it is `+`."""

    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    def init(self, context: Any) -> None:
        self.store = context.store("texts")

    def process(self, record: Record[str, str]) -> None:
        if record.value == "?":
            self.seen.append(" ".join(f"{key.key}{key.window.start}{held.value}" for key, held in self.store.all()))
        elif record.value == "+":
            self.store.put(record.key, ValueAndTimestamp("+", record.timestamp), record.timestamp)


def with_a_processor(*, caching: bool) -> tuple[Run, list[str]]:
    """A task whose processor uses the store of the aggregate."""
    builder = StreamsBuilder()
    texts = builder.stream("in", **TEXTS)
    letters = texts.filter(lambda key, value: value not in "?+").group_by_key().windowed_by(TimeWindows.of(10))
    letters.aggregate(str, append, store=Materialized("texts", **TEXTS))
    seen: list[str] = []
    texts.process(lambda: Look(seen), "texts")
    return Run(builder, caching=caching), seen


@pytest.mark.parametrize("caching", [False, True])
def test_a_processor_sees_the_updates_of_its_batch(caching: bool):
    run, seen = with_a_processor(caching=caching)
    run([("a", 1, "x"), ("a", 2, "y"), ("a", 3, "?"), ("b", 4, "z"), ("a", 5, "w"), ("a", 6, "?")])
    assert seen == ["a0xy", "a0xyw b0z"]
    assert run.stored == [("a", 0, "xyw"), ("b", 0, "z")]


@pytest.mark.parametrize("caching", [False, True])
def test_an_update_adds_to_what_a_processor_has_put_in_its_batch(caching: bool):
    run, _ = with_a_processor(caching=caching)
    run([("a", 1, "x"), ("a", 0, "+"), ("a", 2, "y")])
    assert run.stored == [("a", 0, "+y")]


def test_a_window_that_a_processor_has_let_expire_is_updated_while_it_is_on_time():
    # The processor moves the clock of the store, but not the stream time of the aggregate. Kafka Streams' cache keeps
    # the window, though its store drops it.
    run, _ = with_a_processor(caching=True)
    run([("a", 1, "x"), ("a", 500_000, "+"), ("a", 2, "y")])
    assert run.stored == [("a", 0, "xy"), ("a", 500_000, "+")]


def test_a_failed_batch_leaves_nothing_behind():
    builder = StreamsBuilder()
    windowed(builder, TimeWindows.of(10)).to_stream().to("out", key=WINDOWED_KEY, value=serde.STRING)
    run = Run(builder, caching=True, handler="fail")
    run([("a", 1, "x")])
    with pytest.raises(ProcessingError, match="this letter is not allowed"):
        run([("a", 2, "y"), ("a", 3, "!")])
    assert run.stored == [("a", 0, "x")]
    assert [value for _, value, _ in run([("a", 4, "z")])] == ["xz"]
