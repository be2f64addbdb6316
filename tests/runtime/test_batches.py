"""map_values_batch and map_values_async: what functions get, in which order results come out, and what errors do."""

import asyncio
import threading
from datetime import timedelta

import pyarrow as pa
import pytest

from headrace import StreamsBuilder, StreamsError, serde
from headrace.config import Config
from headrace.log.protocol import Records
from headrace.model.ids import TaskId, TopicPartition
from headrace.runtime.rows import Input, Inputs, PartitionBatch
from headrace.runtime.task import Task, TaskEnvironment
from headrace.state.engine import MemoryEngine, Version
from headrace.testing import TopologyTestDriver


class Batches:
    """One task that gets whole batches, as on Spark: the test driver pipes records one by one."""

    def __init__(self, builder, **config):
        self.graph = builder.build().graph()
        around = TaskEnvironment(Config.of({"application.id": "test", **config}), {}, lambda topic: 1)
        self.task = Task(TaskId(0, 0), self.graph, list(self.graph.nodes), MemoryEngine(), around, clock=0)
        self.number = 0

    def run(self, topics, clock=0):
        """Runs a batch of (value, timestamp) pairs by topic; returns topic, value, timestamp and headers of outputs."""
        log = {}
        for topic, rows in topics.items():
            at = TopicPartition(topic, 0)
            values, times = zip(*rows, strict=True)
            headers = [(("n", str(n).encode()),) for n in range(len(rows))]
            records = Records([b"k"] * len(rows), [serde.LONG.encode(value) for value in values], times, headers)
            log[at] = Input([PartitionBatch(at, range(len(rows)), records)], len(rows))
        self.number += 1
        result = self.task.run(Inputs(log), clock=clock, version=Version(self.number, "a"))
        return [
            (topic, serde.LONG.decode(raw or b""), time, headers)
            for topic, _, _, raw, time, headers, _ in result.outputs
        ]


def numbers(builder, topic="in"):
    return builder.stream(topic, key=serde.BYTES, value=serde.LONG)


def values_of(outputs):
    return [value for _, value, _, _ in outputs]


def test_a_function_gets_a_list_and_keys_times_headers_and_order_stay():
    seen, builder = [], StreamsBuilder()

    def double(values):
        seen.append(values)
        return [value * 2 for value in values]

    numbers(builder).map_values_batch(double, max_records=2).to("out", value=serde.LONG)
    outputs = Batches(builder).run({"in": [(1, 10), (2, 5), (3, 30)]})
    assert seen == [[1, 2], [3]]
    assert outputs == [("out", n * 2, time, (("n", str(n - 1).encode()),)) for n, time in ((1, 10), (2, 5), (3, 30))]


def test_a_function_of_an_arrow_array():
    def double(values: pa.Array) -> pa.Array:
        return pa.array([value * 2 for value in values.to_pylist()])

    builder = StreamsBuilder()
    numbers(builder).map_values_batch(double).to("out", value=serde.LONG)
    numbers(builder, "other").map_values_batch(lambda array: array.to_numpy() + 1, arrow=True).to(
        "out", value=serde.LONG
    )
    batches = Batches(builder)
    assert values_of(batches.run({"in": [(1, 0), (2, 0)]})) == [2, 4]
    assert values_of(batches.run({"other": [(1, 0), (2, 0)]})) == [2, 3]


