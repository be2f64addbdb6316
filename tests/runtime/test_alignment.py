"""A task with several inputs under backlog gives what the records would have given in the order of their times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace import StreamsBuilder, serde
from headrace.config import Config
from headrace.model.ids import TaskId, TopicPartition
from headrace.runtime.rows import Input, Inputs, Row, batch_rows
from headrace.runtime.task import Task, TaskEnvironment
from headrace.state.engine import MemoryEngine, Version

USERS, VIEWS = TopicPartition("users", 0), TopicPartition("views", 0)


def task() -> Task:
    builder = StreamsBuilder()
    users = builder.table("users", key=serde.STRING, value=serde.STRING)
    views = builder.stream("views", key=serde.STRING, value=serde.STRING)
    views.left_join(users, lambda view, user: f"{view}:{user}").to("out", key=serde.STRING, value=serde.STRING)
    graph = builder.build().graph()
    config = Config.of({"application.id": "a", "statestore.cache.max.bytes": 0})
    return Task(TaskId(0, 0), graph, list(graph.nodes), MemoryEngine(), TaskEnvironment(config, {}), clock=0)


def rows(topic: str, times: list[int]) -> list[Row]:
    return [(topic, 0, i, b"k", b"%s%d" % (topic[:1].encode(), i), t, (), (i,)) for i, t in enumerate(sorted(times))]


def input_of(rows: list[Row], *, more: bool) -> Input:
    return Input(batch_rows(rows), rows[-1][2] + 1 if rows else 0, more)


def drained(inputs: dict[TopicPartition, list[Row]], sizes: list[int]) -> list[bytes | None]:
    """All that comes out when batch after batch takes at most so many rows of each input."""
    running, at, out = task(), dict.fromkeys(inputs, 0), []
    for number in range(1, 1000):
        size = sizes[number % len(sizes)]
        left = {tp: all_[at[tp] :] for tp, all_ in inputs.items()}
        if not any(left.values()):
            return out
        given = {tp: input_of(some[:size], more=len(some) > size) for tp, some in left.items() if some}
        result = running.run(Inputs(given), clock=0, version=Version(number, "t"))
        assert any(end > at[tp] for tp, end in result.positions.items()), "a batch over a backlog makes progress"
        at |= result.positions
        out += [output[3] for output in result.outputs]
    raise AssertionError("the backlog is never drained")


@given(
    st.lists(st.integers(0, 50), max_size=30).map(lambda times: [2 * t for t in times]),
    st.lists(st.integers(0, 50), max_size=30).map(lambda times: [2 * t + 1 for t in times]),
    st.lists(st.integers(1, 7), min_size=1, max_size=4),
)
def test_a_backlog_gives_what_the_records_give_in_the_order_of_their_times(
    users: list[int], views: list[int], sizes: list[int]
):
    inputs = {USERS: rows("users", users), VIEWS: rows("views", views)}
    running, slowly = task(), []
    for number, row in enumerate(sorted([*inputs[USERS], *inputs[VIEWS]], key=lambda row: row[5])):
        one = {TopicPartition(row[0], 0): input_of([row], more=False)}
        slowly += running.run(Inputs(one), clock=0, version=Version(number, "t")).outputs
    assert drained(inputs, sizes) == [output[3] for output in slowly]


def test_an_input_that_is_used_up_though_the_log_holds_more_stops_the_others():
    #  users   0 ............ (more)
    #  views   5   9              only the record at 0 may go: the next user may be of time 1
    inputs = {
        USERS: input_of(rows("users", [0]), more=True),
        VIEWS: input_of(rows("views", [5, 9]), more=False),
    }
    result = task().run(Inputs(inputs), clock=0, version=Version(1, "t"))
    assert result.positions == {USERS: 1, VIEWS: 0}
    assert not result.outputs


def test_a_row_that_is_left_out_counts_as_consumed():
    running = task()
    bad: Row = ("views", 0, 0, b"k", b"v", -1, (), (0,))
    builder = StreamsBuilder()
    builder.stream("users").to("out")
    builder.stream("views", key=serde.STRING, value=serde.STRING, timestamp=lambda record, _: record.timestamp).to(
        "out"
    )
    graph = builder.build().graph()
    config = Config.of({"application.id": "a"})
    running = Task(TaskId(0, 0), graph, list(graph.nodes), MemoryEngine(), TaskEnvironment(config, {}), clock=0)
    for number, more in enumerate([{}, {USERS: input_of([], more=False)}]):
        inputs = {VIEWS: input_of([bad], more=False), **more}
        result = running.run(Inputs(inputs), clock=0, version=Version(number, "t"))
        assert result.positions[VIEWS] == 1
        assert result.dropped == {"negative timestamp": 1}