@pytest.mark.parametrize(
    "change, expected",
    [(lambda values: [10 // value for value in values], [2, 10]), (lambda values: values[:2] or values, [5, 0, 1])],
)
def test_if_it_raises_or_returns_too_few_the_values_are_tried_one_by_one(change, expected):
    builder = StreamsBuilder()
    numbers(builder).map_values_batch(change).to("out", value=serde.LONG)
    batches = Batches(builder, **{"processing.exception.handler": "continue"})
    assert values_of(batches.run({"in": [(5, 0), (0, 1), (1, 2)]})) == expected


def test_the_handler_gets_the_record_that_failed_and_the_default_stops():
    failed, builder = [], StreamsBuilder()
    numbers(builder).map_values_batch(lambda values: [10 // value for value in values]).to("out", value=serde.LONG)

    def handler(failure, record, error):
        failed.append((failure.offset, record.value, type(error)))
        return "continue"

    rows = [(5, 0), (0, 1), (2, 2)]
    assert values_of(Batches(builder, **{"processing.exception.handler": handler}).run({"in": rows})) == [2, 5]
    assert failed == [(1, 0, ZeroDivisionError)]
    batches = Batches(builder)
    with pytest.raises(StreamsError, match=r"KSTREAM-MAPVALUES-BATCH-0000000001 failed on in/0 at offset 1"):
        batches.run({"in": rows})
    assert values_of(batches.run({"in": [(10, 0)]})) == [1], "nothing of the failed batch is left"


def test_records_of_another_source_and_punctuations_come_in_their_turn():
    seen, builder = [], StreamsBuilder()
    numbers(builder).map_values_batch(lambda values: values).peek(lambda value: seen.append(("in", value))).merge(
        numbers(builder, "other").peek(lambda value: seen.append(("other", value)))
    ).to("out", value=serde.LONG)
    Batches(builder).run({"in": [(1, 1), (2, 2), (4, 4)], "other": [(3, 3)]})
    assert seen == [("in", 1), ("in", 2), ("other", 3), ("in", 4)]


def test_a_join_below_sees_the_table_as_of_each_record():
    builder = StreamsBuilder()
    table = builder.table("table", key=serde.BYTES, value=serde.LONG)
    numbers(builder).map_values_batch(lambda values: values).join(table, lambda left, right: left * 100 + right).to(
        "out", value=serde.LONG
    )
    outputs = Batches(builder).run({"table": [(7, 1), (8, 3)], "in": [(1, 2), (2, 4)]})
    assert values_of(outputs) == [107, 208]


def test_lookups_run_at_the_same_time_and_come_out_in_order():
    builder, room = StreamsBuilder(), threading.Barrier(3)

    async def look_up(value):
        await asyncio.to_thread(room.wait, 10)  # all three must be here
        return value + 100

    numbers(builder).map_values_async(look_up, capacity=3).to("out", value=serde.LONG)
    assert values_of(Batches(builder).run({"in": [(1, 0), (2, 0), (3, 0)]})) == [101, 102, 103]


def test_no_more_than_the_capacity_run_and_plain_functions_run_in_threads():
    builder, running, most = StreamsBuilder(), [], []

    def look_up(key, value):
        running.append(value)
        most.append(len(running))
        running.remove(value)
        return value

    numbers(builder).map_values_async(look_up, capacity=2).to("out", value=serde.LONG)
    assert values_of(Batches(builder).run({"in": [(n, 0) for n in range(20)]})) == list(range(20))
    assert max(most) <= 2


def test_lookups_by_a_part_of_the_value_are_shared_and_cached_until_they_expire():
    asked, builder = [], StreamsBuilder()

    async def look_up(tens):
        asked.append(tens)
        return tens * 1000

    found = numbers(builder).map_values_async(
        look_up, on=lambda value: value // 10, joiner=lambda value, tens: value + tens, cache=timedelta(seconds=1)
    )
    found.to("out", value=serde.LONG)
    batches = Batches(builder)
    assert values_of(batches.run({"in": [(11, 0), (12, 0), (21, 0)]}, clock=0)) == [1011, 1012, 2021]
    assert values_of(batches.run({"in": [(13, 0)]}, clock=999)) == [1013]
    assert asked == [1, 2]
    batches.run({"in": [(13, 0)]}, clock=1000)
    assert asked == [1, 2, 1]


def test_failed_calls_are_repeated_and_slow_ones_given_up():
    builder, asked = StreamsBuilder(), []

    async def look_up(value):
        asked.append(value)
        if value == 1 and asked.count(1) < 3:
            raise ConnectionError("away")
        if value == 2:
            await asyncio.sleep(60)
        return value

    numbers(builder).map_values_async(look_up, timeout=200, retry=2).to("out", value=serde.LONG)
    errors = []

    def handler(failure, record, error):
        errors.append((record.value, str(error)))
        return "continue"

    outputs = Batches(builder, **{"processing.exception.handler": handler}).run({"in": [(1, 0), (2, 0), (3, 0)]})
    assert values_of(outputs) == [1, 3]
    assert errors == [(2, "no answer within 200 ms")]
    assert (asked.count(1), asked.count(2), asked.count(3)) == (3, 3, 1)


def test_bad_options():
    stream = numbers(StreamsBuilder())
    with pytest.raises(ValueError, match="max_records is 1 or more"):
        stream.map_values_batch(list, max_records=0)
    with pytest.raises(ValueError, match="at least 1, 0 and 0"):
        stream.map_values_async(lambda value: value, capacity=0)
    with pytest.raises(TypeError, match="give both or none"):
        stream.map_values_async(lambda value: value, on=lambda value: value)


def test_describe_names_the_operators():
    builder = StreamsBuilder()
    numbers(builder).map_values_batch(list).map_values_async(lambda value: value).to("out", value=serde.LONG)
    text = str(builder.build().describe())
    assert "KSTREAM-MAPVALUES-BATCH-0000000001" in text
    assert "KSTREAM-MAPVALUES-ASYNC-0000000002" in text


def test_two_buffers_in_a_row_in_the_test_driver():
    builder = StreamsBuilder()
    numbers(builder).map_values_batch(list).map_values_batch(lambda values: [v + 1 for v in values]).to(
        "out", value=serde.LONG
    )
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", value=serde.LONG).pipe_all([1, 2])
        assert driver.output_topic("out", value=serde.LONG).read_values() == [2, 3]
